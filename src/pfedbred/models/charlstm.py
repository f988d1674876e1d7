"""LEAF's recurrent network for characters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError
from pfedbred.models.base import Model
from pfedbred.models.linear import dense, dense_init
from pfedbred.models.lstm import layer, layer_init, lengths
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
    which changes no state. Params are initialised as in PyTorch.

    Args:
      shape: (length,), the number of ids in a sample.
      classes: number of labels.
      words: the number of ids.
      embedding: size of the vectors of the characters.
      hidden: size of h.
      dtype: of the params.

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
            "layer1": layer_init(keys[1], embedding, hidden, dtype, directions=1),
            "layer2": layer_init(keys[2], hidden, hidden, dtype, directions=1),
            "output": dense_init(keys[3], hidden, classes, dtype),
        }

    def apply(params: Tree, x: Array) -> Array:
        ids = x.T
        length, last = lengths(ids)
        first = layer(params["layer1"], params["embedding"][ids], length)
        second = layer(params["layer2"], first, length)
        return dense(params["output"], jnp.sum(jnp.where(last, second, 0), axis=0))

    return Model(init, apply, head=("output",))
