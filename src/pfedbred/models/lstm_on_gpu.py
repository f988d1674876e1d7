r"""An LSTM layer on a GPU: the recurrence as two kernels, all else as large matrix products.

With s_t = W_x x_t + b + W_h h_- the sums before sigma and tanh, and h_- the state at the previous word,

    before the kernels    p_t = W_x x_t + b
    after them            dW_x = sum_t ds_t x_t^T,    dW_h = sum_t ds_t h_-^T,    dx_t = W_x^T ds_t

Both are limited by memory. So float32 is stored, and multiplied, in half precision: its 11 digits are as many as GPUs
keep of float32 in products anyway. What half precision lacks is range, so whatever may be large or small is scaled by a
power of two, which rounds nothing: x, W_x, and the gradient that comes in. Where products must not be rounded
(``jax_default_matmul_precision``), and in float64, everything stays in the type of the params.

Second derivatives are those of :func:`pfedbred.models.lstm.scanned`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.models import lstm_kernels
from pfedbred.models.lstm import scanned
from pfedbred.models.lstm_kernels import WIDTH
from pfedbred.types import Array, Tree

_MULTIPLE = 8  # the width of x is filled up to it: 16 bytes in half precision
_HALVED = (0.5, 0.5, 1.0, 0.5)  # i, f and o are a tanh of half their sum (pfedbred.models.lstm_kernels)
_ROUNDING = (None, "default", "fastest", "tensorfloat32", "bfloat16")  # values of jax_default_matmul_precision


def usable(params: Tree) -> bool:
    """Whether this machine's GPU can run the kernels with params of this dtype and size."""
    return params["recurrent"].dtype == jnp.float32 and lstm_kernels.usable(params["recurrent"].shape[2])


@jax.custom_vjp
def layer(params: Tree, x: Array, length: Array, largest: Array) -> Array:
    """Both directions: maps x, (time, batch, inputs), given the samples' lengths, to (time, batch, 2 hidden).

    ``largest`` is a number of about the size of the largest in x: it decides how x is scaled.
    """
    return _outputs(params, x, length, largest)[0]


def _layer_forward(params: Tree, x: Array, length: Array, largest: Array) -> tuple[Array, Any]:
    out, kept = _outputs(params, x, length, largest)
    return out, (params, x, length, kept)


def _layer_backward(residuals: Any, d_out: Array) -> tuple[Tree, Array, None, None]:
    return *_gradients(*residuals, d_out), None, None


layer.defvjp(_layer_forward, _layer_backward)


class _Operands(NamedTuple):
    """What is multiplied: filled up with zeros, scaled, and rounded.

    Attributes:
      x: (time, batch, columns), with a column of ones for the biases.
      input: W_x and the biases, for both directions and the four parts: (8 WIDTH, columns).
      recurrent: W_h, (2, 4, WIDTH, WIDTH).
      scale: the power of two by which x is divided, and W_x multiplied.
    """

    x: Array
    input: Array
    recurrent: Array
    scale: Array


class _Kept(NamedTuple):
    """What the gradient needs of the forward pass: see :mod:`pfedbred.models.lstm_kernels`."""

    operands: _Operands
    products: Array
    out: Array
    cells: Array


@jax.custom_jvp
def _outputs(params: Tree, x: Array, length: Array, largest: Array) -> tuple[Array, _Kept]:
    """The layer's outputs, and what its gradient needs."""
    operands = _operands(params, x, largest)
    products = jnp.einsum("tbi,gi->tbg", operands.x, operands.input, preferred_element_type=operands.x.dtype)
    out, cells = lstm_kernels.forward(operands.recurrent, length, products)
    hidden = params["recurrent"].shape[2]
    own = jnp.concatenate([out[..., :hidden], out[..., WIDTH:][..., :hidden]], axis=2)
    return own.astype(x.dtype), _Kept(operands, products, out, cells)


@_outputs.defjvp
def _outputs_jvp(primals: Any, tangents: Any) -> Any:
    """The kept values are treated as constant: derivatives of the gradients come from their other inputs alone."""
    out, kept = _outputs(*primals)
    length = primals[2]
    _, d_out = jax.jvp(lambda params, x: scanned(params, x, length), primals[:2], tangents[:2])
    return (out, kept), (d_out, jax.tree.map(jnp.zeros_like, kept))


@jax.custom_jvp
def _gradients(params: Tree, x: Array, length: Array, kept: _Kept, d_out: Array) -> tuple[Tree, Array]:
    """The gradients with respect to the params and to x."""
    hidden, inputs = params["recurrent"].shape[2], x.shape[2]
    (operands, products, out, cells), columns = kept, kept.operands.x.shape[2]
    scale = _power_of_two(_exponent(jnp.max(jnp.abs(d_out))), d_out.dtype)
    both = [_filled(each, WIDTH, 2) for each in jnp.split(d_out / scale, 2, axis=2)]
    d_h = jnp.concatenate(both, axis=2).astype(out.dtype)
    d_sums = lstm_kernels.backward(operands.recurrent, length, products, out, cells, d_h)

    start = jnp.zeros_like(out[:1, :, :WIDTH])
    before = [jnp.concatenate([start, out[:-1, :, :WIDTH]]), jnp.concatenate([out[1:, :, WIDTH:], start])]
    d_all = _over_time(d_sums, jnp.concatenate([operands.x, *before], axis=2), d_out.dtype)
    d_all = d_all.reshape(2, 4, WIDTH, -1)[:, :, :hidden] * scale * _halved(d_out.dtype)
    d_all = d_all.reshape(2, 4 * hidden, -1)
    d_bias = d_all[:, :, inputs]
    d_params = {
        "input": d_all[:, :, :inputs] * operands.scale,
        "recurrent": jnp.stack([d_all[d, :, columns + d * WIDTH :][:, :hidden] for d in range(2)]),
        "input_bias": d_bias,
        "recurrent_bias": d_bias,
    }
    d_x = jnp.einsum("tbg,gi->tbi", d_sums, operands.input, preferred_element_type=d_out.dtype)
    return d_params, d_x[..., :inputs] * (scale / operands.scale)


@_gradients.defjvp
def _gradients_jvp(primals: Any, tangents: Any) -> Any:
    def pulled_back(params: Tree, x: Array, d_out: Array) -> tuple[Tree, Array]:
        return jax.vjp(lambda params, x: scanned(params, x, primals[2]), params, x)[1](d_out)

    differentiable = [0, 1, 4]
    _, change = jax.jvp(pulled_back, [primals[i] for i in differentiable], [tangents[i] for i in differentiable])
    return _gradients(*primals), change


def _operands(params: Tree, x: Array, largest: Array) -> _Operands:
    hidden, inputs = params["recurrent"].shape[2], x.shape[2]
    columns = -(-(inputs + 1) // _MULTIPLE) * _MULTIPLE
    dtype = jnp.float16 if x.dtype == jnp.float32 and _may_round() else x.dtype
    # Half precision must hold both factors and their product: both are made equally large, the product stays as it is.
    scale = _power_of_two((_exponent(largest) - _exponent(jnp.max(jnp.abs(params["input"])))) // 2, x.dtype)
    ones = jnp.ones((*x.shape[:2], 1), x.dtype)
    bias = (params["input_bias"] + params["recurrent_bias"])[:, :, None]
    both = jnp.concatenate([params["input"] * scale, bias], axis=2)
    wide = (_filled(each.reshape(2, 4, hidden, -1), WIDTH, 2) for each in (both, params["recurrent"]))
    input_, recurrent = (each * _halved(each.dtype) for each in wide)
    return _Operands(
        _filled(jnp.concatenate([x / scale, ones], axis=2), columns, 2).astype(dtype),
        _filled(input_, columns, 3).reshape(8 * WIDTH, columns).astype(dtype),
        _filled(recurrent, WIDTH, 3).astype(dtype),
        scale,
    )


def _may_round() -> bool:
    """Whether factors of float32 may be rounded, as GPUs do unless they are told not to."""
    return jax.config.jax_default_matmul_precision in _ROUNDING  # type: ignore[attr-defined]


def _halved(dtype: Any) -> Array:
    return jnp.asarray(_HALVED, dtype)[None, :, None, None]


def _exponent(largest: Array) -> Array:
    """That of the power of two above a number."""
    return jnp.clip(jnp.frexp(largest)[1], -100, 100)  # so that no power of two is out of range


def _power_of_two(exponent: Array, dtype: Any) -> Array:
    return jnp.ldexp(jnp.ones((), dtype), exponent)


def _filled(x: Array, width: int, axis: int) -> Array:
    """x with zeros along an axis up to that width."""
    return jnp.pad(x, [(0, width - size if place == axis else 0) for place, size in enumerate(x.shape)])


def _over_time(left: Array, right: Array, dtype: Any) -> Array:
    """The sum over time and batch of left^T right.

    Computed in up to eight parts: a single product has few tiles with a long sum each, which leaves most of a GPU idle.
    """
    time = left.shape[0]
    parts = max(k for k in range(1, 9) if time % k == 0)
    left, right = (each.reshape(parts, -1, each.shape[2]) for each in (left, right))
    return jnp.sum(jnp.einsum("pnl,pnr->plr", left, right, preferred_element_type=dtype), axis=0)
