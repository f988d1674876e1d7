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
# # An honest comparison
#
# Is a personalised method worth it on this data? Four rules make the answer trustworthy:
#
# 1. Every method has the same number of trials, and chooses its settings on validation samples.
# 2. The round, too, is chosen on validation samples.
# 3. Differences are paired: for every method, a seed has the same data and the same initial model.
# 4. Every difference is shown with its interval, and simple baselines take part.
#
# The data: the digits, divided among 20 clients with three labels each. A fifth of each client's training samples is
# for validation.

# %%
import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

import pfedbred

common = {"dataset": "digits", "clients": 20, "rounds": 20, "aggregated": 20, "eval_every": 4, "validation": 0.2}
common |= {"seeds": 5, "settings": {"R": 10}}

# %% [markdown]
# ## Tuning
#
# Each method has four trials with five seeds each, all in one compiled program. The step size is always among the
# settings tried: a method with a badly chosen step size can lose to anything. The point with the best P on validation
# samples is chosen.

# %%
grids = {
    "local": {"alpha": [0.03, 0.1, 0.2, 0.4]},
    "fedavg+ft": {"alpha": [0.05, 0.2], "ft_alpha": [0.05, 0.5]},
    "ditto": {"alpha": [0.1, 0.3], "lam": [0.1, 1.0]},
    "mg-meta": {"alpha": [0.03, 0.1], "alpha_m": [0.03, 0.1]},
}
sweeps = {name: pfedbred.sweep(pfedbred.Experiment(algorithm=name, **common), grid) for name, grid in grids.items()}
for name, sweep in sweeps.items():
    print(f"{name:10} {sweep.best_point()}")

# %% [markdown]
# A best value at the edge of its grid means that a wider grid may have a better one. Here nearly all are at an edge,
# because this notebook is kept small: use more trials, and check the edges before you believe a table.
#
# ## Measuring
#
# The test samples have not been used so far. `figure("chosen", ...)` is the accuracy on them at the round that was
# best on validation samples; `figure("best", ...)` is that of the best round on the test samples themselves, as many
# papers report it.

# %%
figures, optimistic = {}, {}
for name, sweep in sweeps.items():
    point = np.argmax(sweep.scores("personal"))
    figures[name] = 100 * sweep.figure("chosen", "personal")[point]
    optimistic[name] = 100 * sweep.figure("best", "personal")[point]


def interval(values):
    """The half-width of a 95 % interval around the mean."""
    return stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))


print(f"{'P, accuracy in %':16} {'chosen round':>15} {'best on test':>15} {'minus local':>15}")
for name, values in figures.items():
    best, less = optimistic[name], values - figures["local"]
    told = "" if name == "local" else f"{less.mean():+6.2f} ± {interval(less):4.2f}"
    told_both = [f"{each.mean():7.2f} ± {interval(each):4.2f}" for each in (values, best)]
    print(f"{name:16} {told_both[0]}  {told_both[1]}  {told:>15}")

# %% [markdown]
# For every method, the best round on the test samples is better than the round chosen without them: that part of a
# figure is luck. Now the paired differences, with their intervals:

# %%
figure, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
others = [name for name in figures if name != "local"]
for k, name in enumerate(others):
    less = figures[name] - figures["local"]
    axes.errorbar(less.mean(), k, xerr=interval(less), fmt="o", capsize=4)
    axes.plot(less, np.full(len(less), k) + 0.18, "|", color="grey")
axes.axvline(0, color="black", linewidth=0.8)
axes.set(yticks=range(len(others)), yticklabels=others, xlabel="accuracy of P minus that of local, points")
axes.set_ylim(-0.5, len(others) - 0.4)
plt.show()

# %% [markdown]
# If an interval contains zero, the difference from training alone is not significant. And all differences are small:
# a client has about fifty samples of three digits, nearly enough for a linear model. [First steps](first_steps.py)
# has the same digits with ten samples per client. These intervals are for a single split of the data; `--split-seeds
# 5` includes the variation between splits ([Choosing](../choosing.md)).
#
# A mean can rise while some clients lose: [First steps](first_steps.py) looks at each of them, and so does `pfedbred
# report`.
#
# In the shell, use `pfedbred sweep` for each method and then `pfedbred compare --validation 0.2 --seeds 5 --baseline
# local`, which prints these tables. The library's own comparison on real data is [fair.md](../../results/fair.md).
