"""A JAX program as an ONNX graph, for any number of samples.

The program is traced with a symbolic batch size (:mod:`jax.export`), and each of its primitives becomes one or a few
ONNX operators (``onnx_entries``, ``onnx_axes`` and ``onnx_sums`` beside this module). What depends on params alone,
such as a transposed matrix, is computed when the graph is made. Numbers in half precision are in float32 in the graph,
because hardly any runtime computes bfloat16 on a CPU.

jax2onnx is well maintained and has many more primitives. The version that fits the tested JAX and Orbax (0.13) does
not have this library's convolution (:mod:`pfedbred.models.convolution`) and fails on the loops of its LSTMs; newer ones
exclude that Orbax. All of them install Flax, Equinox, Orbax, dm-pix, a viewer and ONNX Runtime whichever model is
exported. jax2tf with tf2onnx needs TensorFlow.

References: the operators of https://onnx.ai/onnx/operators, the primitives of :mod:`jax.lax`.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
from jax.extend import core

from pfedbred.errors import SettingError
from pfedbred.io import tensors
from pfedbred.runs import onnx_axes, onnx_entries, onnx_sums
from pfedbred.runs.onnx_values import Operand, Value, is_symbolic, storable
from pfedbred.types import Tree

OPSET, _IR_VERSION = 20, 9  # of the end of 2023: runtimes older than that are not expected
BATCH = "n"
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_lin": "call_jaxpr",
}
"""Primitives that only call another program, and which of their parameters it is."""

_PRIMITIVES = {**onnx_entries.PRIMITIVES, **onnx_axes.PRIMITIVES, **onnx_sums.PRIMITIVES}


class Graph:
    """An ONNX graph under construction: declare inputs, apply functions and operators to them, name the outputs.

    Example:
      >>> graph = Graph()
      >>> x = graph.input("x", np.float32, (3,))
      >>> (total,) = graph.apply(lambda params, x: [params["w"] * x.sum(1)], {"w": np.float32(2)}, x)
      >>> graph.output("total", total)
      >>> [node.op_type for node in graph.model("sums").graph.node]
      ['Shape', 'ReduceSum', 'Mul', 'Identity']
    """

    def __init__(self) -> None:
        self._onnx = _library()
        (self.batch,) = jax.export.symbolic_shape(BATCH)
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._constants: dict[int, tuple[np.ndarray, str]] = {}  # by identity; the array is kept, so that it lasts
        self._taken: set[str] = set()
        self._types: dict[str, Any] = {}
        self._size: str | None = None

    # Building -------------------------------------------------------------------------------------------------------

    def input(self, name: str, dtype: Any, shape: Sequence[int] = ()) -> Value:
        """An input: ``shape`` is that of one sample, and texts have the type ``str``."""
        self._inputs.append(self._described(self._named(name), dtype, (self.batch, *shape)))
        if self._size is None:
            self._size = self.op("Shape", name, start=0, end=1)
        return self._result(name, dtype, (self.batch, *shape))

    def output(self, name: str, value: Operand) -> None:
        """Makes a result of the graph one of its outputs."""
        found, shape = self.loose(value), value.shape
        dtype = self._types[found] if isinstance(value, Value) else value.dtype
        self._nodes.append(self._onnx.helper.make_node("Identity", [found], [self._named(name)]))
        self._outputs.append(self._described(name, dtype, shape))

    def apply(self, function: Callable[..., Sequence[Any]], params: Tree, *inputs: Value) -> list[Operand]:
        """The results of ``function(params, *inputs)``, a list of arrays; params are known, inputs are not."""
        shapes = [jax.ShapeDtypeStruct(each.shape, self._types[each.name]) for each in inputs]
        try:
            closed = jax.make_jaxpr(function)(params, *shapes)
        except jax.errors.InconclusiveDimensionOperation as problem:
            reason = str(problem).strip().splitlines()[0]
            raise SettingError(f"ONNX: the network must take any number of samples, {BATCH}: {reason}") from problem
        except TypeError as problem:
            if "_DimExpr" not in str(problem):  # JAX's symbolic size, which Python and NumPy cannot take for a number
                raise
            raise SettingError(
                f"ONNX: the network must take any number of samples, {BATCH}: use x.shape[0] in place of len(x), and "
                "jax.numpy where a plain number is needed (NumPy, range, float)"
            ) from problem
        known = {name: np.asarray(leaf) for name, leaf in tensors.named(params).items()}
        for name, array in known.items():
            self.constant(array, f"params.{name}" if name else "params")
        found = self._run(closed.jaxpr, closed.consts, [*known.values(), *inputs])
        return [self._whole(each, aval) for each, aval in zip(found, closed.out_avals, strict=True)]

    def model(self, name: str, about: Mapping[str, str] | None = None) -> Any:
        """The graph as a checked ONNX model, with metadata."""
        helper = self._onnx.helper
        used = {each for node in _all_nodes(self._nodes) for each in node.input}
        constants = [
            self._onnx.numpy_helper.from_array(storable(array), label)
            for array, label in self._constants.values()
            if label in used
        ]
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, constants)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="pfedbred")
        helper.set_model_props(model, dict(about or {}))
        try:
            self._onnx.checker.check_model(model, full_check=True)
        except (self._onnx.checker.ValidationError, self._onnx.shape_inference.InferenceError) as problem:
            raise SettingError(f"ONNX cannot express this model: {problem}") from problem
        return model

    def op(self, kind: str, *inputs: str | np.ndarray, **attributes: Any) -> str:
        """An operator's only result, by name; arrays among its inputs become constants."""
        return self.ops(kind, *inputs, outputs=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str | np.ndarray, outputs: int, **attributes: Any) -> list[str]:
        """An operator's results, by name."""
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        made = [self._new(kind.lower()) for _ in range(outputs)]
        self._nodes.append(self._onnx.helper.make_node(kind, names, made, **attributes))
        return made

    def constant(self, array: np.ndarray, name: str | None = None) -> str:
        """The name of an array that is known."""
        if id(array) not in self._constants:
            self._constants[id(array)] = (array, self._named(name) if name else self._new("constant"))
        return self._constants[id(array)][1]

    def typed(self, name: str, dtype: Any, shape: tuple[Any, ...]) -> Value:
        """An operator's result, whose type and shape are recorded in the graph."""
        return self._result(name, dtype, shape)

    # For the primitives ---------------------------------------------------------------------------------------------

    def loose(self, given: Operand) -> str:
        """Its name, for an operator that broadcasts axes of size 1."""
        return given.name if isinstance(given, Value) else self.constant(given)

    def exact(self, given: Operand, shape: Sequence[Any] | None = None) -> str:
        """Its name after broadcasting to ``shape``."""
        if not isinstance(given, Value) or shape is None or given.shape == tuple(shape):
            return self.loose(given)
        return self.op("Expand", given.name, self.shape(shape))

    def shape(self, sizes: Sequence[Any]) -> np.ndarray | str:
        """A shape for an operator that takes it as an input; it may depend on the batch size."""
        if not any(map(is_symbolic, sizes)):
            return np.array(sizes, np.int64)
        assert self._size is not None
        parts = []
        for size in sizes:
            if not is_symbolic(size):
                parts.append(self.constant(np.array([size], np.int64)))
                continue
            times = size // self.batch
            if is_symbolic(times) or times * self.batch != size:
                raise SettingError(f"ONNX: a shape with the size {size}, for {BATCH} samples, is not supported")
            parts.append(self._size if times == 1 else self.op("Mul", self._size, np.array([times], np.int64)))
        return self.op("Concat", *parts, axis=0)

    def reshaped(self, name: str, shape: Sequence[Any]) -> str:
        """With another shape; the one size that depends on the batch is found by the runtime."""
        symbolic = [place for place, size in enumerate(shape) if is_symbolic(size)]
        if len(symbolic) == 1:
            return self.op("Reshape", name, np.array([-1 if is_symbolic(size) else size for size in shape], np.int64))
        return self.op("Reshape", name, self.shape(shape))

    def transposed(self, name: str, axes: Sequence[int]) -> str:
        """With the axes in this order."""
        order = [int(axis) for axis in axes]
        return name if order == sorted(order) else self.op("Transpose", name, perm=order)

    def cast(self, name: str, dtype: Any) -> str:
        """In another type."""
        return self.op("Cast", name, to=self._onnx_type(dtype))

    # Programs -------------------------------------------------------------------------------------------------------

    def _run(self, program: Any, constants: Sequence[Any], given: Sequence[Operand]) -> list[Operand]:
        """Converts a program's equations one by one."""
        found: dict[Any, Operand] = dict(zip(program.constvars, map(np.asarray, constants), strict=True))
        found |= zip(program.invars, given, strict=True)

        def read(each: Any) -> Operand:
            is_literal = isinstance(each, core.Literal)
            return np.asarray(each.val, each.aval.dtype) if is_literal else found[each]

        for equation in program.eqns:
            results = self._converted(equation, [read(each) for each in equation.invars])
            found |= zip(equation.outvars, results, strict=True)
        return [read(each) for each in program.outvars]

    def _converted(self, equation: Any, given: list[Operand]) -> Sequence[Operand]:
        name = equation.primitive.name
        if name in _CALLS:
            called = equation.params[_CALLS[name]]
            constants = getattr(called, "consts", ())
            return self._run(getattr(called, "jaxpr", called), constants, given)
        known = all(isinstance(each, np.ndarray) for each in given) and name != "dim_as_value"
        if known and not any(map(_symbolic, equation.outvars)):
            results = equation.primitive.bind(*map(jax.numpy.asarray, given), **equation.params)
            return [np.asarray(each) for each in (results if equation.primitive.multiple_results else [results])]
        if name == "scan":
            return self._loop(equation, given)
        convert = _PRIMITIVES.get(name)
        if convert is None:
            raise SettingError(
                f"ONNX: this model computes {name!r}, for which there is no conversion; export it as safetensors"
            )
        made = convert(self, equation, *given)
        if not equation.primitive.multiple_results:
            made = [made]
        return [self._as_result(each, out.aval) for each, out in zip(made, equation.outvars, strict=True)]

    def _whole(self, given: Operand, aval: Any) -> Operand:
        if not isinstance(given, Value):
            return given
        return self._result(self.exact(given, aval.shape), aval.dtype, aval.shape)

    def _as_result(self, made: str | Value, aval: Any) -> Value:
        name, shape = (made, aval.shape) if isinstance(made, str) else made
        return self._result(name, aval.dtype, shape)

    def _loop(self, equation: Any, given: list[Operand]) -> list[Operand]:
        """A loop over the first axis of some inputs: ONNX's Scan, whose body reads the graph around it by name."""
        params, closed = equation.params, equation.params["jaxpr"]
        fixed, carried = params["num_consts"], params["num_carry"]
        avals = [each.aval for each in equation.invars]
        outer, self._nodes = self._nodes, []
        inside: list[Operand] = list(given[:fixed])
        inputs = []
        for variable in closed.jaxpr.invars[fixed:]:
            name = self._new("loop")
            inputs.append(self._described(name, variable.aval.dtype, variable.aval.shape))
            inside.append(self._result(name, variable.aval.dtype, variable.aval.shape))
        outputs = []
        for value, variable in zip(self._run(closed.jaxpr, closed.consts, inside), closed.jaxpr.outvars, strict=True):
            name = self.op("Identity", self.exact(value, variable.aval.shape))
            outputs.append(self._described(name, variable.aval.dtype, variable.aval.shape))
        body = self._onnx.helper.make_graph(self._nodes, self._new("body"), inputs, outputs)
        self._nodes = outer
        backwards = int(params["reverse"])
        made = self.ops(
            "Scan",
            *(self.exact(each, aval.shape) for each, aval in zip(given[fixed:], avals[fixed:], strict=True)),
            outputs=len(equation.outvars),
            body=body,
            num_scan_inputs=len(given) - fixed - carried,
            scan_input_directions=[backwards] * (len(given) - fixed - carried),
            scan_output_directions=[backwards] * (len(equation.outvars) - carried),
        )
        return [self._as_result(name, out.aval) for name, out in zip(made, equation.outvars, strict=True)]

    # Names and types ------------------------------------------------------------------------------------------------

    def _result(self, name: str, dtype: Any, shape: tuple[Any, ...]) -> Value:
        self._types[name] = dtype if dtype is str else np.dtype(dtype)
        return Value(name, tuple(shape))

    def _named(self, name: str) -> str:
        if name in self._taken:
            raise SettingError(f"ONNX: two things are called {name!r}; rename a column of the data")
        self._taken.add(name)
        return name

    def _new(self, kind: str) -> str:
        name = next(
            each for number in itertools.count(len(self._taken)) if (each := f"{kind}_{number}") not in self._taken
        )
        return self._named(name)

    def _described(self, name: str, dtype: Any, shape: Sequence[Any]) -> Any:
        sizes = [str(size) if is_symbolic(size) else int(size) for size in shape]
        return self._onnx.helper.make_tensor_value_info(name, self._onnx_type(dtype), sizes)

    def _onnx_type(self, dtype: Any) -> int:
        if dtype is str:
            return int(self._onnx.TensorProto.STRING)
        return int(self._onnx.helper.np_dtype_to_tensor_dtype(storable(np.zeros(0, dtype)).dtype))


def _library() -> Any:
    try:
        library = importlib.import_module("onnx")
    except ImportError:
        raise SettingError("the format onnx needs onnx: pip install 'pfedbred[onnx]'") from None
    for each in ("checker", "numpy_helper", "shape_inference"):
        importlib.import_module(f"onnx.{each}")
    return library


def _symbolic(variable: Any) -> bool:
    return any(map(is_symbolic, variable.aval.shape))


def _all_nodes(nodes: Sequence[Any]) -> list[Any]:
    """With those in the bodies of loops."""
    inner = [attribute.g.node for node in nodes for attribute in node.attribute if attribute.HasField("g")]
    return [*nodes, *(each for body in inner for each in _all_nodes(body))]
