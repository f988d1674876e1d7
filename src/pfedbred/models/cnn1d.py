"""A convolutional network for signals, fast with different params per client."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError
from pfedbred.models.base import Model
from pfedbred.models.linear import dense, dense_init, uniform
from pfedbred.types import Array, Key, Tree

_KERNEL = 9
_SMALLEST = 28  # 28 -> conv 20 -> pool 10 -> conv 2 -> pool 1


def cnn1d(
    shape: tuple[int, ...],
    classes: int,
    filters: tuple[int, int] = (32, 64),
    hidden: int = 128,
    dtype: Any = jnp.float32,
) -> Model:
    """Two convolutions over time with pooling, two linear layers, ReLU between them.

    conv 9x32, pool 2, conv 9x64, pool 2, linear 128, classes; no padding, max pooling. Signals are (length,) or
    (length, channels). Params are initialised as in PyTorch, uniform in +-1/sqrt(fan_in), where the fan-in of a
    convolution is 9 times its input channels.

    Args:
      shape: the shape of one sample.
      classes: number of labels.
      filters: the filters of the two convolutions.
      hidden: width of the first linear layer.
      dtype: the type of the params.
    """
    if len(shape) not in (1, 2) or shape[0] < _SMALLEST:
        raise SettingError(
            f"cnn1d needs signals of shape (length,) or (length, channels), at least {_SMALLEST} long, not samples of "
            f"shape {tuple(shape)}"
        )
    length, channels = (*shape, 1)[:2]
    pooled = ((length - _KERNEL + 1) // 2 - _KERNEL + 1) // 2

    def init(key: Key) -> Tree:
        keys = jax.random.split(key, 4)
        return {
            "conv1": _conv_init(keys[0], channels, filters[0], dtype),
            "conv2": _conv_init(keys[1], filters[0], filters[1], dtype),
            "hidden": dense_init(keys[2], pooled * filters[1], hidden, dtype),
            "output": dense_init(keys[3], hidden, classes, dtype),
        }

    def apply(params: Tree, x: Array) -> Array:
        x = x.reshape(x.shape[0], length, channels).astype(params["output"]["weight"].dtype)
        for stage in ("conv1", "conv2"):
            x = _conv_pool(params[stage], x)
        x = jax.nn.relu(dense(params["hidden"], x.reshape(x.shape[0], -1)))
        return dense(params["output"], x)

    return Model(init, apply, head=("output",))


def _conv_init(key: Key, inputs: int, outputs: int, dtype: Any) -> Tree:
    """A convolution initialised as in PyTorch; its kernels have shape (outputs, time, inputs)."""
    weight_key, bias_key = jax.random.split(key)
    fan_in = _KERNEL * inputs
    return {
        "weight": uniform(weight_key, (outputs, _KERNEL, inputs), fan_in, dtype),
        "bias": uniform(bias_key, (outputs,), fan_in, dtype),
    }


def _conv_pool(layer: Tree, x: Array) -> Array:
    """ReLU(pool(conv(x))), as one matrix product, as for images in :mod:`pfedbred.models.cnn`.

    Each row of the product computes the two outputs of one pool, which read the same 10 steps: five cells of two.
    """
    kernel = layer["weight"]
    filters, _, channels = kernel.shape
    count = x.shape[1] // 2
    cells = x[:, : 2 * count].reshape(x.shape[0], count, 2 * channels)
    taken = (_KERNEL + 1) // 2
    windows = jnp.concatenate([cells[:, i : i + count - taken + 1] for i in range(taken)], axis=2)
    two = jnp.concatenate([jnp.pad(kernel, ((0, 0), (i, 1 - i), (0, 0))) for i in range(2)])
    products = windows @ two.reshape(2 * filters, -1).T
    pooled = jnp.max(products.reshape(*products.shape[:2], 2, filters), axis=2)
    return jax.nn.relu(pooled + layer["bias"])
