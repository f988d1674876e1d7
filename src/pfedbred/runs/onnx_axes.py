"""The primitives of JAX that change shapes, slice, pad and index, as ONNX operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedbred.errors import SettingError
from pfedbred.runs.onnx_values import Convert, Operand, Value, is_symbolic, reduced, registered

if TYPE_CHECKING:
    from pfedbred.runs.onnx_graph import Graph

PRIMITIVES: dict[str, Convert] = {}
_converts = registered(PRIMITIVES)


@_converts("broadcast_in_dim")
def _broadcast(graph: Graph, equation: Any, x: Operand, *sizes: Operand) -> Value:
    """Adds axes of size 1; they are repeated only where that is needed."""
    axes, shape = equation.params["broadcast_dimensions"], equation.params["shape"]
    new = [axis for axis in range(len(shape)) if axis not in axes]
    before = dict(zip(axes, x.shape, strict=True))
    now = tuple(before.get(axis, 1) for axis in range(len(shape)))
    if isinstance(x, np.ndarray):
        return Value(graph.constant(x.reshape(now)), now)
    return Value(graph.op("Unsqueeze", x.name, np.array(new, np.int64)) if new else x.name, now)


@_converts("reshape")
def _reshape(graph: Graph, equation: Any, x: Operand, *sizes: Operand) -> str:
    return graph.reshaped(graph.exact(x, equation.invars[0].aval.shape), equation.params["new_sizes"])


@_converts("squeeze")
def _squeeze(graph: Graph, equation: Any, x: Operand) -> str:
    axes = [axis % len(x.shape) for axis in equation.params["dimensions"]]
    return graph.op("Squeeze", graph.exact(x, equation.invars[0].aval.shape), np.array(axes, np.int64))


@_converts("transpose")
def _transpose(graph: Graph, equation: Any, x: Operand) -> Value:
    order = equation.params["permutation"]
    return Value(graph.transposed(graph.loose(x), order), tuple(x.shape[axis] for axis in order))


@_converts("concatenate")
def _concatenate(graph: Graph, equation: Any, *parts: Operand) -> str:
    names = [graph.exact(each, one.aval.shape) for each, one in zip(parts, equation.invars, strict=True)]
    return graph.op("Concat", *names, axis=equation.params["dimension"])


@_converts("stack")
def _stack(graph: Graph, equation: Any, *parts: Operand) -> str:
    axis = equation.params["axis"]
    names = [graph.exact(each, one.aval.shape) for each, one in zip(parts, equation.invars, strict=True)]
    return graph.op("Concat", *(graph.op("Unsqueeze", each, np.array([axis], np.int64)) for each in names), axis=axis)


@_converts("split")
def _split(graph: Graph, equation: Any, x: Operand) -> list[str]:
    sizes = np.array(equation.params["sizes"], np.int64)
    name = graph.exact(x, equation.invars[0].aval.shape)
    return graph.ops("Split", name, sizes, outputs=len(sizes), axis=equation.params["axis"])


def _sliced(graph: Graph, name: str, cuts: Mapping[int, tuple[int, int, int]]) -> str:
    """Begin, end and step, by axis."""
    starts, ends, steps = np.array(list(cuts.values()), np.int64).reshape(-1, 3).T
    if not cuts:
        return name
    return graph.op(
        "Slice", name, *map(np.ascontiguousarray, (starts, ends)), np.array(list(cuts), np.int64), steps.copy()
    )


@_converts("slice")
def _slice(graph: Graph, equation: Any, x: Operand) -> str:
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
def _reverse(graph: Graph, equation: Any, x: Operand) -> str:
    name = graph.exact(x, equation.invars[0].aval.shape)
    return _sliced(graph, name, {axis: (-1, np.iinfo(np.int64).min, -1) for axis in equation.params["dimensions"]})


@_converts("dynamic_slice")
def _dynamic_slice(graph: Graph, equation: Any, x: Operand, *starts: Operand) -> str:
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
def _pad(graph: Graph, equation: Any, x: Operand, value: Operand) -> str:
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
def _iota(graph: Graph, equation: Any, *sizes: Operand) -> Value:
    """Places along an axis; where no size depends on the batch, it is known."""
    shape, axis = equation.params["shape"], equation.params["dimension"]
    if is_symbolic(shape[axis]):
        end = graph.op("Squeeze", graph.shape([shape[axis]]))
        places = graph.op("Range", np.array(0, np.int64), end, np.array(1, np.int64))
    else:
        places = graph.constant(np.arange(shape[axis], dtype=np.int64))
    now = tuple(size if place == axis else 1 for place, size in enumerate(shape))
    return Value(graph.reshaped(graph.cast(places, equation.params["dtype"]), now), now)


@_converts("gather")
def _gather(graph: Graph, equation: Any, x: Operand, places: Operand) -> str:
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
    rows = reduced(graph, "ReduceSum", graph.op("Mul", rows, steps), [-1])
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
