"""The layers of transformer encoders.

Flax's attention is one of its modules, which manage params and keys themselves; the networks here are functions of a
pytree, and start as PyTorch's do.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError
from pfedbred.models.linear import dense, dense_init
from pfedbred.models.normalisation import layer_norm, norm_init
from pfedbred.types import Array, Key, Tree


def check_heads(width: int, heads: int) -> None:
    """Requires that every head has the same number of features."""
    if heads < 1 or width % heads:
        raise SettingError(f"heads must divide the width {width}, which {heads} does not")


def encoder_init(key: Key, layers: int, width: int, dtype: Any) -> Tree:
    """The params of all layers and a final norm: linear layers as in PyTorch, norms with scale 1 and shift 0."""
    params: Tree = {
        f"layer{i + 1}": _layer_init(each, width, dtype) for i, each in enumerate(jax.random.split(key, layers))
    }
    return {**params, "norm": norm_init(width, dtype)}


def _layer_init(key: Key, width: int, dtype: Any) -> Tree:
    keys = jax.random.split(key, 4)
    return {
        "attention": {
            "norm": norm_init(width, dtype),
            "query_key_value": dense_init(keys[0], width, 3 * width, dtype),
            "back": dense_init(keys[1], width, width, dtype),
        },
        "feedforward": {
            "norm": norm_init(width, dtype),
            "wide": dense_init(keys[2], width, 4 * width, dtype),
            "back": dense_init(keys[3], 4 * width, width, dtype),
        },
    }


def encoder(params: Tree, x: Array, heads: int, real: Array | None = None) -> Array:
    """Pre-norm layers: x + attention(norm(x)), then x + W_2 gelu(W_1 norm(x)); and a norm after the last.

    In each head softmax(q k^T / sqrt(d)) v, with d the features of a head. x is (n, positions, width); positions that
    are not ``real``, of shape (n, positions), are not attended to.

    References: Vaswani et al., "Attention Is All You Need", 2017; Xiong et al., "On Layer Normalization in the
    Transformer Architecture", 2020 (pre-norm).
    """
    for i in range(1, len(params)):  # all but the norm
        layer = params[f"layer{i}"]
        x = x + _attention(layer["attention"], layer_norm(layer["attention"]["norm"], x), heads, real)
        inner = layer["feedforward"]
        wide = jax.nn.gelu(dense(inner["wide"], layer_norm(inner["norm"], x)), approximate=False)
        x = x + dense(inner["back"], wide)
    return layer_norm(params["norm"], x)


def _attention(params: Tree, x: Array, heads: int, real: Array | None) -> Array:
    n, positions, width = x.shape
    each = dense(params["query_key_value"], x).reshape(n, positions, 3, heads, width // heads)
    query, key, value = (each[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    scores = (query @ key.swapaxes(2, 3)).astype(jnp.promote_types(x.dtype, jnp.float32))
    scores = scores / math.sqrt(width // heads)
    if real is not None:  # finite, so that a sample of only padding has an output and a gradient
        scores = jnp.where(real[:, None, None], scores, jnp.finfo(scores.dtype).min)
    out = jax.nn.softmax(scores).astype(x.dtype) @ value
    return dense(params["back"], out.transpose(0, 2, 1, 3).reshape(n, positions, width))
