"""Convolutions whose kernels differ from client to client.

Under ``vmap`` a convolution with a kernel per client becomes a grouped convolution, which compilers compute slowly.
As slices and one matrix product it only gains an axis. :func:`with_fast_convolutions` replaces the convolutions in any
function by its own primitive, computed in whichever way is faster on the platform it is compiled for:

    kernels differ under vmap     slices and one matrix product; on a GPU, with many channels, kernels that need no
                                  copies of x (:mod:`pfedbred.models.convolution_kernels`)
    one kernel for all, on a GPU  lax.conv_general_dilated
    one client at a time, on CPU  slices, XLA's own convolution with its axes in the order that is fast within loops,
                                  or Winograd's products (:mod:`pfedbred.models.convolution_on_cpu`)

The primitive covers the convolution and its two gradients, distinguished by ``wanted``, so that it can be
differentiated in both modes and any number of times (:mod:`pfedbred.models.convolution_forms`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from pfedbred.models import convolution_kernels, convolution_on_cpu
from pfedbred.models.convolution_forms import GIVEN, Convolution, by_lax, by_slices, of_equation
from pfedbred.types import Array

Function = TypeVar("Function", bound=Callable[..., Any])

_MOST_SLICES = 128  # of a kernel; enough for 11 x 11. More slices take long to compile.


def convolve(x: Array, kernel: Array, *args: Any, **options: Any) -> Array:
    """``lax.conv_general_dilated`` as slices and one matrix product: y[p, o] = sum_{q, c} x[s p + d q, c] k[q, c, o].

    s are the strides and d the dilation of the kernel; x is padded (and dilated) first. Arguments are those of
    ``lax.conv_general_dilated``; ``batch_group_count`` and types other than the inputs' are not supported.
    """
    traced = jax.make_jaxpr(lambda x, k: lax.conv_general_dilated(x, k, *args, **options))(x, kernel)
    equation = traced.eqns[-1]
    if equation.primitive is not core.primitives.conv_general_dilated_p or not _has_fast_form(equation):
        raise NotImplementedError("this convolution has no form as slices and one matrix product")
    return of_equation(equation).y_by_slices(x, kernel)


def with_fast_convolutions(function: Function) -> Function:
    """The same function of arrays, with convolutions that are fast if kernels differ between clients.

    Convolutions without a fast form run as before: batch groups, very large kernels, outputs of another type than the
    inputs', and derivatives that the function defines itself.
    """

    if hasattr(function, "_has_fast_convolutions"):
        return function

    @functools.wraps(function)
    def fast(*args: Any) -> Any:
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        leaves = core.jaxpr_as_fun(_rewritten(traced))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    fast._has_fast_convolutions = True  # type: ignore[attr-defined]
    return fast  # type: ignore[return-value]


def _rewritten(value: Any) -> Any:
    """A program with its convolutions replaced, also in nested programs; the same object if there are none."""
    if isinstance(value, core.Jaxpr):  # checked first: from JAX 0.12 on, a ClosedJaxpr is one too
        equations = [_rewritten_equation(each) for each in value.eqns]
        same = all(new is old for new, old in zip(equations, value.eqns, strict=True))
        return value if same else value.replace(eqns=equations)
    if isinstance(value, core.ClosedJaxpr):
        inner = _rewritten(value.jaxpr)
        return value if inner is value.jaxpr else value.replace(jaxpr=inner)
    if type(value) in (tuple, list):  # such as the branches of a cond
        parts = [_rewritten(each) for each in value]
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else type(value)(parts)
    return value


def _rewritten_equation(equation: core.JaxprEqn) -> core.JaxprEqn:
    if equation.primitive is core.primitives.conv_general_dilated_p:
        if not _has_fast_form(equation):
            return equation
        return equation.replace(primitive=_convolve, params={"wanted": "y", "convolution": of_equation(equation)})
    params = {name: _rewritten(value) for name, value in equation.params.items()}
    if all(params[name] is value for name, value in equation.params.items()):
        return equation
    return equation.replace(params=params)


def _has_fast_form(equation: core.JaxprEqn) -> bool:
    params = equation.params
    avals: list[Any] = [each.aval for each in (*equation.invars, *equation.outvars)]
    types = {each.dtype for each in avals}
    simple = params["batch_group_count"] == 1 and params.get("out_sharding") is None
    real = len(types) == 1 and all(jnp.issubdtype(dtype, jnp.floating) for dtype in types)
    convolution = of_equation(equation)
    tiled = convolution.window_strides == convolution.window
    few = tiled or math.prod(convolution.window) <= _MOST_SLICES
    return simple and real and few and 0 not in (*convolution.x, *convolution.k, *convolution.y)


# The primitive ------------------------------------------------------------------------------------------------------

_convolve = core.Primitive("convolve")


def _transposed(
    place: int, cotangent: Array, a: Any, b: Any, *, wanted: str, convolution: Convolution, primitive: Any = None
) -> Array:
    """The cotangent of the argument at that place."""
    names = GIVEN[wanted]
    known = {wanted: cotangent, names[1 - place]: b if place == 0 else a}
    target = names[place]
    return (primitive or _convolve).bind(
        *(known[name] for name in GIVEN[target]), wanted=target, convolution=convolution
    )


def _differentiated(values: Any, tangents: Any, *, wanted: str, convolution: Convolution) -> tuple[Array, Any]:
    """The value, and its tangent: the sum of each argument's contribution."""
    bind = functools.partial(_convolve.bind, wanted=wanted)
    (a, b), (da, db) = values, tangents
    tangent = ad.Zero(_abstract(a, b, wanted=wanted, convolution=convolution).to_tangent_aval())
    if not isinstance(da, ad.Zero):
        tangent = ad.add_tangents(tangent, bind(da, b, convolution=convolution))
    if not isinstance(db, ad.Zero):
        tangent = ad.add_tangents(tangent, bind(a, db, convolution=convolution))
    return bind(a, b, convolution=convolution), tangent


def _batched(values: tuple[Array, Array], axes: tuple[Any, Any], **params: Any) -> tuple[Array, int]:
    """Slices or GPU kernels if k or k' differs. One k for many inputs is the same as one for a larger batch."""
    if None not in axes:
        a, b = (jnp.moveaxis(each, axis, 0) for each, axis in zip(values, axes, strict=True))
        return _convolve_each.bind(a, b, **params), 0
    shared = params["wanted"] != "k" and axes[1] is None
    way: Callable[..., Array] = by_lax if shared else by_slices
    run = jax.vmap(lambda a, b: way(a, b, **params), axes)
    if shared:  # an outer vmap may have different kernels
        run = with_fast_convolutions(run)
    return run(*values), 0


def _abstract(a: Any, b: Any, *, wanted: str, convolution: Convolution) -> Any:
    return jax.core.ShapedArray(getattr(convolution, wanted), a.dtype)


_convolve.def_impl(jax.jit(_convolve.bind, static_argnames=("wanted", "convolution")))
_convolve.def_abstract_eval(_abstract)
ad.defbilinear(_convolve, functools.partial(_transposed, 0), functools.partial(_transposed, 1))
ad.primitive_jvps[_convolve] = _differentiated
batching.primitive_batchers[_convolve] = _batched
mlir.register_lowering(_convolve, mlir.lower_fun(by_lax, multiple_results=False))
mlir.register_lowering(_convolve, mlir.lower_fun(convolution_on_cpu.compute, multiple_results=False), platform="cpu")

# The same for many clients along the first axis, each with its own arguments. A primitive, since the platform is only
# known when the program is compiled.
_convolve_each = core.Primitive("convolve_each")


def _each_by_slices(a: Array, b: Array, **params: Any) -> Array:
    return jax.vmap(lambda a, b: by_slices(a, b, **params))(a, b)


def _each_on_gpu(a: Array, b: Array, *, wanted: str, convolution: Convolution) -> Array:
    if not (convolution_kernels.usable() and convolution.has_gpu_kernels(wanted, a.dtype)):
        return _each_by_slices(a, b, wanted=wanted, convolution=convolution)
    return jax.vmap(lambda a, b: convolution.by_kernels(a, b, wanted))(a, b)


def _each_abstract(a: Any, b: Any, *, wanted: str, convolution: Convolution) -> Any:
    return jax.core.ShapedArray((a.shape[0], *getattr(convolution, wanted)), a.dtype)


def _each_batched(values: tuple[Array, Array], axes: tuple[Any, Any], **params: Any) -> tuple[Array, int]:
    """Another axis of clients: merged with the first."""
    size = next(each.shape[axis] for each, axis in zip(values, axes, strict=True) if axis is not None)
    a, b = (
        jnp.broadcast_to(each, (size, *each.shape)) if axis is None else jnp.moveaxis(each, axis, 0)
        for each, axis in zip(values, axes, strict=True)
    )
    found = _convolve_each.bind(*(each.reshape(-1, *each.shape[2:]) for each in (a, b)), **params)
    return found.reshape(size, -1, *found.shape[1:]), 0


_convolve_each.def_impl(jax.jit(_convolve_each.bind, static_argnames=("wanted", "convolution")))
_convolve_each.def_abstract_eval(_each_abstract)
ad.defbilinear(
    _convolve_each,
    functools.partial(_transposed, 0, primitive=_convolve_each),
    functools.partial(_transposed, 1, primitive=_convolve_each),
)
batching.primitive_batchers[_convolve_each] = _each_batched
mlir.register_lowering(_convolve_each, mlir.lower_fun(_each_by_slices, multiple_results=False))
mlir.register_lowering(_convolve_each, mlir.lower_fun(_each_on_gpu, multiple_results=False), platform="cuda")
