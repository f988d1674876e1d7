"""Convolutions of one client at a time on a CPU, in whichever form was faster when measured."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from pfedbred.models.convolution_forms import Convolution, by_ordered_lax, by_slices, order_of_axes
from pfedbred.types import Array

_CACHED = 2**23  # bytes of slices that k' is computed from at a time


def compute(a: Array, b: Array, *, wanted: str, convolution: Convolution) -> Array:
    """y, x' or k'."""
    way = by_chunks if prefers_slices(wanted, convolution, a.dtype) else by_ordered_lax
    return way(a, b, wanted=wanted, convolution=convolution)


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


def prefers_slices(wanted: str, convolution: Convolution, dtype: Any) -> bool:
    """Whether slices are faster for one client on a CPU, as measured by ``benchmarks/convolution_layers.py``.

    XLA has fast convolutions of float32 alone, and none where channels are in groups. A 1x1 kernel is a matrix product.
    With few channels, as in images, the slices are cheap but for k'. XLA's own has to rearrange the kernel for y and
    x', and x for k': that takes long where the kernel is large beside y or x', and where x is large or has few
    positions and k many outputs.
    """
    outputs, channels = (convolution.k[axis] for axis in convolution.dimension_numbers.rhs_spec[:2])
    if dtype != jnp.float32 or convolution.feature_group_count > 1 or math.prod(convolution.window) == 1:
        return True
    if wanted == "k":
        return outputs >= 128 or (outputs >= 64 and math.prod(convolution.x) >= 2**20)
    result = convolution.y if wanted == "y" else convolution.x
    return channels < 8 or 2 * math.prod(convolution.k) >= math.prod(result)
