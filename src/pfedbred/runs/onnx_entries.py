"""The primitives of JAX that work entry by entry, as ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from pfedbred.errors import SettingError
from pfedbred.runs.onnx_values import Convert, Operand, Value, number, registered

if TYPE_CHECKING:
    from pfedbred.runs.onnx_graph import Graph

PRIMITIVES: dict[str, Convert] = {}
_converts = registered(PRIMITIVES)


def _widest(shapes: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The shape of a result of operands whose axes of size 1 are repeated."""
    most = max(map(len, shapes))
    padded = [(*(1,) * (most - len(shape)), *shape) for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def _entrywise(compute: Callable[..., str]) -> Convert:
    """Of names of entries, not of whole arrays: axes may still be of size 1."""

    def convert(graph: Graph, equation: Any, *given: Operand) -> Value:
        name = compute(graph, equation, *map(graph.loose, given))
        return Value(name, _widest([each.shape for each in given]))

    return convert


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
    return _entrywise(lambda graph, equation, *names: compute(graph, number(equation.invars[-1], 1), *names))


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
    return graph.op("Mul", x, x) if power == 2 else graph.op("Pow", x, number(equation.invars[0], power))


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
    before, after = (number(each[0], 0).dtype for each in (equation.invars, equation.outvars))
    return x if before == after else graph.cast(x, after)
