"""A small transformer for texts of words or characters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.models.attention import check_heads, encoder, encoder_init
from pfedbred.models.base import Model
from pfedbred.models.linear import dense, dense_init
from pfedbred.models.lstm import frozen_vectors, lengths
from pfedbred.types import Array, Key, Tree, Words


def transformer(
    shape: tuple[int, ...],
    classes: int,
    *,
    words: Words,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    dtype: Any = jnp.float32,
) -> Model:
    """A transformer encoder of two layers for words or characters, and a linear layer on its last output.

    The vectors of each id and its position are added and go through the layers of
    :func:`pfedbred.models.attention.encoder`. Trailing ids of 0 are padding, which is not attended to; the last output
    is that of the last id before it. Vectors (standard normal) and linear layers are initialised as in PyTorch.

    Args:
      shape: (length,), the number of ids in a sample.
      classes: number of labels.
      words: the number of ids, and their vectors. Given vectors are frozen, and a linear layer maps them to the width;
        otherwise vectors are learned.
      width: features of each position; feed-forward layers have four times as many.
      layers: number of layers.
      heads: number of attention heads.
      dtype: the type of the params.

    References: Vaswani et al., "Attention Is All You Need", 2017.
    """
    frozen = frozen_vectors("transformer", shape, words, dtype)
    check_heads(width, heads)

    def init(key: Key) -> Tree:
        keys = jax.random.split(key, 4)
        vectors: Tree = (
            {"embedding": jax.random.normal(keys[0], (words.count, width), dtype)}
            if frozen is None
            else {"input": dense_init(keys[0], frozen.shape[1], width, dtype)}
        )
        return {
            **vectors,
            "positions": jax.random.normal(keys[1], (shape[0], width), dtype),
            "encoder": encoder_init(keys[2], layers, width, dtype),
            "output": dense_init(keys[3], width, classes, dtype),
        }

    def apply(params: Tree, x: Array) -> Array:
        length, last = lengths(x.T)
        if frozen is None:
            vectors = params["embedding"][x]
        else:
            vectors = dense(params["input"], frozen.astype(params["positions"].dtype)[x])
        real = jnp.arange(x.shape[1]) < length[:, None]
        out = encoder(params["encoder"], vectors + params["positions"][: x.shape[1]], heads, real)
        # A masked sum instead of an index: its gradient needs no scatter, which is not deterministic on GPUs.
        return dense(params["output"], jnp.sum(jnp.where(last.swapaxes(0, 1), out, 0), axis=1))

    return Model(init, apply, head=("output",), norms=("norm",))
