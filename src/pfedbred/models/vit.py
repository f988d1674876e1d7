"""A small vision transformer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.models.attention import check_heads, encoder, encoder_init
from pfedbred.models.base import Model
from pfedbred.models.images import sides_and_channels
from pfedbred.models.linear import dense, dense_init
from pfedbred.types import Array, Key, Tree

_PATCH = 4
_SMALLEST = 8  # two patches


def vit(
    shape: tuple[int, ...],
    classes: int,
    width: int = 128,
    layers: int = 4,
    heads: int = 4,
    dtype: Any = jnp.float32,
) -> Model:
    """A vision transformer of four layers for small images, with patches of 4 by 4.

    Each patch goes through a linear layer, the learned vector of its position is added, and then come the layers of
    :func:`pfedbred.models.attention.encoder`, the mean over the patches and a linear layer. Images are (height, width)
    or (height, width, channels); sides that are not a multiple of 4 are padded with zeros, at the bottom and on the
    right. Vectors of positions are initialised normal with deviation 0.02, linear layers as in PyTorch.

    Args:
      shape: the shape of one sample.
      classes: number of labels.
      width: features of each patch; feed-forward layers have four times as many.
      layers: number of layers.
      heads: number of attention heads.
      dtype: the type of the params.

    References: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021; Beyer, Zhai and Kolesnikov, "Better plain
    ViT baselines for ImageNet-1k", 2022 (the mean instead of a class token).
    """
    height, breadth, channels = sides_and_channels("vit", shape, _SMALLEST)
    check_heads(width, heads)
    rows, columns = -(-height // _PATCH), -(-breadth // _PATCH)

    def init(key: Key) -> Tree:
        keys = jax.random.split(key, 4)
        return {
            "patches": dense_init(keys[0], _PATCH * _PATCH * channels, width, dtype),
            "positions": 0.02 * jax.random.normal(keys[1], (rows * columns, width), dtype),
            "encoder": encoder_init(keys[2], layers, width, dtype),
            "output": dense_init(keys[3], width, classes, dtype),
        }

    def apply(params: Tree, x: Array) -> Array:
        x = x.reshape(x.shape[0], height, breadth, channels).astype(params["positions"].dtype)
        x = jnp.pad(x, ((0, 0), (0, rows * _PATCH - height), (0, columns * _PATCH - breadth), (0, 0)))
        x = x.reshape(x.shape[0], rows, _PATCH, columns, _PATCH, channels).transpose(0, 1, 3, 2, 4, 5)
        x = dense(params["patches"], x.reshape(x.shape[0], rows * columns, -1)) + params["positions"]
        return dense(params["output"], encoder(params["encoder"], x, heads).mean(1))

    return Model(init, apply, head=("output",), norms=("norm",))
