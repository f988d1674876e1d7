"""The convolutional network of the paper's CIFAR-10 experiments, fast with different params per client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.models.base import Model
from pfedbred.models.images import conv_init, sides_and_channels
from pfedbred.models.linear import dense, dense_init
from pfedbred.models.platform import platform
from pfedbred.types import Array, Key, Tree

_KERNEL = 5
_FILTERS = (6, 16)
_HIDDEN = (120, 84)
_SMALLEST = 16  # 16 -> conv 12 -> pool 6 -> conv 2 -> pool 1


def cnn(shape: tuple[int, ...], classes: int, dtype: Any = jnp.float32) -> Model:
    """Two convolutions with pooling, three linear layers (LeNet-5 with ReLU).

    conv 5x5x6, pool 2x2, conv 5x5x16, pool 2x2, linear 120, 84, classes; no padding, max pooling. Images are (height,
    width) or (height, width, channels). Params are initialised as in PyTorch, uniform in +-1/sqrt(fan_in), where the
    fan-in of a convolution is 25 times its input channels.

    References: LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document Recognition", 1998.
    """
    height, width, channels = sides_and_channels("cnn", shape, _SMALLEST)
    pooled = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    widths = (pooled[0] * pooled[1] * _FILTERS[1], *_HIDDEN)

    def init(key: Key) -> Tree:
        keys = jax.random.split(key, 5)
        return {
            "conv1": conv_init(keys[0], channels, _FILTERS[0], _KERNEL, dtype),
            "conv2": conv_init(keys[1], _FILTERS[0], _FILTERS[1], _KERNEL, dtype),
            "hidden1": dense_init(keys[2], widths[0], widths[1], dtype),
            "hidden2": dense_init(keys[3], widths[1], widths[2], dtype),
            "output": dense_init(keys[4], widths[2], classes, dtype),
        }

    def apply(params: Tree, x: Array) -> Array:
        x = x.reshape(x.shape[0], height, width, channels).astype(params["conv1"]["weight"].dtype)
        x = conv_pools([params["conv1"], params["conv2"]], x).reshape(x.shape[0], -1)
        for layer in ("hidden1", "hidden2"):
            x = jax.nn.relu(dense(params[layer], x))
        return dense(params["output"], x)

    return Model(init, apply, head=("output",))


def conv_pools(layers: Sequence[Tree], x: Array) -> Array:
    """ReLU(pool(conv(x))) of one layer after another, on images of shape (n, height, width, channels)."""
    if platform() == "gpu":
        return _channels_first(layers, x)
    for layer in layers:
        x = _conv_pool(layer, x)
    return x


def _channels_first(layers: Sequence[Tree], x: Array) -> Array:
    """The same, computed with channels first.

    Slices are then joined along the first axis, each a long run of memory, and pooling compares such runs: on a GPU, a
    step of 100 clients takes three quarters of the time. On a CPU, whose caches hold a client's windows, it is slower.
    """
    x = x.transpose(3, 0, 1, 2)
    for layer in layers:
        filters, windows = layer["weight"].shape[0], _windows_first(x)
        products = _four_kernels(layer["weight"]) @ windows.reshape(len(windows), -1)
        pooled = jnp.max(products.reshape(4, filters, *windows.shape[1:]), axis=0)
        x = jax.nn.relu(pooled + layer["bias"][:, None, None, None])
    return x.transpose(1, 2, 3, 0)


def _conv_pool(layer: Tree, x: Array) -> Array:
    """ReLU(pool(conv(x))), as one matrix product.

    Under ``vmap`` a convolution with different kernels per client becomes a grouped convolution, which is slow; a
    matrix product only gains an axis. Each row of this product computes the four outputs of one pool, which all read
    the same 6x6 window: 36 multiplications instead of 25, but 9 numbers copied per pixel instead of 25, and a product
    four times as wide. Pooling, bias and ReLU commute, so bias and ReLU run on a quarter of the outputs.
    """
    filters = layer["weight"].shape[0]
    products = _windows(x) @ _four_kernels(layer["weight"]).T
    pooled = jnp.max(products.reshape(*products.shape[:3], 4, filters), axis=3)
    return jax.nn.relu(pooled + layer["bias"])


def _windows(x: Array) -> Array:
    """The flattened 6x6 windows at every second row and column of the images in x, of shape (n, h, w, c).

    Pixels are first grouped into cells of 2x2, so that a window is 3x3 cells: nine slices to concatenate instead of 36.
    The last row or column of an odd size is never pooled.
    """
    n, height, width, channels = x.shape
    rows, columns = height // 2, width // 2
    cells = x[:, : 2 * rows, : 2 * columns].reshape(n, rows, 2, columns, 2, channels)
    cells = cells.transpose(0, 1, 3, 2, 4, 5).reshape(n, rows, columns, 4 * channels)
    slices = [cells[:, i : i + rows - 2, j : j + columns - 2] for i in range(3) for j in range(3)]
    return jnp.concatenate(slices, axis=3)


def _windows_first(x: Array) -> Array:
    """The windows of :func:`_windows` along the first axis, of x of shape (c, n, h, w)."""
    channels, n, height, width = x.shape
    rows, columns = height // 2, width // 2
    cells = x[:, :, : 2 * rows, : 2 * columns].reshape(channels, n, rows, 2, columns, 2)
    cells = cells.transpose(3, 5, 0, 1, 2, 4).reshape(4 * channels, n, rows, columns)
    return jnp.concatenate([cells[:, :, i : i + rows - 2, j : j + columns - 2] for i in range(3) for j in range(3)])


def _four_kernels(kernel: Array) -> Array:
    """The 5x5 kernels at their four offsets in a 6x6 window, zero elsewhere, in the order of :func:`_windows`."""
    filters, _, _, channels = kernel.shape
    places = [((0, 0), (i, 1 - i), (j, 1 - j), (0, 0)) for i in range(2) for j in range(2)]
    four = jnp.concatenate([jnp.pad(kernel, place) for place in places])
    return four.reshape(4 * filters, 3, 2, 3, 2, channels).transpose(0, 1, 3, 2, 4, 5).reshape(4 * filters, -1)
