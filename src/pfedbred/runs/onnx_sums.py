"""The primitives of JAX that reduce, multiply, convolve and pool, as ONNX operators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedbred.errors import SettingError
from pfedbred.runs.onnx_values import Convert, Operand, number, reduced, registered

if TYPE_CHECKING:
    from pfedbred.runs.onnx_graph import Graph

PRIMITIVES: dict[str, Convert] = {}
_converts = registered(PRIMITIVES)


_REDUCTIONS = {"reduce_sum": "ReduceSum", "reduce_prod": "ReduceProd", "reduce_max": "ReduceMax"} | {
    "reduce_min": "ReduceMin",
    "reduce_and": "ReduceMin",
    "reduce_or": "ReduceMax",
}


@_converts(*_REDUCTIONS)
def _reduce(graph: Graph, equation: Any, x: Operand) -> str:
    aval, kind = equation.invars[0].aval, _REDUCTIONS[equation.primitive.name]
    name = graph.exact(x, aval.shape)
    if aval.dtype != bool:
        return reduced(graph, kind, name, equation.params["axes"])
    return graph.cast(reduced(graph, kind, graph.cast(name, np.int32), equation.params["axes"]), bool)


@_converts("argmax", "argmin")
def _arg(graph: Graph, equation: Any, x: Operand) -> str:
    kind = {"argmax": "ArgMax", "argmin": "ArgMin"}[equation.primitive.name]
    (axis,) = equation.params["axes"]
    found = graph.op(kind, graph.exact(x, equation.invars[0].aval.shape), axis=axis, keepdims=0)
    return graph.cast(found, equation.outvars[0].aval.dtype)


@_converts("cumsum")
def _cumulative(graph: Graph, equation: Any, x: Operand) -> str:
    name, axis = graph.exact(x, equation.invars[0].aval.shape), np.array(equation.params["axis"], np.int64)
    return graph.op("CumSum", name, axis, reverse=int(equation.params["reverse"]))


@_converts("dot_general")
def _product(graph: Graph, equation: Any, a: Operand, b: Operand) -> str:
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
def _convolution(graph: Graph, equation: Any, x: Operand, kernel: Operand) -> str:
    return _convolved(graph, equation, x, kernel, equation.params)


@_converts("convolve")
def _own_convolution(graph: Graph, equation: Any, x: Operand, kernel: Operand) -> str:
    """That of :mod:`pfedbred.models.convolution`."""
    if equation.params["wanted"] != "y":
        raise SettingError("ONNX: the gradient of a convolution is not supported")
    return _convolved(graph, equation, x, kernel, equation.params["convolution"]._asdict())


def _convolved(graph: Graph, equation: Any, x: Operand, kernel: Operand, how: Mapping[str, Any]) -> str:
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
def _max_pool(graph: Graph, equation: Any, x: Operand) -> str:
    return _pooled(graph, equation, x, "MaxPool")


@_converts("reduce_window_sum")
def _sum_pool(graph: Graph, equation: Any, x: Operand) -> str:
    mean = _pooled(graph, equation, x, "AveragePool", count_include_pad=1)
    return graph.op("Mul", mean, number(equation.invars[0], math.prod(equation.params["window_dimensions"])))


def _pooled(graph: Graph, equation: Any, x: Operand, kind: str, **options: Any) -> str:
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
