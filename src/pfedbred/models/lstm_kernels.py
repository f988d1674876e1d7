r"""The recurrence of an LSTM layer as two GPU kernels, one for the outputs and one for the gradient.

One word is too little work for a GPU, and each depends on the previous one. Here a program takes some samples of one
client through all words in one direction, keeping h and c in registers. With h_-, c_- the states at the previous word
in the direction of reading, and sigma(s) = 1/2 + 1/2 tanh(s/2), so that with the sums of i, f and o halved beforehand
all four gates come from a tanh of theirs:

    forward    T_t = tanh(p_t + W h_-),    c_t = sigma_f c_- + sigma_i T_g,    h_t = sigma_o tanh(c_t)
    backward   ds_t from dh_t and dc_t, last word first, with dh_- += W^T ds_t

p_t, the part that does not depend on the previous word, and the gradients of all matrices are left to large matrix
products (:mod:`pfedbred.models.lstm_on_gpu`). What limits the kernels is memory:

- Arrays are (time, batch, parts of h), with h filled up with zeros to WIDTH, so that every read and write is a whole
  line of 128 bytes in half precision.
- The backward kernel computes T again, which takes less time than to write and read it.
- What a step needs is read one step ahead. Otherwise one part after the other would wait for memory.
- A program stops at the end of its longest sample: on padding, outputs and gradients are zero. The model therefore
  sorts the samples of a minibatch by length.

The kernels use Pallas's Triton backend, which JAX plans to remove: without it :func:`usable` is false.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.types import Array

try:
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    _IN_JAX = True
except ImportError:
    _IN_JAX = False

WIDTH = 64
"""Entries of h, filled up with zeros."""

_ROWS, _WARPS = 16, 4  # samples and warps per program
_TESTED = "9.0"  # compute capability of NVIDIA's H100 and H200; other GPUs may lack the memory needed


def usable(hidden: int) -> bool:
    """Whether this machine's GPU can run the kernels with an h of this size."""
    capability = getattr(jax.devices()[0], "compute_capability", None)
    return _IN_JAX and capability == _TESTED and hidden <= WIDTH


def forward(recurrent: Array, length: Array, products: Array) -> tuple[Array, Array]:
    """h and c, from W of shape (2, 4, WIDTH, WIDTH), the lengths, and p."""
    return _run(_forward_kernel, recurrent, length, (2, 2), products)


def backward(recurrent: Array, length: Array, products: Array, out: Array, cells: Array, d_out: Array) -> Array:
    """ds, from W, the lengths, p, h, c, and the gradient with respect to h."""
    return _run(_backward_kernel, recurrent, length, (8,), products, out, cells, d_out)[0]


def _run(kernel: Callable[..., None], recurrent: Array, length: Array, parts: tuple[int, ...], *arrays: Array) -> Any:
    """Runs a kernel, whose results have so many parts of h."""
    time, batch = arrays[0].shape[:2]
    call = pallas.pallas_call(
        partial(kernel, time, batch),
        out_shape=[jax.ShapeDtypeStruct((time, batch, each * WIDTH), arrays[0].dtype) for each in parts],
        grid=(2, pallas.cdiv(batch, _ROWS)),
        interpret=_interpreted(),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
    )
    return call(recurrent, length, *arrays)


def _interpreted() -> bool:
    return jax.default_backend() == "cpu"


_Blocks = tuple[Array, ...]


def _forward_kernel(time: int, batch: int, recurrent: Any, length: Any, products: Any, out: Any, cells: Any) -> None:
    tile = _TileView(batch, recurrent, length)
    matrices = [tile.recurrent(part, transposed=True) for part in range(4)]
    first = tile.first(time)

    def read(number: Array) -> _Blocks:
        return tuple(tile.read(products, tile.time(number, time), place) for place in tile.gates())

    def step(number: Array, state: tuple[Array, Array, _Blocks]) -> tuple[Array, Array, _Blocks]:
        h, c, here = state
        ahead = read(jnp.minimum(number + 1, first + tile.longest - 1))
        t = tile.time(number, time)
        i, f, g, o = _gates(here, h, matrices)
        c = jnp.where((t < tile.length)[:, None], _sigma(f) * c + _sigma(i) * g, 0)
        h = (_sigma(o) * _tanh(c, out.dtype)).astype(out.dtype)
        tile.write(out, t, tile.direction, h)
        tile.write(cells, t, tile.direction, c)
        return h, c, ahead

    start = tile.zeros(out.dtype), tile.zeros(_sums(out.dtype)), read(jnp.minimum(first, time - 1))
    jax.lax.fori_loop(first, first + tile.longest, step, start)
    tile.pad(out, time, [tile.direction])


def _backward_kernel(
    time: int,
    batch: int,
    recurrent: Any,
    length: Any,
    products: Any,
    out: Any,
    cells: Any,
    d_out: Any,
    d_sums: Any,
) -> None:
    tile = _TileView(batch, recurrent, length)
    matrices = [tile.recurrent(part, transposed=True) for part in range(4)]
    transposed = [tile.recurrent(part, transposed=False) for part in range(4)]
    first = tile.first(time)

    def read(number: Array) -> _Blocks:
        t, before = (tile.time(each, time) for each in (number, jnp.maximum(number - 1, first)))
        blocks = [tile.read(products, t, place) for place in tile.gates()]
        others = [(out, before), (cells, before), (d_out, t)]
        return (*blocks, *(tile.read(array, when, tile.direction) for array, when in others))

    def step(number: Array, state: tuple[Array, Array, Array, _Blocks]) -> tuple[Array, Array, Array, _Blocks]:
        d_h, d_c, c, (*sums, h_before, c_before, d_here) = state
        place = first + tile.longest - 1 - number
        ahead = read(jnp.maximum(place - 1, first))
        t = tile.time(place, time)
        h_before = jnp.where(place > first, h_before, jnp.zeros_like(h_before))
        c_before = jnp.where(place > first, c_before.astype(c.dtype), 0)
        i, f, g, o = _gates(sums, h_before, matrices)
        squashed = _tanh(c, cells.dtype)
        d_h = d_h + d_here.astype(d_h.dtype)
        d_c = jnp.where((t < tile.length)[:, None], d_c + d_h * _sigma(o) * (1 - squashed * squashed), 0)
        d_gates = (
            d_c * g * _slope(i),
            d_c * c_before * _slope(f),
            d_c * _sigma(i) * (1 - g * g),
            d_h * squashed * _slope(o),
        )
        parts = [each.astype(d_sums.dtype) for each in d_gates]
        for gate, part in zip(tile.gates(), parts, strict=True):
            tile.write(d_sums, t, gate, part)
        d_h = sum((_dot(part, w) for part, w in zip(parts, transposed, strict=True)), tile.zeros(d_h.dtype))
        return d_h, d_c * _sigma(f), c_before, ahead

    zeros = tile.zeros(_sums(d_out.dtype))
    last = jnp.clip(first + tile.longest - 1, 0, time - 1)
    c = tile.read(cells, tile.time(last, time), tile.direction).astype(zeros.dtype)
    jax.lax.fori_loop(0, tile.longest, step, (zeros, zeros, c, read(last)))
    tile.pad(d_sums, time, tile.gates())


def _gates(products: Sequence[Array], h: Array, matrices: Sequence[Array]) -> list[Array]:
    """T of the four gates."""
    sums = [p.astype(_sums(p.dtype)) + _dot(h, w) for p, w in zip(products, matrices, strict=True)]
    return [_tanh(each, h.dtype) for each in sums]


def _sums(dtype: Any) -> Any:
    """The type of sums: float32 for half precision."""
    return jnp.promote_types(dtype, jnp.float32)


def _dot(a: Array, b: Array) -> Array:
    return jax.lax.dot(a, b, preferred_element_type=_sums(a.dtype))


def _tanh(x: Array, dtype: Any) -> Array:
    """In half precision the GPU's own tanh, whose relative error is 2^-11, half precision's rounding."""
    return jnp.tanh(x) if dtype != jnp.float16 or _interpreted() else triton.approx_tanh(x)


def _sigma(value: Array) -> Array:
    """sigma of a sum, from T, the tanh of its half."""
    return 0.5 * value + 0.5


def _slope(value: Array) -> Array:
    """The derivative of sigma of a sum with respect to its half, from T."""
    return 0.5 - 0.5 * value * value


class _TileView:
    """One program's view: some samples, one direction. Its blocks are (samples, WIDTH)."""

    def __init__(self, batch: int, recurrent: Any, length: Any) -> None:
        self.direction = pallas.program_id(0)
        self.samples = pallas.program_id(1) * _ROWS + jnp.arange(_ROWS)
        self.columns = jnp.arange(WIDTH)
        self.exists = (self.samples < batch)[:, None]
        self.length = triton.load(length.at[self.samples], mask=self.samples < batch, other=0)
        self.longest = jnp.max(self.length).astype(jnp.int32)
        self._recurrent = recurrent

    def zeros(self, dtype: Any) -> Array:
        """A block of zeros."""
        return jnp.zeros((_ROWS, WIDTH), dtype)

    def recurrent(self, part: int, *, transposed: bool) -> Array:
        """One of the four parts of W."""
        rows, columns = self.columns[:, None], self.columns[None]
        rows, columns = (columns, rows) if transposed else (rows, columns)
        return triton.load(self._recurrent.at[self.direction, part, rows, columns])

    def _at(self, array: Any, time: Array, part: Any) -> Any:
        return array.at[time, self.samples[:, None], part * WIDTH + self.columns[None]]

    def read(self, array: Any, time: Array, part: Any) -> Array:
        """The block at one word of an array of shape (time, batch, parts * WIDTH)."""
        return triton.load(self._at(array, time, part), mask=self.exists, other=0)

    def write(self, array: Any, time: Array, part: Any, block: Array) -> None:
        """Stores the block at one word of an array of shape (time, batch, parts * WIDTH)."""
        triton.store(self._at(array, time, part), block.astype(array.dtype), mask=self.exists)

    def first(self, steps: int) -> Array:
        """The first step that has a word: the backward direction reads padding first."""
        return jnp.where(self.direction == 0, 0, steps - self.longest)

    def pad(self, array: Any, steps: int, parts: Sequence[Any]) -> None:
        """Stores zeros where none of the samples has a word."""
        zeros = self.zeros(array.dtype)

        def store(t: Array, nothing: None) -> None:
            for part in parts:
                self.write(array, t, part, zeros)

        jax.lax.fori_loop(self.longest, steps, store, None)

    def time(self, step: Array, steps: int) -> Array:
        """The position of a step in the direction of reading."""
        return jnp.where(self.direction == 0, step, steps - 1 - step)

    def gates(self) -> list[Any]:
        """The indices of this direction's four parts."""
        return [4 * self.direction + part for part in range(4)]
