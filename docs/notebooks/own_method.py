# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A method of your own
#
# A method is two halves of pure functions: what a client does with a message and its data, and what the server does
# with the uploads. The library does the rest: batching clients, compiling, evaluation, seeds, sweeps, run folders.
#
# We write one that is not in the library. Every client adds an offset o_i to the common model, and offsets are held
# near zero:
#
#     min over w and all o_i of  E_i  f_i(w + o_i) + mu/2 ||o_i||^2
#
# In a local step both take a gradient step, on the same minibatch:
#
#     w   <- w   - alpha grad f_i(w + o_i)
#     o_i <- o_i - gamma (grad f_i(w + o_i) + mu o_i)
#
# w is uploaded and averaged, o_i stays at home. G is w, P is w + o_i.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import pfedbred
from pfedbred import Algorithm, Client, Count, NonNegative, Positive, averaging_server, descend, method


@method(paper="an example", year=None, G="w", P="w + o_i")
def offsets(task, *, alpha: Positive = 0.02, gamma: NonNegative = 0.02, mu: NonNegative = 0.1, R: Count = 20):
    """Offsets: min over w and all o_i of E_i f_i(w + o_i) + mu/2 ||o_i||^2.

    Args:
      task: model and loss f.
      alpha: step size of w.
      gamma: step size of o_i; 0 leaves them at zero.
      mu: how strongly offsets are held near zero.
      R: local steps, each on one minibatch.
    """

    def gradient(parts, batch):
        w, o = parts
        slope = jax.grad(task.loss)(optax.tree.add(w, o), batch)
        pulled = optax.tree.add_scale(slope, mu, o)
        return slope, optax.tree.scale(gamma / alpha, pulled)  # descend takes steps of size alpha

    def train(w, o, data):
        local, o = descend(gradient, (w, o), data, alpha=alpha, steps=R)
        return local, o, {"offset_norm": optax.tree.norm(o)}

    client = Client(
        init=lambda w: jax.tree.map(jnp.zeros_like, w),  # what a client keeps, before its first round
        train=train,  # a message, the client's state and its data to an upload, the next state and diagnostics
        model=lambda w, o, data: optax.tree.add(w, o),  # P
        draws=R,  # how many minibatches train uses
    )
    return Algorithm(client, averaging_server(task), task.model.apply)


# %% [markdown]
# That is the whole method. It runs, compiled, with any model and any number of seeds, and its diagnostics are
# recorded:

# %%
common = {"dataset": "digits", "clients": 10, "rounds": 20, "eval_every": 4, "aggregated": 10, "seeds": 2}
mine = pfedbred.run(algorithm=offsets, diagnostics=True, **common)
print("P:", np.round(100 * mine.accuracy("personal")[-1], 1), "G:", np.round(100 * mine.accuracy("global")[-1], 1))
print("mean norm of the offsets:", np.round(mine.points[-1].diagnostics["offset_norm"], 3))

# %% [markdown]
# ## Prove it
#
# Without offsets the method must equal `fedavg`, up to rounding. A reduction like this is the best test a method can
# have.

# %%
without = pfedbred.run(algorithm=offsets, settings={"gamma": 0.0}, **common)
fedavg = pfedbred.run(algorithm="fedavg", settings={"alpha": 0.02}, **common)
difference = np.abs(without.curve("loss", "global") - fedavg.curve("loss", "global")).max()
print("largest difference in loss over all rounds and seeds:", difference)
assert difference < 1e-5

# %% [markdown]
# ## Compare it
#
# Your method's settings work like any others: they can be swept, all points in one compiled program, and chosen on
# validation samples.

# %%
experiment = pfedbred.Experiment(
    algorithm=offsets, dataset="digits", clients=10, rounds=20, aggregated=10, eval_every=4, validation=0.2
)
sweep = pfedbred.sweep(experiment, {"mu": [0.01, 0.1], "gamma": [0.02, 0.05]})
print("chosen on validation samples:", sweep.best_point())

# %%
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
chosen = pfedbred.run(algorithm=offsets, settings=sweep.best_point(), **common)
for name, run in {"offsets, tuned": chosen, "offsets": mine, "fedavg": fedavg}.items():
    axes.plot([point.round for point in run.points], 100 * run.accuracy("personal").mean(axis=1), label=name)
axes.set(xlabel="round", ylabel="accuracy of P, %", ylim=(50, 100))
axes.legend()
plt.show()

# %% [markdown]
# This comparison is not fair yet, because only our method was tuned. [An honest comparison](honest_comparison.py)
# shows how to make it fair.
#
# `pfedbred.ALGORITHMS["offsets"] = offsets` gives the method a name; suffixes then work too (`offsets+am`). To
# contribute it, see [Adding something](../../CONTRIBUTING.md#adding-something).
