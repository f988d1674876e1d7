"""Models made of linear layers."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.models.base import Model
from pfedbred.types import Array, Key, Tree


def uniform(key: Key, shape: tuple[int, ...], fan_in: int, dtype: Any) -> Array:
    """PyTorch's initialisation of matrices and biases: uniform in +-1/sqrt(fan_in)."""
    bound = 1 / math.sqrt(fan_in)
    return jax.random.uniform(key, shape, dtype, -bound, bound)


def dense_init(key: Key, inputs: int, outputs: int, dtype: Any) -> Tree:
    """A linear layer initialised as in PyTorch: weight and bias uniform in +-1/sqrt(inputs).

    The weight has shape (outputs, inputs): on CPUs a step is about twice as fast as with its transpose.
    """
    weight_key, bias_key = jax.random.split(key)
    return {
        "weight": uniform(weight_key, (outputs, inputs), inputs, dtype),
        "bias": uniform(bias_key, (outputs,), inputs, dtype),
    }


def dense(layer: Tree, x: Array) -> Array:
    """A linear layer: W x + b for each row of x."""
    return x @ layer["weight"].T + layer["bias"]


def _flat(x: Array, like: Array) -> Array:
    return x.reshape(x.shape[0], -1).astype(like.dtype)


def mclr(shape: tuple[int, ...], classes: int, dtype: Any = jnp.float32) -> Model:
    """Multi-class logistic regression: one linear layer."""

    def init(key: Key) -> Tree:
        return {"output": dense_init(key, math.prod(shape), classes, dtype)}

    def apply(params: Tree, x: Array) -> Array:
        return dense(params["output"], _flat(x, params["output"]["weight"]))

    return Model(init, apply, head=("output",), first="output", rest=lambda params, z: z)


def dnn(shape: tuple[int, ...], classes: int, hidden: int = 100, dtype: Any = jnp.float32) -> Model:
    """Two linear layers with a leaky ReLU of slope 0.1 between them."""

    def init(key: Key) -> Tree:
        first, second = jax.random.split(key)
        return {
            "hidden": dense_init(first, math.prod(shape), hidden, dtype),
            "output": dense_init(second, hidden, classes, dtype),
        }

    def rest(params: Tree, z: Array) -> Array:
        return dense(params["output"], jax.nn.leaky_relu(z, 0.1))

    def apply(params: Tree, x: Array) -> Array:
        return rest(params, dense(params["hidden"], _flat(x, params["hidden"]["weight"])))

    return Model(init, apply, head=("output",), first="hidden", rest=rest)
