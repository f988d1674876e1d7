r"""Convolutions with a kernel per client as GPU kernels, which read x in place.

Slices and one matrix product (:mod:`pfedbred.models.convolution`) copy every number of x once for each element of the
window; from about 16 channels on, these copies take longer than the product. Here a program computes a tile of the
product and reads the rows of x that it needs, one element of the window after another. With q an element of the
window, s the stride, d the dilation and p the padding,

    y[n, i, o]  = sum_q sum_c x[n, s i + d q - p, c] k[q, c, o]
    x'[n, j, c] = sum_q sum_o y'[n, (j + p - d q) / s, o] k[q, c, o]      where that is a whole number
    k'[q, c, o] = sum_n sum_i x[n, s i + d q - p, c] y'[n, i, o]

The first two share one kernel (:func:`gathered`), reading at different places; the third is :func:`correlated`. The
kernels use Pallas's Triton backend, which JAX plans to remove: without it :func:`usable` is false, and slices are used.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.types import Array

try:
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    _IN_JAX = True
except ImportError:
    _IN_JAX = False

_TESTED = "9.0"  # compute capability of NVIDIA's H100 and H200
_SMALLEST = 16  # side of a product in Triton


class Tile(NamedTuple):
    """How a product is tiled: rows and columns of a program's tile, and how much of the sum it reads at once."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


class Reading(NamedTuple):
    """Where row i reads for element q of the window: (i stride + q step + shift) / by, if that is a whole number."""

    stride: tuple[int, int]
    step: tuple[int, int]
    shift: tuple[int, int]
    by: tuple[int, int]


def usable() -> bool:
    """Whether this machine's GPU can run the kernels."""
    return _IN_JAX and getattr(jax.devices()[0], "compute_capability", None) == _TESTED


def compute(
    wanted: str,
    a: Array,
    b: Array,
    sides: tuple[int, int],
    window: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int],
) -> Array:
    """y of (x, k), x' of (y', k) or k' of (x, y'); x and y are (n, height, width, channels), k is (*window, c, o).

    Args:
      wanted: which of the three to compute.
      a: the first of the two given.
      b: the second.
      sides: height and width of the result.
      window: the kernel's height and width.
      strides: s.
      dilation: d, of the kernel.
      padding: p, before the first row and column.
    """
    if a.dtype == jnp.float32:
        (a, one), (b, other) = _as_half(a), _as_half(b)
        return compute(wanted, a, b, sides, window, strides, dilation, padding) * one * other
    there = Reading(strides, dilation, (-padding[0], -padding[1]), (1, 1))
    back = Reading((1, 1), (-dilation[0], -dilation[1]), padding, strides)
    if wanted == "k":
        pixels = b.shape[0] * b.shape[1] * b.shape[2]
        found = correlated(a, b, window, there, *_cut_sum(pixels, a.shape[3], b.shape[3]))
        return found.reshape(*window, *found.shape[1:])
    kernel = b.reshape(-1, *b.shape[2:])
    kernel = kernel.transpose(0, 2, 1) if wanted == "y" else kernel
    read = there if wanted == "y" else back
    return gathered(a, kernel, sides, window, read, _cut(kernel.shape[1], kernel.shape[2]))


def _as_half(x: Array) -> tuple[Array, Array]:
    """x in half precision, scaled by a power of two so that its largest number is nearly as large as it can be.

    Half precision has the digits that GPUs keep of float32 in products, but not its range: numbers below 2^-29 of the
    largest lose digits, those below 2^-40 are lost. Also returns the factor that undoes the scaling.
    """
    exponent = jnp.maximum(jnp.frexp(jnp.max(jnp.abs(x)))[1], -111)  # so that no power of two is out of range
    return (x * jnp.ldexp(jnp.float32(1), 15 - exponent)).astype(jnp.float16), jnp.ldexp(jnp.float32(1), exponent - 15)


def faster(wanted: str, k: tuple[int, ...], strides: tuple[int, ...], dtype: Any, precision: Any = None) -> bool:
    """Whether the kernels are faster than slices, for a kernel of shape (*window, channels, outputs).

    As measured layer by layer on an H200 with 20 clients: 3x3 layers of ResNet-18 and ResNet-8 with 20 samples, the
    second layer of PFLlib's CNN with 10. Where this is true, the kernels took 0.2 to 1 of the time of slices; elsewhere
    mostly more: with more outputs, the copies they save matter less, and with strides, x' multiplies by zeros. Not for
    float32 whose products must not be rounded.
    """
    *window, channels, outputs = k
    if len(window) != 2 or min(window) == 1 or max(window) > 5 or min(channels, outputs) < _SMALLEST:
        return False
    if dtype != jnp.bfloat16 and not (dtype == jnp.float32 and _may_round(precision)):
        return False
    return (channels if wanted == "x" else outputs) <= 256 and not (wanted == "x" and max(strides) > 1)


def _may_round(precision: Any) -> bool:
    """Whether factors of float32 may be rounded, as GPUs do unless they are told not to."""
    return all(each in (None, jax.lax.Precision.DEFAULT) for each in jax.tree.leaves(precision))


def _cut(outputs: int, channels: int) -> Tile:
    """The tiles of y and x'."""
    return Tile(128, _side(outputs, 128), _side(channels, 64), 8, 3)


def _cut_sum(pixels: int, channels: int, outputs: int) -> tuple[Tile, int]:
    """The tiles of k', and the number of parts of its sum."""
    parts = min(4, max(1, pixels // 2560))
    if min(channels, outputs) < 128:
        return Tile(_side(channels, 64), _side(outputs, 64), 64, 4, 4), parts
    return Tile(128, 128, 64, 8, 3), parts


def _side(size: int, largest: int) -> int:
    """The side of a tile: a power of two, as Triton requires."""
    return min(largest, max(_SMALLEST, 1 << (size - 1).bit_length()))


def gathered(
    x: Array,
    kernel: Array,
    sides: tuple[int, int],
    window: tuple[int, int],
    read: Reading,
    tile: Tile,
) -> Array:
    """out[n, i, o] = sum_q sum_c x[n, read(i, q), c] kernel[q, o, c], of shape (n, *sides, o).

    Args:
      x: (n, height, width, channels).
      kernel: (elements of the window, outputs, channels).
      sides: height and width of the result.
      window: height and width of the window.
      read: where to read.
      tile: how to tile the product.
    """
    outputs = kernel.shape[1]
    rows = x.shape[0] * sides[0] * sides[1]
    call = pallas.pallas_call(
        partial(_gathered_kernel, x.shape, outputs, sides, window, read, tile),
        out_shape=jax.ShapeDtypeStruct((rows, outputs), _result(x.dtype)),
        grid=(pallas.cdiv(rows, tile.rows), pallas.cdiv(outputs, tile.columns)),
        interpret=jax.default_backend() == "cpu",
        compiler_params=triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
    )
    return call(x, kernel).reshape(x.shape[0], *sides, outputs)


def _wide(dtype: Any) -> Any:
    """The type of sums."""
    return jnp.promote_types(dtype, jnp.float32)


def _result(dtype: Any) -> Any:
    """The type of results: half precision stands for float32, and its range is too small for sums."""
    return jnp.float32 if dtype == jnp.float16 else dtype


def _split(number: Array, by: int) -> tuple[Array, Array]:
    """Quotient and remainder of numbers >= 0; Pallas cannot compile ``//`` and ``%`` by every constant."""
    if by == 1:
        return number, jnp.zeros_like(number)
    divisor = jnp.full(number.shape, by, number.dtype)
    return jax.lax.div(number, divisor), jax.lax.rem(number, divisor)


def _source(read: Reading, axis: int, place: Array, element: Any, size: int) -> tuple[Array, Array]:
    """Where to read along an axis, and whether there is anything to read."""
    at = place * read.stride[axis] + element * read.step[axis] + read.shift[axis]
    inside = (at >= 0) & (at < size * read.by[axis])
    if read.by[axis] == 1:
        return at, inside
    whole, rest = _split(jnp.maximum(at, 0), read.by[axis])
    return whole, inside & (rest == 0)


def _gathered_kernel(
    shape: tuple[int, ...],
    outputs: int,
    sides: tuple[int, int],
    window: tuple[int, int],
    read: Reading,
    tile: Tile,
    x: Any,
    kernel: Any,
    out: Any,
) -> None:
    samples, height, width, channels = shape
    rows = samples * sides[0] * sides[1]
    row = pallas.program_id(0) * tile.rows + jnp.arange(tile.rows)
    column = pallas.program_id(1) * tile.columns + jnp.arange(tile.columns)
    sample, place = _split(row, sides[0] * sides[1])
    vertical, horizontal = _split(place, sides[1])
    pieces = pallas.cdiv(channels, tile.depth)

    def step(number: Array, sums: Array) -> Array:
        element, piece = _split(number, pieces)
        down, across = _split(element, window[1])
        channel = piece * tile.depth + jnp.arange(tile.depth)
        i, above = _source(read, 0, vertical, down, height)
        j, beside = _source(read, 1, horizontal, across, width)
        mask = (above & beside & (row < rows))[:, None] & (channel < channels)[None]
        left = triton.load(x.at[sample[:, None], i[:, None], j[:, None], channel[None]], mask=mask, other=0)
        mask = (column < outputs)[:, None] & (channel < channels)[None]
        right = triton.load(kernel.at[element, column[:, None], channel[None]], mask=mask, other=0)
        return sums + jnp.dot(left, right.T, preferred_element_type=sums.dtype)

    start = jnp.zeros((tile.rows, tile.columns), _wide(out.dtype))
    sums = jax.lax.fori_loop(0, window[0] * window[1] * pieces, step, start)
    inside = (row < rows)[:, None] & (column < outputs)[None]
    triton.store(out.at[row[:, None], column[None]], sums.astype(out.dtype), mask=inside)


def correlated(x: Array, y: Array, window: tuple[int, int], read: Reading, tile: Tile, parts: int) -> Array:
    """out[q, c, o] = sum_n sum_i x[n, read(i, q), c] y[n, i, o], of shape (elements of the window, channels, outputs).

    The sum is split into ``parts``: one tile per element, with a long sum, would leave most of a GPU idle.
    """
    channels, elements, outputs = x.shape[3], window[0] * window[1], y.shape[3]
    across, along = pallas.cdiv(channels, tile.rows), pallas.cdiv(outputs, tile.columns)
    call = pallas.pallas_call(
        partial(_correlated_kernel, x.shape, (y.shape[1], y.shape[2]), outputs, window, read, tile, parts, across),
        out_shape=jax.ShapeDtypeStruct((parts, elements, channels, outputs), _wide(x.dtype)),
        grid=(elements * across, along, parts),
        interpret=jax.default_backend() == "cpu",
        compiler_params=triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
    )
    return jnp.sum(call(x, y.reshape(-1, outputs)), axis=0).astype(_result(x.dtype))


def _correlated_kernel(
    shape: tuple[int, ...],
    sides: tuple[int, int],
    outputs: int,
    window: tuple[int, int],
    read: Reading,
    tile: Tile,
    parts: int,
    across: int,
    x: Any,
    y: Any,
    out: Any,
) -> None:
    samples, height, width, channels = shape
    pixels = samples * sides[0] * sides[1]
    element, piece = _split(pallas.program_id(0), across)
    down, aside = _split(element, window[1])
    channel = piece * tile.rows + jnp.arange(tile.rows)
    column = pallas.program_id(1) * tile.columns + jnp.arange(tile.columns)
    part = pallas.program_id(2)
    steps = pallas.cdiv(pallas.cdiv(pixels, tile.depth), parts)

    def step(number: Array, sums: Array) -> Array:
        row = (part * steps + number) * tile.depth + jnp.arange(tile.depth)
        sample, place = _split(row, sides[0] * sides[1])
        vertical, horizontal = _split(place, sides[1])
        i, above = _source(read, 0, vertical, down, height)
        j, beside = _source(read, 1, horizontal, aside, width)
        inside = above & beside & (row < pixels)
        mask = inside[:, None] & (channel < channels)[None]
        left = triton.load(x.at[sample[:, None], i[:, None], j[:, None], channel[None]], mask=mask, other=0)
        mask = (row < pixels)[:, None] & (column < outputs)[None]
        right = triton.load(y.at[row[:, None], column[None]], mask=mask, other=0)
        return sums + jnp.dot(left.T, right, preferred_element_type=sums.dtype)

    start = jnp.zeros((tile.rows, tile.columns), out.dtype)
    sums = jax.lax.fori_loop(0, steps, step, start)
    inside = (channel < channels)[:, None] & (column < outputs)[None]
    triton.store(out.at[part, element, channel[:, None], column[None]], sums, mask=inside)
