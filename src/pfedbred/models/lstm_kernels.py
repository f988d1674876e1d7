r"""An LSTM layer as two GPU kernels, one for its outputs and one for the gradient.

One word is too little work for a GPU, and each depends on the previous one. Here a program takes some samples of one
client through all words in one direction, keeping h and c in registers. Whatever does not depend on the previous word
is left to large matrix products. With s_t = (i, f, g, o) the sums before sigma and tanh, d the gradient of the loss,
and h_-, c_- the states at the previous word in the direction of reading:

    forward    s_t = W_x x_t + b + W_h h_-,    c_t = sigma(f) c_- + sigma(i) tanh(g),    h_t = sigma(o) tanh(c_t)
    backward   ds_t from dh_t and dc_t, last word first, with dh_- += W_h^T ds_t
    products   W_x x_t before;  dW_x = sum_t ds_t x_t^T,  dW_h = sum_t ds_t h_-^T,  dx_t = W_x^T ds_t  after

A program stops at the end of its longest sample: on padding, outputs and gradients are zero. The model therefore sorts
the samples of a minibatch by length.

Second derivatives are those of :func:`pfedbred.models.lstm.scanned`. The kernels use Pallas's Triton
backend, which JAX plans to remove: without it :func:`usable` is false, and the scan is used instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.models.lstm import scanned
from pfedbred.types import Array, Tree

try:
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    _IN_JAX = True
except ImportError:
    _IN_JAX = False

_ROWS = 32  # samples per program
_WIDEST = 64  # largest h for which the four parts of W_h fit into registers
_TESTED = "9.0"  # compute capability of NVIDIA's H100 and H200; other GPUs may lack the memory needed


def usable(params: Tree) -> bool:
    """Whether this machine's GPU can run the kernels with params of this dtype and size."""
    recurrent, capability = params["recurrent"], getattr(jax.devices()[0], "compute_capability", None)
    return _IN_JAX and capability == _TESTED and recurrent.dtype == jnp.float32 and recurrent.shape[2] <= _WIDEST


@jax.custom_vjp
def layer(params: Tree, x: Array, length: Array) -> Array:
    """Both directions: maps x, (time, batch, inputs), given the samples' lengths, to (time, batch, 2 hidden)."""
    return _run(_forward_kernel, params, length, (2,), _products(params, x), _bias(params))[0]


def _layer_forward(params: Tree, x: Array, length: Array) -> tuple[Array, Any]:
    out, kept = _outputs(params, x, length)
    return out, (params, x, length, out, kept)


def _layer_backward(residuals: Any, d_out: Array) -> tuple[Tree, Array, None]:
    return *_gradients(*residuals, d_out), None


layer.defvjp(_layer_forward, _layer_backward)


@jax.custom_jvp
def _outputs(params: Tree, x: Array, length: Array) -> tuple[Array, tuple[Array, Array]]:
    """The layer's outputs, and what its gradient needs: the gates and c."""
    out, gates, c = _run(_forward_kernel, params, length, (2, 8, 2), _products(params, x), _bias(params))
    return out, (gates, c)


@_outputs.defjvp
def _outputs_jvp(primals: Any, tangents: Any) -> Any:
    """The kept values are treated as constant: derivatives of the gradients come from their other inputs alone."""
    out, kept = _outputs(*primals)
    length = primals[2]
    _, d_out = jax.jvp(lambda params, x: scanned(params, x, length), primals[:2], tangents[:2])
    return (out, kept), (d_out, jax.tree.map(jnp.zeros_like, kept))


@jax.custom_jvp
def _gradients(params: Tree, x: Array, length: Array, out: Array, kept: Any, d_out: Array) -> tuple[Tree, Array]:
    """The gradients with respect to the params and to x."""
    hidden, inputs = params["recurrent"].shape[2], x.shape[2]
    (d_sums,) = _run(_backward_kernel, params, length, (8,), d_out, *kept)
    start = jnp.zeros_like(out[:1, :, :hidden])
    before = [jnp.concatenate([start, out[:-1, :, :hidden]]), jnp.concatenate([out[1:, :, hidden:], start])]
    # A column of ones for the biases, repeated to pad rows to a multiple of 16.
    ones = jnp.ones((*x.shape[:2], -(inputs + 2 * hidden) % 16 or 16), x.dtype)
    d_all = _over_time(d_sums, jnp.concatenate([x, *before, ones], axis=2)).reshape(2, 4 * hidden, -1)
    d_bias = d_all[:, :, -1]
    d_recurrent = [d_all[d, :, inputs + d * hidden : inputs + (d + 1) * hidden] for d in range(2)]
    d_params = {
        "input": d_all[:, :, :inputs],
        "recurrent": jnp.stack(d_recurrent),
        "input_bias": d_bias,
        "recurrent_bias": d_bias,
    }
    return d_params, d_sums @ params["input"].reshape(8 * hidden, inputs)


@_gradients.defjvp
def _gradients_jvp(primals: Any, tangents: Any) -> Any:
    def pulled_back(params: Tree, x: Array, d_out: Array) -> tuple[Tree, Array]:
        return jax.vjp(lambda params, x: scanned(params, x, primals[2]), params, x)[1](d_out)

    differentiable = [0, 1, 5]
    _, change = jax.jvp(pulled_back, [primals[i] for i in differentiable], [tangents[i] for i in differentiable])
    return _gradients(*primals), change


def _products(params: Tree, x: Array) -> Array:
    """W_x x for all words, both directions and the four parts: (time, batch, 8 hidden)."""
    return x @ params["input"].reshape(-1, x.shape[2]).T


def _bias(params: Tree) -> Array:
    return (params["input_bias"] + params["recurrent_bias"]).reshape(-1)


def _over_time(left: Array, right: Array) -> Array:
    """The sum over time and batch of left^T right.

    Computed in up to eight parts: a single product has few tiles with a long sum each, which leaves most of a GPU idle.
    """
    time = left.shape[0]
    parts = max(k for k in range(1, 9) if time % k == 0)
    left, right = (each.reshape(parts, -1, each.shape[2]) for each in (left, right))
    return jnp.sum(left.mT @ right, axis=0)


def _run(kernel: Callable[..., None], params: Tree, length: Array, widths: tuple[int, ...], *arrays: Array) -> Any:
    """Runs a kernel on W_h, the lengths and some arrays; its results have shape (time, batch, width hidden)."""
    hidden = params["recurrent"].shape[2]
    recurrent = params["recurrent"].reshape(2, 4, hidden, hidden)
    time, batch = arrays[0].shape[:2]
    shapes = [jax.ShapeDtypeStruct((time, batch, width * hidden), arrays[0].dtype) for width in widths]
    call = pallas.pallas_call(
        partial(kernel, time, batch, hidden),
        out_shape=shapes,
        grid=(2, pallas.cdiv(batch, _ROWS)),
        interpret=jax.default_backend() == "cpu",
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
    )
    return call(recurrent, length, *arrays)


class _TileView:
    """One program's view: some samples, one direction.

    Its blocks are (samples, hidden), padded with zeros to powers of two, as Triton requires.
    """

    def __init__(self, batch: int, hidden: int, recurrent: Any, length: Any) -> None:
        self.direction = pallas.program_id(0)
        self.hidden = hidden
        self.samples = pallas.program_id(1) * _ROWS + jnp.arange(_ROWS)
        self.columns = jnp.arange(max(16, 1 << (hidden - 1).bit_length()))
        self.inside = (self.samples < batch)[:, None] & (self.columns < hidden)[None]
        self.length = triton.load(length.at[self.samples], mask=self.samples < batch, other=0)
        self.longest = jnp.max(self.length).astype(jnp.int32)
        self._recurrent = recurrent

    def zeros(self, dtype: Any) -> Array:
        """A block of zeros."""
        return jnp.zeros(self.inside.shape, dtype)

    def recurrent(self, part: int, *, transposed: bool) -> Array:
        """One of the four parts of W_h."""
        rows, columns = self.columns[:, None], self.columns[None]
        mask = (rows < self.hidden) & (columns < self.hidden)
        rows, columns = (columns, rows) if transposed else (rows, columns)
        return triton.load(self._recurrent.at[self.direction, part, rows, columns], mask=mask, other=0)

    def row(self, bias: Any, part: int) -> Array:
        """This direction's slice for one part, from a vector of 8 hidden entries."""
        place = (4 * self.direction + part) * self.hidden + self.columns
        return triton.load(bias.at[place], mask=self.columns < self.hidden, other=0)[None]

    def _at(self, array: Any, time: Array, part: Any) -> Any:
        return array.at[time, self.samples[:, None], part * self.hidden + self.columns[None]]

    def read(self, array: Any, time: Array, part: Any) -> Array:
        """The block at one word of an array of shape (time, batch, parts * hidden)."""
        return triton.load(self._at(array, time, part), mask=self.inside, other=0)

    def write(self, array: Any, time: Array, part: Any, block: Array) -> None:
        """Stores the block at one word of an array of shape (time, batch, parts * hidden)."""
        triton.store(self._at(array, time, part), block, mask=self.inside)

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


def _forward_kernel(time: int, batch: int, hidden: int, recurrent: Any, length: Any, *arrays: Any) -> None:
    products, bias, out, *kept = arrays
    tile = _TileView(batch, hidden, recurrent, length)
    kernels = [tile.recurrent(part, transposed=True) for part in range(4)]
    biases = [tile.row(bias, part) for part in range(4)]

    def step(number: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        h, c = state
        t = tile.time(number, time)
        parts = zip(tile.gates(), biases, kernels, strict=True)
        i, f, g, o = (tile.read(products, t, place) + b + h @ kernel for place, b, kernel in parts)
        gates = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
        i, f, g, o = gates
        c = jnp.where((t < tile.length)[:, None] & tile.inside, f * c + i * g, 0)
        h = o * jnp.tanh(c)
        tile.write(out, t, tile.direction, h)
        if kept:
            for place, gate in zip(tile.gates(), gates, strict=True):
                tile.write(kept[0], t, place, gate)
            tile.write(kept[1], t, tile.direction, c)
        return h, c

    start, first = tile.zeros(products.dtype), tile.first(time)
    jax.lax.fori_loop(first, first + tile.longest, step, (start, start))
    tile.pad(out, time, [tile.direction])


def _backward_kernel(time: int, batch: int, hidden: int, recurrent: Any, length: Any, *arrays: Any) -> None:
    d_out, gates, cells, d_sums = arrays
    tile = _TileView(batch, hidden, recurrent, length)
    kernels = [tile.recurrent(part, transposed=False) for part in range(4)]
    first = tile.first(time)

    def step(number: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        d_h, d_c = state
        steps_before = first + tile.longest - 1 - number
        t = tile.time(steps_before, time)
        i, f, g, o = (tile.read(gates, t, place) for place in tile.gates())
        squashed = jnp.tanh(tile.read(cells, t, tile.direction))
        earlier = tile.read(cells, tile.time(jnp.maximum(steps_before - 1, first), time), tile.direction)
        c_before = jnp.where(steps_before > first, earlier, 0)
        d_h = d_h + tile.read(d_out, t, tile.direction)
        d_c = jnp.where((t < tile.length)[:, None], d_c + d_h * o * (1 - squashed**2), 0)
        d_parts = (
            d_c * g * i * (1 - i),
            d_c * c_before * f * (1 - f),
            d_c * i * (1 - g**2),
            d_h * squashed * o * (1 - o),
        )
        for place, part in zip(tile.gates(), d_parts, strict=True):
            tile.write(d_sums, t, place, part)
        d_h = sum((part @ kernel for part, kernel in zip(d_parts, kernels, strict=True)), tile.zeros(d_out.dtype))
        return d_h, d_c * f

    start = tile.zeros(d_out.dtype)
    jax.lax.fori_loop(0, tile.longest, step, (start, start))
    tile.pad(d_sums, time, tile.gates())
