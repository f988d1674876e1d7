"""What the primitives of JAX are applied to in an ONNX graph, and the tables of their conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

if TYPE_CHECKING:
    from pfedbred.runs.onnx_graph import Graph


class Value(NamedTuple):
    """A result in the graph. Its shape has 1 for an axis along which it is still to be repeated."""

    name: str
    shape: tuple[Any, ...]


Operand = Value | np.ndarray
"""What a primitive is applied to: a result in the graph, or an array that is known already."""


def storable(array: np.ndarray) -> np.ndarray:
    """Half precision as float32."""
    return array.astype(np.float32) if array.dtype == jax.numpy.bfloat16 else array


def number(like: Any, value: float) -> np.ndarray:
    """A number in the type of a variable."""
    return storable(np.asarray(value, like.aval.dtype))


def is_symbolic(size: Any) -> bool:
    """Whether a size depends on the number of samples."""
    return not isinstance(size, int | np.integer)


def reduced(graph: Graph, kind: str, name: str, axes: Sequence[int]) -> str:
    """The reduction of a result over these axes."""
    return graph.op(kind, name, np.array(axes, np.int64), keepdims=0)


Convert = Callable[..., Any]
"""From the graph, the equation and what its primitive is applied to, to the name of the result, or a list of them."""


def registered(table: dict[str, Convert]) -> Callable[..., Callable[[Convert], Convert]]:
    """A decorator, ``converts(*primitives)``, that adds conversions to a table."""

    def converts(*names: str) -> Callable[[Convert], Convert]:
        def register(convert: Convert) -> Convert:
            table.update(dict.fromkeys(names, convert))
            return convert

        return register

    return converts
