"""Convolutions whose kernels differ from client to client.

Under ``vmap`` a convolution with a kernel per client becomes a grouped convolution, which compilers compute slowly.
As slices and one matrix product it only gains an axis. :func:`with_fast_convolutions` replaces the convolutions in any
function by its own primitive, computed in whichever way is faster on the platform it is compiled for:

    kernels differ under vmap     slices and one matrix product; on a GPU, with many channels, kernels that need no
                                  copies of x (:mod:`pfedbred.models.convolution_kernels`)
    one kernel for all, on a GPU  lax.conv_general_dilated
    one client at a time, on CPU  whichever was faster when measured (:func:`_slices_on_cpu`): mostly XLA's own, with
                                  its axes in the order that is fast within loops (:meth:`_Convolution.ordered`)

A convolution y = x * k is linear in x and in k, so <y', x * k> defines three bilinear functions: y of (x, k), the
gradient x' of (y', k) and the gradient k' of (x, y'). Each transposes into the two others. The primitive covers all
three, distinguished by ``wanted``, so that it can be differentiated in both modes and any number of times.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from pfedbred.models import convolution_kernels
from pfedbred.types import Array

Function = TypeVar("Function", bound=Callable[..., Any])

_MOST_SLICES = 128  # of a kernel; enough for 11 x 11. More slices take long to compile.
_CACHED = 2**23  # bytes of slices that k' is computed from at a time on a CPU
_GIVEN = {"y": ("x", "k"), "x": ("y", "k"), "k": ("x", "y")}


class _Convolution(NamedTuple):
    """The parameters of a convolution, and the shapes of its input, kernel and output."""

    window_strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    dimension_numbers: lax.ConvDimensionNumbers
    feature_group_count: int
    precision: Any
    x: tuple[int, ...]
    k: tuple[int, ...]
    y: tuple[int, ...]

    @property
    def window(self) -> tuple[int, ...]:
        """The spatial shape of the kernel."""
        return tuple(self.k[axis] for axis in self.dimension_numbers.rhs_spec[2:])

    def by_lax(self, x: Array, kernel: Array) -> Array:
        """The compiler's own convolution."""
        return lax.conv_general_dilated(x, kernel, **dict(zip(self._fields[:7], self[:7], strict=True)))

    def ordered(self, wanted: str) -> _Convolution:
        """The same with its axes in the order of XLA's fast convolutions on a CPU: nhwc, hwio and nhwo.

        XLA (0.10) itself reorders the axes of a program's outermost convolutions only. Those within loops, as in a
        round, took 50 to 100 times as long where their axes were in another order. x' and k' are convolutions, too:
        of y' with the kernel, and of x with y', where channels take the place of samples.
        """
        n = len(self.window)
        space, inner = tuple(range(n)), tuple(range(1, n + 1))
        last = (0, n + 1, *inner)
        numbers = lax.ConvDimensionNumbers(
            *{
                "y": (last, (n + 1, n, *space), last),
                "x": (last, (n, n + 1, *space), last),
                "k": ((n + 1, 0, *inner), (n + 1, 0, *inner), (n, n + 1, *space)),
            }[wanted]
        )
        x, k, y = (
            tuple(shape[axis] for axis in _order(old, new))
            for shape, old, new in zip((self.x, self.k, self.y), self.dimension_numbers, numbers, strict=True)
        )
        return self._replace(dimension_numbers=numbers, x=x, k=k, y=y)

    def by_slices(self, x: Array, kernel: Array) -> Array:
        """One slice of x per element of the kernel's window, and the product of all slices with the kernel."""
        lhs, rhs, out = self.dimension_numbers
        groups, outputs = self.feature_group_count, self.k[rhs[0]]
        x = x.transpose(lhs[0], *lhs[2:], lhs[1])  # samples, window, channels
        dilated = [(*pads, by - 1) for pads, by in zip(self.padding, self.lhs_dilation, strict=True)]
        x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *dilated, (0, 0, 0)))
        channels = kernel.shape[rhs[1]]
        if groups == 1:
            first = rhs[0] == 0  # the outputs stay first or last in the kernel: moving them would copy it
            order = (rhs[0], *rhs[2:], rhs[1]) if first else (*rhs[2:], rhs[1], rhs[0])
            matrix = kernel.transpose(order).reshape((outputs, -1) if first else (-1, outputs))
            y = self._product(self._patches(x), matrix, (((x.ndim - 1,), (int(first),)), ((), ())))
            return self._with_axes_in_order(y)
        kernel = kernel.transpose(*rhs[2:], rhs[1], rhs[0])  # window, channels of a group, outputs
        if channels == 1:
            y = self._depthwise(x, kernel.reshape(-1, groups, outputs // groups))
        else:
            x = x.reshape(*x.shape[:-1], groups, channels)
            kernel = kernel.reshape(-1, groups, outputs // groups)
            axis = x.ndim - 2
            y = self._product(self._patches(x), kernel, (((axis + 1,), (0,)), ((axis,), (1,))))
            y = jnp.moveaxis(y, 0, -2)
        return self._with_axes_in_order(y.reshape(*y.shape[: len(out) - 1], outputs))

    def _with_axes_in_order(self, y: Array) -> Array:
        """y from samples, window, outputs."""
        out = self.dimension_numbers.out_spec
        return y.transpose(np.argsort((out[0], *out[2:], out[1])))

    def has_gpu_kernels(self, wanted: str, dtype: Any) -> bool:
        """Whether there are GPU kernels for this convolution that are faster than slices."""
        rhs = self.dimension_numbers.rhs_spec
        plain = self.feature_group_count == 1 and set(self.lhs_dilation) == {1}
        return plain and convolution_kernels.faster(
            wanted, (*self.window, self.k[rhs[1]], self.k[rhs[0]]), self.window_strides, dtype
        )

    def by_kernels(self, a: Array, b: Array, wanted: str) -> Array:
        """y, x' or k' by the GPU kernels."""
        lhs, rhs, out = self.dimension_numbers
        order = {"x": (lhs[0], *lhs[2:], lhs[1]), "k": (*rhs[2:], rhs[1], rhs[0]), "y": (out[0], *out[2:], out[1])}
        a, b = (each.transpose(order[name]) for each, name in zip((a, b), _GIVEN[wanted], strict=True))
        before = tuple(low for low, _ in self.padding)
        how: Any = (self._sides(wanted), self.window, self.window_strides, self.rhs_dilation, before, self.precision)
        found = convolution_kernels.compute(wanted, a, b, *how)
        return found.transpose(np.argsort(order[wanted]))

    def _product(self, patches: Array, kernel: Array, dimensions: lax.DotDimensionNumbers) -> Array:
        return lax.dot_general(patches, kernel, dimensions, precision=self.precision)

    def _depthwise(self, x: Array, kernel: Array) -> Array:
        """Every channel has its own kernels: one product per slice, summed, without copying the slices."""
        wide = jnp.promote_types(x.dtype, jnp.float32)  # as a matrix product, it does not round sums to bfloat16
        terms = (part[..., None].astype(wide) * each for part, each in zip(self._slices(x), kernel, strict=True))
        return functools.reduce(jnp.add, terms).astype(x.dtype)

    def _patches(self, x: Array) -> Array:
        """The slices side by side along the last axis."""
        if self.window_strides == self.window and set(self.rhs_dilation) == {1}:
            return self._tiles(x)
        return jnp.concatenate(self._slices(x), axis=-1)

    def _slices(self, x: Array) -> list[Array]:
        """What each element of the window is multiplied with, in the order of the window."""
        sides = self._sides()
        slices = []
        for place in itertools.product(*map(range, self.window)):
            start = [at * by for at, by in zip(place, self.rhs_dilation, strict=True)]
            stop = [at + (n - 1) * by + 1 for at, n, by in zip(start, sides, self.window_strides, strict=True)]
            cuts = tuple(slice(*cut) for cut in zip(start, stop, self.window_strides, strict=True))
            slices.append(x[:, *cuts])
        return slices

    def _tiles(self, x: Array) -> Array:
        """Windows that neither overlap nor leave gaps, as in the first layer of a vision transformer: no slices."""
        sides, n = self._sides(), len(self.window)
        x = x[:, *(slice(side * size) for side, size in zip(sides, self.window, strict=True))]
        split = itertools.chain.from_iterable(zip(sides, self.window, strict=True))
        rest = tuple(range(2 * n + 1, x.ndim + n))
        x = x.reshape(x.shape[0], *split, *x.shape[n + 1 :])
        groups = rest[:-1]
        x = x.transpose(0, *range(1, 2 * n, 2), *groups, *range(2, 2 * n + 1, 2), rest[-1])
        return x.reshape(*x.shape[: n + 1 + len(groups)], -1)

    def _sides(self, of: str = "y") -> tuple[int, ...]:
        """The spatial shape of the output, or of the input."""
        spec = self.dimension_numbers.lhs_spec if of == "x" else self.dimension_numbers.out_spec
        return tuple(getattr(self, of)[axis] for axis in spec[2:]) if of != "k" else self.window


def _order(old: Sequence[int], new: Sequence[int]) -> tuple[int, ...]:
    """The axes to transpose by, from one specification of a convolution's axes to another."""
    return tuple(axis for _, axis in sorted(zip(new, old, strict=True)))


def convolve(x: Array, kernel: Array, *args: Any, **options: Any) -> Array:
    """``lax.conv_general_dilated`` as slices and one matrix product: y[p, o] = sum_{q, c} x[s p + d q, c] k[q, c, o].

    s are the strides and d the dilation of the kernel; x is padded (and dilated) first. Arguments are those of
    ``lax.conv_general_dilated``; ``batch_group_count`` and types other than the inputs' are not supported.
    """
    traced = jax.make_jaxpr(lambda x, k: lax.conv_general_dilated(x, k, *args, **options))(x, kernel)
    equation = traced.eqns[-1]
    if equation.primitive is not core.primitives.conv_general_dilated_p or not _has_fast_form(equation):
        raise NotImplementedError("this convolution has no form as slices and one matrix product")
    return _convolution(equation).by_slices(x, kernel)


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
        return equation.replace(primitive=_convolve, params={"wanted": "y", "convolution": _convolution(equation)})
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
    convolution = _convolution(equation)
    tiled = convolution.window_strides == convolution.window
    few = tiled or math.prod(convolution.window) <= _MOST_SLICES
    return simple and real and few and 0 not in (*convolution.x, *convolution.k, *convolution.y)


def _convolution(equation: core.JaxprEqn) -> _Convolution:
    avals: list[Any] = [each.aval for each in (*equation.invars, *equation.outvars)]
    x, k, y = (each.shape for each in avals)
    return _Convolution(**{name: equation.params[name] for name in _Convolution._fields[:7]}, x=x, k=k, y=y)


# The primitive ------------------------------------------------------------------------------------------------------

_convolve = core.Primitive("convolve")


def _compute(conv: Callable[[Array, Array], Array], a: Array, b: Array, wanted: str, shape: tuple[int, ...]) -> Array:
    """y, x' or k' by any way to compute y."""
    if wanted == "y":
        return conv(a, b)
    unknown = jax.ShapeDtypeStruct(shape, a.dtype)
    if wanted == "x":
        return jax.linear_transpose(lambda x: conv(x, b), unknown)(a)[0]
    return jax.linear_transpose(lambda k: conv(a, k), unknown)(b)[0]


def _by_lax(a: Array, b: Array, *, wanted: str, convolution: _Convolution) -> Array:
    return _compute(convolution.by_lax, a, b, wanted, getattr(convolution, wanted))


def _by_slices(a: Array, b: Array, *, wanted: str, convolution: _Convolution) -> Array:
    return _compute(convolution.by_slices, a, b, wanted, getattr(convolution, wanted))


def _by_ordered_lax(a: Array, b: Array, *, wanted: str, convolution: _Convolution) -> Array:
    ordered = convolution.ordered(wanted)
    specs = dict(zip("xky", zip(convolution.dimension_numbers, ordered.dimension_numbers, strict=True), strict=True))
    a, b = (each.transpose(_order(*specs[name])) for each, name in zip((a, b), _GIVEN[wanted], strict=True))
    found = _by_lax(a, b, wanted=wanted, convolution=ordered)
    return found.transpose(_order(*reversed(specs[wanted])))


def _on_cpu(a: Array, b: Array, *, wanted: str, convolution: _Convolution) -> Array:
    way = _by_slices_on_cpu if _slices_on_cpu(wanted, convolution, a.dtype) else _by_ordered_lax
    return way(a, b, wanted=wanted, convolution=convolution)


def _by_slices_on_cpu(a: Array, b: Array, *, wanted: str, convolution: _Convolution) -> Array:
    """k' of a few samples at a time, so that their slices stay in the cache, and with the outputs as its first axis."""
    if wanted != "k":
        return _by_slices(a, b, wanted=wanted, convolution=convolution)
    numbers, n = convolution.dimension_numbers, len(convolution.window)
    samples, *axes = convolution.x[numbers.lhs_spec[0]], numbers.lhs_spec[0], numbers.out_spec[0]
    positions, channels = math.prod(convolution._sides()), convolution.x[numbers.lhs_spec[1]]
    most = _CACHED // (positions * math.prod(convolution.window) * channels * a.dtype.itemsize)
    size = max(each for each in range(1, samples + 1) if samples % each == 0 and each <= max(most, 1))
    order = _order(numbers.rhs_spec, (0, n + 1, *range(1, n + 1)))
    chunk = convolution._replace(
        dimension_numbers=numbers._replace(rhs_spec=(0, n + 1, *range(1, n + 1))),
        x=_replaced(convolution.x, axes[0], size),
        k=tuple(convolution.k[axis] for axis in order),
        y=_replaced(convolution.y, axes[1], size),
    )

    def of_chunk(begin: Array | int) -> Array:
        x, y = (lax.dynamic_slice_in_dim(each, begin, size, axis) for each, axis in zip((a, b), axes, strict=True))
        return _by_slices(x, y, wanted="k", convolution=chunk)

    if size == samples:
        found = of_chunk(0)
    else:
        nothing = jnp.zeros(chunk.k, a.dtype)
        found = lax.fori_loop(0, samples // size, lambda i, total: total + of_chunk(i * size), nothing)
    return found.transpose(np.argsort(order))


def _replaced(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _slices_on_cpu(wanted: str, convolution: _Convolution, dtype: Any) -> bool:
    """Whether slices are faster for one client on a CPU, as measured by ``benchmarks/convolution_layers.py``.

    XLA has fast convolutions of float32 alone, and none where channels are in groups. A 1x1 kernel is a matrix product.
    With few channels, as in images, the slices are cheap but for k'. XLA's own has to rearrange the kernel for y, and
    x for k': that takes long where the kernel is large beside y, and where x is large or has few positions and k many
    outputs.
    """
    outputs, channels = (convolution.k[axis] for axis in convolution.dimension_numbers.rhs_spec[:2])
    if dtype != jnp.float32 or convolution.feature_group_count > 1 or math.prod(convolution.window) == 1:
        return True
    if wanted == "k":
        return outputs >= 128 or (outputs >= 64 and math.prod(convolution.x) >= 2**20)
    return channels < 8 or (wanted == "y" and 2 * math.prod(convolution.k) >= math.prod(convolution.y))


def _transposed(
    place: int, cotangent: Array, a: Any, b: Any, *, wanted: str, convolution: _Convolution, primitive: Any = None
) -> Array:
    """The cotangent of the argument at that place."""
    names = _GIVEN[wanted]
    known = {wanted: cotangent, names[1 - place]: b if place == 0 else a}
    target = names[place]
    return (primitive or _convolve).bind(
        *(known[name] for name in _GIVEN[target]), wanted=target, convolution=convolution
    )


def _differentiated(values: Any, tangents: Any, *, wanted: str, convolution: _Convolution) -> tuple[Array, Any]:
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
    way: Callable[..., Array] = _by_lax if shared else _by_slices
    run = jax.vmap(lambda a, b: way(a, b, **params), axes)
    if shared:  # an outer vmap may have different kernels
        run = with_fast_convolutions(run)
    return run(*values), 0


def _abstract(a: Any, b: Any, *, wanted: str, convolution: _Convolution) -> Any:
    return jax.core.ShapedArray(getattr(convolution, wanted), a.dtype)


_convolve.def_impl(jax.jit(_convolve.bind, static_argnames=("wanted", "convolution")))
_convolve.def_abstract_eval(_abstract)
ad.defbilinear(_convolve, functools.partial(_transposed, 0), functools.partial(_transposed, 1))
ad.primitive_jvps[_convolve] = _differentiated
batching.primitive_batchers[_convolve] = _batched
mlir.register_lowering(_convolve, mlir.lower_fun(_by_lax, multiple_results=False))
mlir.register_lowering(_convolve, mlir.lower_fun(_on_cpu, multiple_results=False), platform="cpu")

# The same for many clients along the first axis, each with its own arguments. A primitive, since the platform is only
# known when the program is compiled.
_convolve_each = core.Primitive("convolve_each")


def _each_by_slices(a: Array, b: Array, **params: Any) -> Array:
    return jax.vmap(lambda a, b: _by_slices(a, b, **params))(a, b)


def _each_on_gpu(a: Array, b: Array, *, wanted: str, convolution: _Convolution) -> Array:
    if not (convolution_kernels.usable() and convolution.has_gpu_kernels(wanted, a.dtype)):
        return _each_by_slices(a, b, wanted=wanted, convolution=convolution)
    return jax.vmap(lambda a, b: convolution.by_kernels(a, b, wanted))(a, b)


def _each_abstract(a: Any, b: Any, *, wanted: str, convolution: _Convolution) -> Any:
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
