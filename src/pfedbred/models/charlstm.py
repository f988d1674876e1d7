"""LEAF's recurrent network for characters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError
from pfedbred.models.base import Model
from pfedbred.models.linear import dense, dense_init, uniform
from pfedbred.models.lstm import cell_and_unrolling, lengths, widened
from pfedbred.types import Array, Key, Tree, Words


def charlstm(
    shape: tuple[int, ...],
    classes: int,
    *,
    words: Words,
    embedding: int = 8,
    hidden: int = 256,
    dtype: Any = jnp.float32,
) -> Model:
    """An embedding, a two-layer LSTM that reads forward, and a linear layer on its last output.

    The LSTM is that of :func:`pfedbred.models.lstm`. Samples are ids of characters; trailing ids of 0 are padding,
    which leaves the state unchanged. Params are initialised as in PyTorch.

    Args:
      shape: (length,), the number of ids in a sample.
      classes: number of labels.
      words: the number of ids.
      embedding: size of the character vectors.
      hidden: size of the hidden state h.
      dtype: the type of the params.

    References: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018.
    """
    if len(shape) != 1 or shape[0] < 1:
        raise SettingError(f"charlstm needs samples of shape (length,), not {tuple(shape)}")
    if words.vectors is not None:
        raise SettingError("charlstm learns its own vectors: give none, or use lstm")

    def init(key: Key) -> Tree:
        keys = jax.random.split(key, 4)
        return {
            "embedding": jax.random.normal(keys[0], (words.count, embedding), dtype),
            "layer1": _layer_init(keys[1], embedding, hidden, dtype),
            "layer2": _layer_init(keys[2], hidden, hidden, dtype),
            "output": dense_init(keys[3], hidden, classes, dtype),
        }

    def apply(params: Tree, x: Array) -> Array:
        ids = x.T
        length, last = lengths(ids)
        first = _layer(params["layer1"], params["embedding"][ids], length)
        second = _layer(params["layer2"], first, length)
        return dense(params["output"], jnp.sum(jnp.where(last, second, 0), axis=0))

    return Model(init, apply, head=("output",))


def _layer_init(key: Key, inputs: int, hidden: int, dtype: Any) -> Tree:
    """All arrays are uniform in +-1/sqrt(hidden)."""
    keys = jax.random.split(key, 4)
    shapes = {
        "input": (4 * hidden, inputs),
        "recurrent": (4 * hidden, hidden),
        "input_bias": (4 * hidden,),
        "recurrent_bias": (4 * hidden,),
    }
    return {name: uniform(key, shape, hidden, dtype) for key, (name, shape) in zip(keys, shapes.items(), strict=True)}


def _layer(params: Tree, x: Array, length: Array) -> Array:
    """Maps x of shape (time, batch, inputs), given the samples' lengths, to (time, batch, hidden).

    The batch is the first axis of each step's product, not the last as in :func:`pfedbred.models.lstm.scanned`: for a
    small batch and a large h that is faster (benchmarks/client_models.py).
    """
    cell, unroll = cell_and_unrolling(len(x))
    kernel = widened(jnp.concatenate([params["input"], params["recurrent"]], axis=1).T)
    bias = widened(params["input_bias"]) + widened(params["recurrent_bias"])
    factors = x.dtype
    real = (jnp.arange(len(x))[:, None] < length)[:, :, None]

    def step(state: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        (h, c), (x, real) = state, inputs
        right = kernel.astype(factors)
        h, c = cell(widened(jnp.concatenate([x, h.astype(factors)], axis=1) @ right) + bias, c, real)
        return (h, c), h

    start = jnp.zeros((x.shape[1], params["recurrent"].shape[1]), kernel.dtype)
    return jax.lax.scan(step, (start, start), (x, real), unroll=unroll)[1].astype(factors)
