"""3x3 convolutions by Winograd's minimal filtering, F(2x2, 3x3), which no compiler that JAX uses on a CPU has.

A tile of 2 x 2 outputs takes 16 multiplications of its 4 x 4 inputs instead of 36. Summed over channels they are 16
matrix products of all tiles:

    y = A^T [(G k G^T) (B^T x B)] A, element by element in the brackets

    B^T = 1  0 -1  0      G = 1    0    0      A^T = 1  1  1  0
          0  1  1  0          1/2  1/2  1/2          0  1 -1 -1
          0 -1  1  0          1/2 -1/2  1/2
          0  1  0 -1          0    0    1

x' is the same of y' with the kernel reversed, and k' is the transpose in k. Transformed tiles take four times the
memory of x. Results differ from those of other forms by rounding, about 1e-6 of the largest value in float32.

Reference: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pfedbred.models.convolution_forms import GIVEN, Convolution
from pfedbred.types import Array


def has_form(convolution: Convolution) -> bool:
    """Whether a convolution is one of images with a 3x3 kernel, without strides, dilation or groups."""
    steps = {*convolution.window_strides, *convolution.lhs_dilation, *convolution.rhs_dilation}
    return convolution.window == (3, 3) and steps == {1} and convolution.feature_group_count == 1


def bytes_of_tiles(wanted: str, convolution: Convolution, itemsize: int) -> int:
    """The memory that the transformed tiles of its input take."""
    numbers = convolution.dimension_numbers
    shape, spec = (convolution.y, numbers.out_spec) if wanted == "x" else (convolution.x, numbers.lhs_spec)
    samples, channels = (shape[axis] for axis in spec[:2])
    return 16 * samples * channels * math.prod(_tiles(_sides(wanted, convolution))) * itemsize


def by_winograd(a: Array, b: Array, *, wanted: str, convolution: Convolution) -> Array:
    """y, x' or k'."""
    lhs, rhs, out = convolution.dimension_numbers
    outputs_last = rhs[1] < rhs[0]  # inputs and outputs keep their order in the kernel: swapping them would copy it
    order = {
        "x": (lhs[0], *lhs[2:], lhs[1]),
        "k": (*rhs[2:], *sorted(rhs[:2])),
        "y": (out[0], *out[2:], out[1]),
    }
    a, b = (each.transpose(order[name]) for each, name in zip((a, b), GIVEN[wanted], strict=True))
    before, sides = tuple(low for low, _ in convolution.padding), _sides(wanted, convolution)
    if wanted == "x":
        before, outputs_last = tuple(2 - low for low in before), not outputs_last
    filtered = functools.partial(
        _filtered, before=before, sides=sides, outputs_last=outputs_last, precision=convolution.precision
    )
    if wanted == "y":
        found = filtered(a, b)
    elif wanted == "x":
        found = filtered(a, b[::-1, ::-1])
    else:
        unknown = jax.ShapeDtypeStruct(tuple(convolution.k[axis] for axis in order["k"]), a.dtype)
        (found,) = jax.linear_transpose(lambda k: filtered(a, k), unknown)(b)
    return found.transpose(np.argsort(order[wanted]))


def _sides(wanted: str, convolution: Convolution) -> tuple[int, ...]:
    """The sides of what is filtered into: x' for itself, y for itself and for k'."""
    return convolution.sides("x" if wanted == "x" else "y")


def _tiles(sides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-side // 2) for side in sides)


def _filtered(
    x: Array, kernel: Array, *, before: tuple[int, ...], sides: tuple[int, ...], outputs_last: bool, precision: Any
) -> Array:
    """Outputs of those sides from x (samples, height, width, channels), with so many zeros before it."""
    samples, *inner, channels = x.shape
    tiles = _tiles(sides)
    pads = [(low, 2 * count + 2 - side - low, 0) for low, count, side in zip(before, tiles, inner, strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *pads, (0, 0, 0)])
    inputs = [[part.reshape(-1, channels) for part in _of_tiles(row, 2)] for row in _of_tiles(x, 1)]
    kernels = [_of_kernel(row) for row in _of_kernel(kernel)]
    summed = (((1,), (0 if outputs_last else 1,)), ((), ()))
    products = [
        [lax.dot_general(part, element, summed, precision=precision) for part, element in zip(*rows, strict=True)]
        for rows in zip(inputs, kernels, strict=True)
    ]
    columns = [_of_products(column) for column in zip(*map(_of_products, products), strict=True)]
    rows = [
        jnp.concatenate([part.reshape(samples, *tiles, 1, -1) for part in row], axis=3)
        for row in zip(*columns, strict=True)
    ]
    y = jnp.stack(lax.optimization_barrier(rows), axis=2)  # as one step, with the sums in it, it takes longer
    y = y.reshape(samples, *(2 * count for count in tiles), -1)
    return y[:, : sides[0], : sides[1]]


def _of_tiles(x: Array, axis: int) -> list[Array]:
    """B^T x along an axis, for tiles of four that overlap by two."""
    even, odd = (lax.slice_in_dim(x, first, None, 2, axis) for first in (0, 1))
    count = even.shape[axis] - 1
    a, b, c, d = (lax.slice_in_dim(each, i, i + count, 1, axis) for i in (0, 1) for each in (even, odd))
    return [a - c, b + c, c - b, b - d]


def _of_kernel(k: Array) -> list[Array]:
    """G k along the first axis."""
    ends, middle = (k[0] + k[2]) / 2, k[1] / 2
    return [k[0], ends + middle, ends - middle, k[2]]


def _of_products(m: Sequence[Array]) -> list[Array]:
    """A^T m."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]
