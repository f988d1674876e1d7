"""Models as (init, apply) pairs. Sizes follow the data's shape and number of classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError, nearest
from pfedbred.types import Array, Key, Tree


class Model(NamedTuple):
    """``init(key)`` makes weights; ``apply(weights, x)`` gives one row of logits for each sample in x.

    ``head`` names the parts of the weights, by their first key, that turn features into logits; methods that share a
    body and keep a head (FedPer, FedRep, FedBABU) need it.
    """

    init: Callable[[Key], Tree]
    apply: Callable[[Tree, Array], Array]
    head: tuple[str, ...] = ()


def _dense_init(key: Key, inputs: int, outputs: int, dtype: Any) -> Tree:
    """A linear layer as PyTorch starts it: uniform in +-1/sqrt(inputs), weights and biases.

    The weight has shape (outputs, inputs): on CPUs a step is about twice as fast as with the transpose.
    """
    weight_key, bias_key = jax.random.split(key)
    bound = 1 / math.sqrt(inputs)
    return {
        "weight": jax.random.uniform(weight_key, (outputs, inputs), dtype, -bound, bound),
        "bias": jax.random.uniform(bias_key, (outputs,), dtype, -bound, bound),
    }


def _dense(layer: Tree, x: Array) -> Array:
    return x @ layer["weight"].T + layer["bias"]


def _flat(x: Array, like: Array) -> Array:
    return x.reshape(x.shape[0], -1).astype(like.dtype)


def mclr(shape: tuple[int, ...], classes: int, dtype: Any = jnp.float32) -> Model:
    """Multi-class logistic regression: one linear layer."""

    def init(key: Key) -> Tree:
        return {"output": _dense_init(key, math.prod(shape), classes, dtype)}

    def apply(weights: Tree, x: Array) -> Array:
        return _dense(weights["output"], _flat(x, weights["output"]["weight"]))

    return Model(init, apply, head=("output",))


def dnn(shape: tuple[int, ...], classes: int, hidden: int = 100, dtype: Any = jnp.float32) -> Model:
    """Two linear layers with a leaky ReLU of slope 0.1 between them."""

    def init(key: Key) -> Tree:
        first, second = jax.random.split(key)
        return {
            "hidden": _dense_init(first, math.prod(shape), hidden, dtype),
            "output": _dense_init(second, hidden, classes, dtype),
        }

    def apply(weights: Tree, x: Array) -> Array:
        activity = _dense(weights["hidden"], _flat(x, weights["hidden"]["weight"]))
        return _dense(weights["output"], jax.nn.leaky_relu(activity, 0.1))

    return Model(init, apply, head=("output",))


MODELS: dict[str, Callable[[tuple[int, ...], int], Model]] = {"mclr": mclr, "dnn": dnn}
"""Every named model, from (shape of one sample, classes). A new one is a function and a line here."""


def get(model: str | Model, shape: tuple[int, ...], classes: int) -> Model:
    """The model of that name for samples of that shape."""
    if isinstance(model, Model):
        return model
    if model not in MODELS:
        raise SettingError(f"unknown model {model!r}{nearest(model, MODELS)}")
    return MODELS[model](shape, classes)
