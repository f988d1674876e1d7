"""The primitives of JAX as ONNX operators: one function for each, or for a few that are alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from pfedbred.errors import SettingError

if TYPE_CHECKING:
    from pfedbred.runs.onnx_graph import Graph


class Value(NamedTuple):
    """A result in the graph. Its shape has 1 for an axis along which it is still to be repeated."""

    name: str
    shape: tuple[Any, ...]


Given = Value | np.ndarray
"""What a primitive is applied to: a result in the graph, or an array that is known already."""


def storable(array: np.ndarray) -> np.ndarray:
    """Half precision as float32."""
    return array.astype(np.float32) if array.dtype == jax.numpy.bfloat16 else array


def is_symbolic(size: Any) -> bool:
    """Whether a size depends on the number of samples."""
    return not isinstance(size, int | np.integer)


Convert = Callable[..., Any]
PRIMITIVES: dict[str, Convert] = {}
"""By name: from the graph, the equation and what it is applied to, to the name of its result, or a list of them."""


def _converts(*names: str) -> Callable[[Convert], Convert]:
    def register(convert: Convert) -> Convert:
        PRIMITIVES.update(dict.fromkeys(names, convert))
        return convert

    return register


def _widest(shapes: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The shape of what an operator gives that repeats axes of size 1."""
    most = max(map(len, shapes))
    padded = [(*(1,) * (most - len(shape)), *shape) for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def _entrywise(compute: Callable[..., str]) -> Convert:
    """Of names of entries, not of whole arrays: axes may still be of size 1."""

    def convert(graph: Graph, equation: Any, *given: Given) -> Value:
        name = compute(graph, equation, *map(graph.loose, given))
        return Value(name, _widest([each.shape for each in given]))

    return convert


def _number(like: Any, value: float) -> np.ndarray:
    """A number in the type of a variable."""
    return storable(np.asarray(value, like.aval.dtype))


_SAME = {
    name: name.capitalize()
    for name in (
        *("add", "sub", "mul", "div", "pow", "neg", "abs", "sign", "floor", "ceil", "sqrt", "exp", "log", "max", "min"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "tanh", "erf"),
    )
}
_SAME |= {"add_any": "Add", "logistic": "Sigmoid", "eq": "Equal", "lt": "Less", "gt": "Greater"}
_SAME |= {"le": "LessOrEqual", "ge": "GreaterOrEqual"}
"""Primitives of entries that are one operator."""

_FORMULAS: dict[str, Callable[..., str]] = {
    "ne": lambda graph, one, a, b: graph.op("Not", graph.op("Equal", a, b)),
    "rem": lambda graph, one, a, b: graph.op("Mod", a, b, fmod=1),
    "clamp": lambda graph, one, low, x, high: graph.op("Min", graph.op("Max", x, low), high),
    "square": lambda graph, one, x: graph.op("Mul", x, x),
    "rsqrt": lambda graph, one, x: graph.op("Reciprocal", graph.op("Sqrt", x)),
    "erfc": lambda graph, one, x: graph.op("Sub", one, graph.op("Erf", x)),
    "log1p": lambda graph, one, x: graph.op("Log", graph.op("Add", x, one)),
    "expm1": lambda graph, one, x: graph.op("Sub", graph.op("Exp", x), one),
    "is_finite": lambda graph, one, x: graph.op("Not", graph.op("Or", graph.op("IsNaN", x), graph.op("IsInf", x))),
    **dict.fromkeys(
        ("stop_gradient", "copy", "copy_p", "reduce_precision", "name", "sharding_constraint", "pvary"),
        lambda graph, one, x: x,
    ),
}
"""Those that are a few of them; ``one`` is the number 1 in the type of the entries."""


def _operator(kind: str) -> Convert:
    return _entrywise(lambda graph, equation, *names: graph.op(kind, *names))


def _formula(compute: Callable[..., str]) -> Convert:
    return _entrywise(lambda graph, equation, *names: compute(graph, _number(equation.invars[-1], 1), *names))


PRIMITIVES |= {name: _operator(kind) for name, kind in _SAME.items()}
PRIMITIVES |= {name: _formula(compute) for name, compute in _FORMULAS.items()}


@_converts("and", "or", "xor", "not")
@_entrywise
def _logical(graph: Graph, equation: Any, *names: str) -> str:
    kind = equation.primitive.name.capitalize()
    return graph.op(kind if equation.outvars[0].aval.dtype == bool else f"Bitwise{kind}", *names)


@_converts("integer_pow")
@_entrywise
def _power(graph: Graph, equation: Any, x: str) -> str:
    power = equation.params["y"]
    return graph.op("Mul", x, x) if power == 2 else graph.op("Pow", x, _number(equation.invars[0], power))


@_converts("round")
@_entrywise
def _round(graph: Graph, equation: Any, x: str) -> str:
    if equation.params["rounding_method"] != jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        raise SettingError("ONNX: rounding halves away from zero is not supported")
    return graph.op("Round", x)


@_converts("select_n")
@_entrywise
def _select(graph: Graph, equation: Any, which: str, *cases: str) -> str:
    if len(cases) != 2:
        raise SettingError(f"ONNX: a choice among {len(cases)} arrays is not supported")
    if equation.invars[0].aval.dtype != bool:
        which = graph.cast(which, bool)
    return graph.op("Where", which, cases[1], cases[0])


@_converts("convert_element_type")
@_entrywise
def _convert(graph: Graph, equation: Any, x: str) -> str:
    before, after = (_number(each[0], 0).dtype for each in (equation.invars, equation.outvars))
    return x if before == after else graph.cast(x, after)


# Shapes


@_converts("broadcast_in_dim")
def _broadcast(graph: Graph, equation: Any, x: Given, *sizes: Given) -> Value:
    """Adds axes of size 1; they are repeated only where that is needed."""
    axes, shape = equation.params["broadcast_dimensions"], equation.params["shape"]
    new = [axis for axis in range(len(shape)) if axis not in axes]
    before = dict(zip(axes, x.shape, strict=True))
    now = tuple(before.get(axis, 1) for axis in range(len(shape)))
    if isinstance(x, np.ndarray):
        return Value(graph.constant(x.reshape(now)), now)
    return Value(graph.op("Unsqueeze", x.name, np.array(new, np.int64)) if new else x.name, now)


@_converts("reshape")
def _reshape(graph: Graph, equation: Any, x: Given, *sizes: Given) -> str:
    return graph.reshaped(graph.exact(x, equation.invars[0].aval.shape), equation.params["new_sizes"])


@_converts("squeeze")
def _squeeze(graph: Graph, equation: Any, x: Given) -> str:
    axes = [axis % len(x.shape) for axis in equation.params["dimensions"]]
    return graph.op("Squeeze", graph.exact(x, equation.invars[0].aval.shape), np.array(axes, np.int64))


@_converts("transpose")
def _transpose(graph: Graph, equation: Any, x: Given) -> Value:
    order = equation.params["permutation"]
    return Value(graph.transposed(graph.loose(x), order), tuple(x.shape[axis] for axis in order))


@_converts("concatenate")
def _concatenate(graph: Graph, equation: Any, *parts: Given) -> str:
    names = [graph.exact(each, one.aval.shape) for each, one in zip(parts, equation.invars, strict=True)]
    return graph.op("Concat", *names, axis=equation.params["dimension"])


@_converts("stack")
def _stack(graph: Graph, equation: Any, *parts: Given) -> str:
    axis = equation.params["axis"]
    names = [graph.exact(each, one.aval.shape) for each, one in zip(parts, equation.invars, strict=True)]
    return graph.op("Concat", *(graph.op("Unsqueeze", each, np.array([axis], np.int64)) for each in names), axis=axis)


@_converts("split")
def _split(graph: Graph, equation: Any, x: Given) -> list[str]:
    sizes = np.array(equation.params["sizes"], np.int64)
    name = graph.exact(x, equation.invars[0].aval.shape)
    return graph.ops("Split", name, sizes, outputs=len(sizes), axis=equation.params["axis"])


def _sliced(graph: Graph, name: str, cuts: Mapping[int, tuple[int, int, int]]) -> str:
    """From, to and by how much, by axis."""
    starts, ends, steps = np.array(list(cuts.values()), np.int64).reshape(-1, 3).T
    if not cuts:
        return name
    return graph.op(
        "Slice", name, *map(np.ascontiguousarray, (starts, ends)), np.array(list(cuts), np.int64), steps.copy()
    )


@_converts("slice")
def _slice(graph: Graph, equation: Any, x: Given) -> str:
    params, shape = equation.params, equation.invars[0].aval.shape
    steps = params["strides"] or (1,) * len(shape)
    cuts = {
        axis: cut
        for axis, cut in enumerate(zip(params["start_indices"], params["limit_indices"], steps, strict=True))
        if cut != (0, shape[axis], 1)
    }
    if any(map(is_symbolic, itertools.chain.from_iterable(cuts.values()))):
        raise SettingError("ONNX: a part of the samples is not supported; the network must treat every sample alike")
    return _sliced(graph, graph.exact(x, shape), cuts)


@_converts("rev")
def _reverse(graph: Graph, equation: Any, x: Given) -> str:
    name = graph.exact(x, equation.invars[0].aval.shape)
    return _sliced(graph, name, {axis: (-1, np.iinfo(np.int64).min, -1) for axis in equation.params["dimensions"]})


@_converts("dynamic_slice")
def _dynamic_slice(graph: Graph, equation: Any, x: Given, *starts: Given) -> str:
    """From places that are known; JAX moves them so that the slice is inside the array."""
    shape, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
    cuts = {}
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if size == shape[axis]:
            continue
        if not isinstance(start, np.ndarray) or is_symbolic(shape[axis]):
            raise SettingError("ONNX: a slice whose place depends on the samples is not supported")
        first = min(max(int(start), 0), shape[axis] - size)
        cuts[axis] = (first, first + size, 1)
    return _sliced(graph, graph.exact(x, shape), cuts)


@_converts("pad")
def _pad(graph: Graph, equation: Any, x: Given, value: Given) -> str:
    low, high, between = zip(*equation.params["padding_config"], strict=True)
    if any(between):
        raise SettingError("ONNX: padding between the entries of an array is not supported")
    return graph.op(
        "Pad", graph.exact(x, equation.invars[0].aval.shape), np.array([*low, *high], np.int64), graph.loose(value)
    )


@_converts("dim_as_value")
def _size_as_value(graph: Graph, equation: Any) -> str:
    return graph.cast(graph.op("Squeeze", graph.shape([equation.params["dim"]])), equation.outvars[0].aval.dtype)


@_converts("iota")
def _iota(graph: Graph, equation: Any, *sizes: Given) -> Value:
    """Places along an axis; where no size depends on the batch, it is known."""
    shape, axis = equation.params["shape"], equation.params["dimension"]
    if is_symbolic(shape[axis]):
        end = graph.op("Squeeze", graph.shape([shape[axis]]))
        places = graph.op("Range", np.array(0, np.int64), end, np.array(1, np.int64))
    else:
        places = graph.constant(np.arange(shape[axis], dtype=np.int64))
    now = tuple(size if place == axis else 1 for place, size in enumerate(shape))
    return Value(graph.reshaped(graph.cast(places, equation.params["dtype"]), now), now)


# Sums, products, choices


def _reduced(graph: Graph, kind: str, name: str, axes: Sequence[int]) -> str:
    return graph.op(kind, name, np.array(axes, np.int64), keepdims=0)


_REDUCTIONS = {"reduce_sum": "ReduceSum", "reduce_prod": "ReduceProd", "reduce_max": "ReduceMax"} | {
    "reduce_min": "ReduceMin",
    "reduce_and": "ReduceMin",
    "reduce_or": "ReduceMax",
}


@_converts(*_REDUCTIONS)
def _reduce(graph: Graph, equation: Any, x: Given) -> str:
    aval, kind = equation.invars[0].aval, _REDUCTIONS[equation.primitive.name]
    name = graph.exact(x, aval.shape)
    if aval.dtype != bool:
        return _reduced(graph, kind, name, equation.params["axes"])
    return graph.cast(_reduced(graph, kind, graph.cast(name, np.int32), equation.params["axes"]), bool)


@_converts("argmax", "argmin")
def _arg(graph: Graph, equation: Any, x: Given) -> str:
    kind = {"argmax": "ArgMax", "argmin": "ArgMin"}[equation.primitive.name]
    (axis,) = equation.params["axes"]
    found = graph.op(kind, graph.exact(x, equation.invars[0].aval.shape), axis=axis, keepdims=0)
    return graph.cast(found, equation.outvars[0].aval.dtype)


@_converts("cumsum")
def _cumulative(graph: Graph, equation: Any, x: Given) -> str:
    name, axis = graph.exact(x, equation.invars[0].aval.shape), np.array(equation.params["axis"], np.int64)
    return graph.op("CumSum", name, axis, reverse=int(equation.params["reverse"]))


@_converts("dot_general")
def _product(graph: Graph, equation: Any, a: Given, b: Given) -> str:
    """A matrix product where it is one, possibly of many matrices; else the general sum over products."""
    ((sum_a, sum_b), (batch_a, batch_b)) = equation.params["dimension_numbers"]
    left, right = (each.aval for each in equation.invars)
    names = graph.exact(a, left.shape), graph.exact(b, right.shape)
    many = tuple(range(len(batch_a)))
    if len(sum_a) == 1 and tuple(batch_a) == many == tuple(batch_b):
        last_a, free_b = sum_a[0] == left.ndim - 1, right.ndim - len(many) == 2
        if last_a and free_b and (not many or left.ndim == right.ndim):
            order = list(range(right.ndim))
            if sum_b[0] == right.ndim - 1:
                order[-2:] = order[-1], order[-2]
            return graph.op("MatMul", names[0], graph.transposed(names[1], order))
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    of_a = [next(letters) for _ in left.shape]
    shared = dict(zip((*sum_b, *batch_b), (of_a[axis] for axis in (*sum_a, *batch_a)), strict=True))
    of_b = [shared.get(axis) or next(letters) for axis in range(right.ndim)]
    kept_a = [each for axis, each in enumerate(of_a) if axis not in (*sum_a, *batch_a)]
    kept_b = [each for axis, each in enumerate(of_b) if axis not in (*sum_b, *batch_b)]
    out = [*(of_a[axis] for axis in batch_a), *kept_a, *kept_b]
    return graph.op("Einsum", *names, equation="{},{}->{}".format(*map("".join, (of_a, of_b, out))))


@_converts("conv_general_dilated")
def _convolution(graph: Graph, equation: Any, x: Given, kernel: Given) -> str:
    return _convolved(graph, equation, x, kernel, equation.params)


@_converts("convolve")
def _own_convolution(graph: Graph, equation: Any, x: Given, kernel: Given) -> str:
    """That of :mod:`pfedbred.models.convolution`."""
    if equation.params["wanted"] != "y":
        raise SettingError("ONNX: the gradient of a convolution is not supported")
    return _convolved(graph, equation, x, kernel, equation.params["convolution"]._asdict())


def _convolved(graph: Graph, equation: Any, x: Given, kernel: Given, how: Mapping[str, Any]) -> str:
    if how.get("batch_group_count", 1) != 1 or set(how["lhs_dilation"]) != {1} or np.min(how["padding"]) < 0:
        raise SettingError("ONNX: a transposed convolution is not supported")
    names = how["dimension_numbers"]
    data = graph.transposed(graph.exact(x, equation.invars[0].aval.shape), names.lhs_spec)
    if isinstance(kernel, np.ndarray):
        weight = graph.constant(np.ascontiguousarray(kernel.transpose(names.rhs_spec)))
    else:
        weight = graph.transposed(graph.exact(kernel, equation.invars[1].aval.shape), names.rhs_spec)
    low, high = zip(*how["padding"], strict=True)
    found = graph.op(
        "Conv",
        data,
        weight,
        strides=list(how["window_strides"]),
        pads=[*low, *high],
        dilations=list(how["rhs_dilation"]),
        group=how["feature_group_count"],
    )
    return graph.transposed(found, np.argsort(names.out_spec).tolist())


@_converts("reduce_window_max")
def _max_pool(graph: Graph, equation: Any, x: Given) -> str:
    return _pooled(graph, equation, x, "MaxPool")


@_converts("reduce_window_sum")
def _sum_pool(graph: Graph, equation: Any, x: Given) -> str:
    mean = _pooled(graph, equation, x, "AveragePool", count_include_pad=1)
    return graph.op("Mul", mean, _number(equation.invars[0], math.prod(equation.params["window_dimensions"])))


def _pooled(graph: Graph, equation: Any, x: Given, kind: str, **options: Any) -> str:
    """Pooling over the axes between the first and the last, which are samples and channels."""
    params, shape = equation.params, equation.invars[0].aval.shape
    window, steps, padding = (params[key] for key in ("window_dimensions", "window_strides", "padding"))
    dilated = {*params["base_dilation"], *params["window_dilation"]} != {1}
    if (
        dilated
        or len(shape) < 3
        or any((window[axis], steps[axis], *padding[axis]) != (1, 1, 0, 0) for axis in (0, -1))
    ):
        raise SettingError("ONNX: pooling is supported over the axes between samples and channels only")
    low, high = zip(*padding[1:-1], strict=True)
    axes = (0, len(shape) - 1, *range(1, len(shape) - 1))
    found = graph.op(
        kind,
        graph.transposed(graph.exact(x, shape), axes),
        kernel_shape=list(window[1:-1]),
        strides=list(steps[1:-1]),
        pads=[*low, *high],
        **options,
    )
    return graph.transposed(found, np.argsort(axes).tolist())


@_converts("gather")
def _gather(graph: Graph, equation: Any, x: Given, places: Given) -> str:
    """Rows by their number, such as the vectors of words; or a slice at a known place, which JAX traces so."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape, at = (each.aval for each in equation.invars)
    axes = list(numbers.start_index_map)
    if isinstance(places, np.ndarray) and places.ndim == 1:
        return _taken_out(
            graph, graph.exact(x, shape.shape), shape.shape, dict(zip(axes, places, strict=True)), equation
        )
    others = [axis for axis in range(shape.ndim) if axis not in axes]
    whole = all(sizes[axis] == shape.shape[axis] for axis in others)
    if numbers.operand_batching_dims or sorted(numbers.collapsed_slice_dims) != sorted(axes) or not whole:
        raise SettingError("ONNX: this way of indexing is not supported, only rows by number")
    rows, bounds = graph.exact(places, at.shape), [shape.shape[axis] for axis in axes]
    if any(map(is_symbolic, bounds[1:])):
        raise SettingError("ONNX: samples by number are not supported; the network must treat every sample alike")
    if "CLIP" in str(equation.params["mode"]).upper():
        last = np.array(bounds, at.dtype) - np.ones((), at.dtype)
        rows = graph.op("Min", graph.op("Max", rows, np.zeros((), at.dtype)), last)
    # Several axes become one, and their numbers one number.
    steps = np.array([math.prod(bounds[i + 1 :]) for i in range(len(axes))], at.dtype)
    rows = _reduced(graph, "ReduceSum", graph.op("Mul", rows, steps), [-1])
    table = graph.transposed(graph.exact(x, shape.shape), [*axes, *others])
    if len(axes) > 1:
        table = graph.reshaped(table, [math.prod(bounds), *(shape.shape[axis] for axis in others)])
    found = graph.op("Gather", table, rows, axis=0)
    # The axes of the numbers are first now; JAX has them at any positions that are not axes of the rows.
    own, first = iter(range(at.ndim - 1, equation.outvars[0].aval.ndim)), iter(range(at.ndim - 1))
    order = [next(own if axis in numbers.offset_dims else first) for axis in range(equation.outvars[0].aval.ndim)]
    return graph.transposed(found, order)


def _taken_out(graph: Graph, name: str, shape: Sequence[Any], starts: Mapping[int, Any], equation: Any) -> str:
    """A slice from these places on, along these axes, without the axes that are left out."""
    cuts = {}
    for axis, size in enumerate(equation.params["slice_sizes"]):
        if size == shape[axis]:
            continue
        if is_symbolic(shape[axis]):
            raise SettingError(
                "ONNX: a part of the samples is not supported; the network must treat every sample alike"
            )
        first = min(max(int(starts.get(axis, 0)), 0), shape[axis] - size)
        cuts[axis] = (first, first + size, 1)
    gone = equation.params["dimension_numbers"].collapsed_slice_dims
    found = _sliced(graph, name, cuts)
    return graph.op("Squeeze", found, np.array(gone, np.int64)) if gone else found
