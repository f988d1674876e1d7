"""What networks for images share: the shape of samples, convolutions, and convolutions with a norm."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax import lax

from pfedbred.errors import SettingError
from pfedbred.models.linear import uniform
from pfedbred.models.normalisation import NormaliseLayer, norm_init
from pfedbred.types import Array, Key, Tree


def sides_and_channels(model: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """(height, width, channels) of images with or without a channel axis; too small ones are rejected."""
    if len(shape) not in (2, 3) or min(shape[:2]) < smallest or min(shape) < 1:
        raise SettingError(
            f"{model} needs images of shape (height, width) or (height, width, channels), at least {smallest} by "
            f"{smallest}, not samples of shape {tuple(shape)}"
        )
    height, width, channels = (*shape, 1)[:3]
    return height, width, channels


def conv_init(key: Key, inputs: int, outputs: int, side: int, dtype: Any) -> Tree:
    """A convolution initialised as in PyTorch; its kernels have shape (outputs, height, width, inputs)."""
    weight_key, bias_key = jax.random.split(key)
    shape = (outputs, side, side, inputs)
    fan_in = math.prod(shape[1:])
    return {
        "weight": uniform(weight_key, shape, fan_in, dtype),
        "bias": uniform(bias_key, (outputs,), fan_in, dtype),
    }


def conv(x: Array, kernel: Array, stride: int = 1, padding: int = 0, groups: int = 1) -> Array:
    """The convolution of images (n, height, width, inputs) with kernels (outputs, height, width, inputs of a group)."""
    pads = [(padding, padding)] * 2
    layout = ("NHWC", "OHWI", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), pads, dimension_numbers=layout, feature_group_count=groups
    )


def unit_init(key: Key, inputs: int, outputs: int, side: int, dtype: Any, groups: int = 1) -> Tree:
    """A convolution without bias and its norm. Kernels are normal with variance 2 / fan-out.

    References: He, Zhang, Ren and Sun, "Delving Deep into Rectifiers", 2015.
    """
    deviation = math.sqrt(2 / (side * side * outputs // groups))
    weight = deviation * jax.random.normal(key, (outputs, side, side, inputs // groups), dtype)
    return {"weight": weight, "norm": norm_init(outputs, dtype)}


def unit(params: Tree, name: str, x: Array, stride: int, normalise: NormaliseLayer) -> Array:
    """norm(conv(x)), padded so that stride 1 keeps the sides; kernels with fewer channels than x are grouped."""
    kernel = params["weight"]
    y = conv(x, kernel, stride, padding=kernel.shape[1] // 2, groups=x.shape[-1] // kernel.shape[-1])
    return normalise(name, params["norm"], y)
