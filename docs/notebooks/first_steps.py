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
# # First steps
#
# Twenty clients have handwritten digits: ten training samples each, of only three of the ten labels. We train every
# client alone, one model for all, and personal models that learn from each other; then we look at which clients gain.

# %%
import matplotlib.pyplot as plt
import numpy as np

import pfedbred

digits = pfedbred.load("digits", clients=20, labels_per_client=3)


def with_samples(count):
    """The same clients and test samples, with the first few training samples of each."""
    train = [tuple(array[:count] for array in digits.train.client(i)) for i in range(20)]
    return pfedbred.from_clients(train, [digits.test.client(i) for i in range(20)])


federation = with_samples(10)
print(
    federation.clients,
    "clients,",
    federation.train.sizes.sum(),
    "training and",
    federation.test.sizes.sum(),
    "test samples",
)

# %% [markdown]
# ## The data distribution
#
# Rows are clients, columns are labels; darker is more samples.

# %%
counts = np.zeros((federation.clients, 10), int)
for i in range(federation.clients):
    _, y = federation.train.client(i)
    counts[i] = np.bincount(y, minlength=10)

figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
axes.imshow(counts, cmap="Blues", vmax=12, aspect="auto")
axes.set(xlabel="label", ylabel="client", xticks=range(10), yticks=range(20))
for i, label in np.argwhere(counts):
    axes.text(label, i, counts[i, label], ha="center", va="center", fontsize=7, color="black")
plt.show()

# %% [markdown]
# ## Four ways to train
#
# `pfedbred.run` takes the data, a method and its settings. Every run below averages all twenty clients in every
# round, trains two seeds at once, and is saved in a folder.

# %%
SETTINGS = {
    "local": {"alpha": 0.05},
    "fedavg": {"alpha": 0.05},
    "ditto": {"alpha": 0.05, "lam": 0.1},
    "mg-meta": {"alpha": 0.05},
}
common = {"rounds": 40, "aggregated": 20, "batch_size": 10, "eval_every": 4, "seeds": 2}
runs = {
    name: pfedbred.run(dataset=federation, algorithm=name, settings=settings, **common, out=f"runs/{name}")
    for name, settings in SETTINGS.items()
}
for name, run in runs.items():
    print(f"{name:8} P after 40 rounds: {np.round(100 * run.accuracy('personal')[-1], 1)} % by seed")

# %% [markdown]
# `local` can learn no more than ten samples teach. For `fedavg` P is the global model itself: it has seen 200
# samples, but has to distinguish all ten digits on clients that need only three. The personal methods have both: the
# others' samples, through the common model, and a model for each client.

# %%
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, run in runs.items():
    rounds = [point.round for point in run.points]
    axes.plot(rounds, 100 * run.accuracy("personal").mean(axis=1), label=name)
axes.set(xlabel="round", ylabel="accuracy of P, %", ylim=(60, 100))
axes.legend()
plt.show()

# %% [markdown]
# ## Who gains?
#
# A mean over clients can hide a client that would be better off alone. Here is the accuracy of each client with
# `ditto` minus that with `local`, averaged over the seeds:

# %%
by_client = {
    name: 100 * np.asarray(run.points[-1].scores.personal.test.client_accuracy).mean(axis=0)
    for name, run in runs.items()
}
gains = by_client["ditto"] - by_client["local"]
figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
axes.bar(range(20), gains, color=np.where(gains < 0, "tab:red", "tab:blue"))
axes.axhline(0, color="black", linewidth=0.8)
axes.set(xlabel="client", ylabel="points gained", xticks=range(20))
plt.show()
print(f"{(gains > 0).sum()} clients gain, {(gains < 0).sum()} lose")

# %% [markdown]
# ## When it is not worth it
#
# The same with forty samples per client. Training alone is now as good, and much simpler: always compare with it.

# %%
more = with_samples(40)
for name in ("local", "ditto"):
    run = pfedbred.run(dataset=more, algorithm=name, settings=SETTINGS[name], **common)
    print(f"{name:8} P with 40 samples: {np.round(100 * run.accuracy('personal')[-1], 1)} % by seed")

# %% [markdown]
# ## Using a personal model
#
# The parameters of client 7's model are a pytree of arrays. To predict, export the model to a file, which holds
# everything that prediction needs.

# %%
theta = runs["ditto"].personal_model(client=7)
print({layer: {name: array.shape for name, array in params.items()} for layer, params in theta.items()})

# %%
model = pfedbred.load_model(pfedbred.export("runs/ditto", client=7))
x, y = federation.test.client(7)
print("predicted:", model.predict(x[:12]))
print("true:     ", y[:12].tolist())

# %% [markdown]
# Next: [what the settings mean](../settings.md), [which method to use](../methods.md), and
# [the prior in two dimensions](prior_in_two_dimensions.py).
