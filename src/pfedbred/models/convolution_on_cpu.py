"""Convolutions of one client at a time on a CPU, in whichever form was faster when measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from pfedbred.models import convolution_winograd as winograd
from pfedbred.models.convolution_forms import Convolution, by_ordered_lax, by_slices, order_of_axes
from pfedbred.types import Array

_CACHED = 2**23  # bytes of slices that k' is computed from at a time


def compute(a: Array, b: Array, *, wanted: str, convolution: Convolution) -> Array:
    """y, x' or k'."""
    return fastest(wanted, convolution, a.dtype)(a, b, wanted=wanted, convolution=convolution)


def by_chunks(a: Array, b: Array, *, wanted: str, convolution: Convolution) -> Array:
    """By slices: for k' of a few samples at a time, so that the slices stay in the cache."""
    if wanted != "k":
        return by_slices(a, b, wanted=wanted, convolution=convolution)
    numbers, n = convolution.dimension_numbers, len(convolution.window)
    samples, *axes = convolution.x[numbers.lhs_spec[0]], numbers.lhs_spec[0], numbers.out_spec[0]
    positions, channels = math.prod(convolution.sides()), convolution.x[numbers.lhs_spec[1]]
    most = _CACHED // (positions * math.prod(convolution.window) * channels * a.dtype.itemsize)
    size = max(each for each in range(1, samples + 1) if samples % each == 0 and each <= max(most, 1))
    order = order_of_axes(numbers.rhs_spec, (0, n + 1, *range(1, n + 1)))
    chunk = convolution._replace(
        dimension_numbers=numbers._replace(rhs_spec=(0, n + 1, *range(1, n + 1))),
        x=_replaced(convolution.x, axes[0], size),
        k=tuple(convolution.k[axis] for axis in order),
        y=_replaced(convolution.y, axes[1], size),
    )

    def of_chunk(begin: Array | int) -> Array:
        x, y = (lax.dynamic_slice_in_dim(each, begin, size, axis) for each, axis in zip((a, b), axes, strict=True))
        return by_slices(x, y, wanted="k", convolution=chunk)

    if size == samples:
        found = of_chunk(0)
    else:
        nothing = jnp.zeros(chunk.k, jnp.promote_types(a.dtype, jnp.float32))
        found = lax.fori_loop(0, samples // size, lambda i, total: total + of_chunk(i * size), nothing)
    return found.astype(a.dtype).transpose(np.argsort(order))


def _replaced(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def fastest(wanted: str, convolution: Convolution, dtype: Any) -> Callable[..., Array]:
    """The fastest form for one client on a CPU, as measured by ``benchmarks/convolution_layers.py``.

    XLA has fast convolutions of float32 alone, and none where channels are in groups. A 1x1 kernel is a matrix product.
    Winograd's form needs many channels, so that its products take longer than the sums before and after them, and
    tiles that stay in the cache. Its k' adds up over all positions, which takes long where these are many, and has to
    rearrange the kernel, which takes long where that is large. With few channels, as in images, slices are cheap but
    for k'. XLA's own form has to rearrange the kernel for y and x', and x for k': that takes long where the kernel is
    large beside y or x', and where x is large or has few positions and k many outputs.
    """
    outputs, channels = (convolution.k[axis] for axis in convolution.dimension_numbers.rhs_spec[:2])
    size = math.prod(convolution.k)
    if dtype != jnp.float32 or convolution.feature_group_count > 1 or math.prod(convolution.window) == 1:
        return by_chunks
    if winograd.has_form(convolution) and min(outputs, channels) >= 64:
        tiles = winograd.bytes_of_tiles(wanted, convolution, dtype.itemsize)
        if tiles <= 2**25 if wanted != "k" else tiles <= 2**24 and size <= 2**20:
            return winograd.by_winograd
    if wanted == "k":
        slices = outputs >= 128 or (outputs >= 64 and math.prod(convolution.x) >= 2**20)
    else:
        result = convolution.y if wanted == "y" else convolution.x
        slices = channels < 8 or 2 * size >= math.prod(result)
    return by_chunks if slices else by_ordered_lax
