"""A convolution with given shapes, and the forms in which it is computed.

A convolution y = x * k is linear in x and in k, so <y', x * k> defines three bilinear functions: y of (x, k), the
gradient x' of (y', k) and the gradient k' of (x, y'). Each transposes into the two others. :data:`GIVEN` names what
each is computed from; :func:`by_lax`, :func:`by_slices` and :func:`by_ordered_lax` compute whichever is wanted.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from pfedbred.models import convolution_kernels
from pfedbred.types import Array

GIVEN = {"y": ("x", "k"), "x": ("y", "k"), "k": ("x", "y")}


class Convolution(NamedTuple):
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

    def y_by_lax(self, x: Array, kernel: Array) -> Array:
        """The compiler's own convolution."""
        return lax.conv_general_dilated(x, kernel, **dict(zip(self._fields[:7], self[:7], strict=True)))

    def ordered(self, wanted: str) -> Convolution:
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
            tuple(shape[axis] for axis in order_of_axes(old, new))
            for shape, old, new in zip((self.x, self.k, self.y), self.dimension_numbers, numbers, strict=True)
        )
        return self._replace(dimension_numbers=numbers, x=x, k=k, y=y)

    def y_by_slices(self, x: Array, kernel: Array) -> Array:
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
            wanted, (*self.window, self.k[rhs[1]], self.k[rhs[0]]), self.window_strides, dtype, self.precision
        )

    def by_kernels(self, a: Array, b: Array, wanted: str) -> Array:
        """y, x' or k' by the GPU kernels."""
        lhs, rhs, out = self.dimension_numbers
        order = {"x": (lhs[0], *lhs[2:], lhs[1]), "k": (*rhs[2:], rhs[1], rhs[0]), "y": (out[0], *out[2:], out[1])}
        a, b = (each.transpose(order[name]) for each, name in zip((a, b), GIVEN[wanted], strict=True))
        before = tuple(low for low, _ in self.padding)
        how: Any = (self.sides(wanted), self.window, self.window_strides, self.rhs_dilation, before)
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
        sides = self.sides()
        slices = []
        for place in itertools.product(*map(range, self.window)):
            start = [at * by for at, by in zip(place, self.rhs_dilation, strict=True)]
            stop = [at + (n - 1) * by + 1 for at, n, by in zip(start, sides, self.window_strides, strict=True)]
            cuts = tuple(slice(*cut) for cut in zip(start, stop, self.window_strides, strict=True))
            slices.append(x[:, *cuts])
        return slices

    def _tiles(self, x: Array) -> Array:
        """Windows that neither overlap nor leave gaps, as in the first layer of a vision transformer: no slices."""
        sides, n = self.sides(), len(self.window)
        x = x[:, *(slice(side * size) for side, size in zip(sides, self.window, strict=True))]
        split = itertools.chain.from_iterable(zip(sides, self.window, strict=True))
        rest = tuple(range(2 * n + 1, x.ndim + n))
        x = x.reshape(x.shape[0], *split, *x.shape[n + 1 :])
        groups = rest[:-1]
        x = x.transpose(0, *range(1, 2 * n, 2), *groups, *range(2, 2 * n + 1, 2), rest[-1])
        return x.reshape(*x.shape[: n + 1 + len(groups)], -1)

    def sides(self, of: str = "y") -> tuple[int, ...]:
        """The spatial shape of the output, or of the input."""
        spec = self.dimension_numbers.lhs_spec if of == "x" else self.dimension_numbers.out_spec
        return tuple(getattr(self, of)[axis] for axis in spec[2:]) if of != "k" else self.window


def of_equation(equation: core.JaxprEqn) -> Convolution:
    """The convolution of an equation of a traced program."""
    avals: list[Any] = [each.aval for each in (*equation.invars, *equation.outvars)]
    x, k, y = (each.shape for each in avals)
    return Convolution(**{name: equation.params[name] for name in Convolution._fields[:7]}, x=x, k=k, y=y)


def order_of_axes(old: Sequence[int], new: Sequence[int]) -> tuple[int, ...]:
    """The axes to transpose by, from one specification of a convolution's axes to another."""
    return tuple(axis for _, axis in sorted(zip(new, old, strict=True)))


def _compute(conv: Callable[[Array, Array], Array], a: Array, b: Array, wanted: str, shape: tuple[int, ...]) -> Array:
    """y, x' or k' by any way to compute y."""
    if wanted == "y":
        return conv(a, b)
    unknown = jax.ShapeDtypeStruct(shape, a.dtype)
    if wanted == "x":
        return jax.linear_transpose(lambda x: conv(x, b), unknown)(a)[0]
    return jax.linear_transpose(lambda k: conv(a, k), unknown)(b)[0]


def by_lax(a: Array, b: Array, *, wanted: str, convolution: Convolution) -> Array:
    """By the compiler's own convolutions, with the axes as they are."""
    return _compute(convolution.y_by_lax, a, b, wanted, getattr(convolution, wanted))


def by_slices(a: Array, b: Array, *, wanted: str, convolution: Convolution) -> Array:
    """By slices and one matrix product."""
    return _compute(convolution.y_by_slices, a, b, wanted, getattr(convolution, wanted))


def by_ordered_lax(a: Array, b: Array, *, wanted: str, convolution: Convolution) -> Array:
    """By XLA's own convolutions, with the axes in the order that is fast on a CPU."""
    ordered = convolution.ordered(wanted)
    specs = dict(zip("xky", zip(convolution.dimension_numbers, ordered.dimension_numbers, strict=True), strict=True))
    a, b = (each.transpose(order_of_axes(*specs[name])) for each, name in zip((a, b), GIVEN[wanted], strict=True))
    found = by_lax(a, b, wanted=wanted, convolution=ordered)
    return found.transpose(order_of_axes(*reversed(specs[wanted])))
