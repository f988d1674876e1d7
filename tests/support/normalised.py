"""Networks with batch norm and dropout, as a user's own would be, with an import path each; and one in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

from pfedbred import models
from pfedbred.models import Model, Statistics, WithStatistics

EPSILON = 1e-3


def normalise(layer, h, mean, var):
    """In NumPy as in JAX."""
    return (h - mean) / (var + EPSILON) ** 0.5 * layer["scale"] + layer["shift"]


def tiny(shape, classes, *, hidden=4, drop=False):
    """A hidden layer, batch norm, tanh, dropout of every second unit if wanted, and a head; in double precision."""

    def init(key):
        first, second = jax.random.split(key)
        return {
            "hidden": jax.random.normal(first, (*shape, hidden), jnp.float64),
            "norm": {"scale": jnp.ones(hidden, jnp.float64), "shift": jnp.zeros(hidden, jnp.float64)},
            "output": jax.random.normal(second, (hidden, classes), jnp.float64),
        }

    def rest(params, h, mean, var, key=None):
        h = jnp.tanh(normalise(params["norm"], h, mean, var))
        if drop and key is not None:
            h = 2 * h * jax.random.bernoulli(key, 0.5, h.shape)
        return h @ params["output"]

    def apply(model, x):
        return rest(model.params, x @ model.params["hidden"], **model.statistics)

    def train(params, x, key):
        h = x @ params["hidden"]
        return rest(params, h, h.mean(0), h.var(0), key)

    def of(params, x):
        h = x @ params["hidden"]
        return {"mean": h.mean(0), "var": h.var(0)}

    def start():
        return {"mean": jnp.zeros(hidden, jnp.float64), "var": jnp.ones(hidden, jnp.float64)}

    return Model(init, apply, head=("output",), train=train, statistics=Statistics(start, of), norms=("norm",))


def dropping(shape, classes):
    return tiny(shape, classes, drop=True)


def statistics(hidden, batches):
    """In NumPy: the mean over the minibatches of the mean and the variance of what is normalised."""
    found = [batch @ hidden for batch in batches]
    return {"mean": np.mean([h.mean(0) for h in found], 0), "var": np.mean([h.var(0) for h in found], 0)}


def logits(model: WithStatistics, x):
    """In NumPy: of the tiny network with kept statistics."""
    params, kept = jax.tree.map(np.asarray, model)
    h = np.tanh(normalise(params["norm"], x @ params["hidden"], kept["mean"], kept["var"]))
    return h @ params["output"]


class LinenNet(nn.Module):
    classes: int
    rate: float = 0.5

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Dense(8, name="body")(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=EPSILON, name="norm")(x)
        x = nn.Dropout(self.rate, deterministic=not train)(nn.tanh(x))
        return nn.Dense(self.classes, name="last")(x)


class NnxNet(nnx.Module):
    def __init__(self, inputs, classes, rate=0.5, *, rngs):
        self.body = nnx.Linear(inputs, 8, rngs=rngs)
        self.norms = nnx.List([nnx.BatchNorm(8, epsilon=EPSILON, rngs=rngs)])
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.last = nnx.Linear(8, classes, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(nnx.tanh(self.norms[0](self.body(x)))))


class EquinoxNet(eqx.Module):
    body: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, inputs, classes, rate=0.5, mode="batch", *, key):
        first, second = jax.random.split(key)
        self.body = eqx.nn.Linear(inputs, 8, key=first, dtype=jnp.float32)
        self.norm = eqx.nn.BatchNorm(8, axis_name="batch", eps=EPSILON, mode=mode, dtype=jnp.float32)
        self.dropout = eqx.nn.Dropout(rate)
        self.last = eqx.nn.Linear(8, classes, key=second, dtype=jnp.float32)

    def __call__(self, x, state, key=None):
        x, state = self.norm(self.body(x), state)
        return self.last(self.dropout(jnp.tanh(x), key=key)), state


def linen_network(shape, classes, rate=0.5):
    return models.from_flax(LinenNet(classes, rate), shape, head=("last",))


def nnx_network(shape, classes, rate=0.5):
    return models.from_flax(lambda rngs: NnxNet(*shape, classes, rate, rngs=rngs), shape, head=("last",))


def equinox_network(shape, classes, rate=0.5, mode="batch"):
    return models.from_equinox(lambda key: EquinoxNet(*shape, classes, rate, mode, key=key), head=("last",))
