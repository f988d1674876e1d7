"""A JAX program as an ONNX graph, for any number of samples.

The program is traced with a symbolic batch size (:mod:`jax.export`), and each of its primitives becomes one or a few
ONNX operators. What depends on params alone, such as a transposed matrix, is computed when the graph is made. Numbers in
half precision are in float32 in the graph, because hardly any runtime computes bfloat16 on a CPU.

jax2onnx does this for many more primitives. It does not know this library's convolution
(:mod:`pfedbred.models.convolution`), depends on Flax, Equinox, Orbax, dm-pix, a viewer and more whichever model is
exported, and bounds Orbax below the version that current Flax is tested with. jax2tf with tf2onnx needs TensorFlow.

References: the operators of https://onnx.ai/onnx/operators, the primitives of :mod:`jax.lax`.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np
from jax.extend import core

from pfedbred.errors import SettingError
from pfedbred.io import tensors
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


class Value(NamedTuple):
    """A result in the graph. Its shape has 1 for an axis along which it is still to be repeated."""

    name: str
    shape: tuple[Any, ...]


Given = Value | np.ndarray
"""What a primitive is applied to: a result in the graph, or an array that is known already."""


class Graph:
    """An ONNX graph that is being made: declare inputs, apply functions and operators to them, name the outputs.

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
        self._types: dict[str, np.dtype[Any]] = {}
        self._size: str | None = None

    # Building -------------------------------------------------------------------------------------------------------

    def input(self, name: str, dtype: Any, shape: Sequence[int] = ()) -> Value:
        """An input: ``shape`` is that of one sample, and texts have the type ``str``."""
        self._inputs.append(self._described(self._named(name), dtype, (self.batch, *shape)))
        if self._size is None:
            self._size = self.op("Shape", name, start=0, end=1)
        return self._result(name, dtype, (self.batch, *shape))

    def output(self, name: str, value: Given) -> None:
        """Makes a result of the graph one of its outputs."""
        found, shape = self.loose(value), value.shape
        dtype = self._types[found] if isinstance(value, Value) else value.dtype
        self._nodes.append(self._onnx.helper.make_node("Identity", [found], [self._named(name)]))
        self._outputs.append(self._described(name, dtype, shape))

    def apply(self, function: Callable[..., Sequence[Any]], params: Tree, *inputs: Value) -> list[Given]:
        """The results of ``function(params, *inputs)``, a list of arrays; params are known, inputs are not."""
        shapes = [jax.ShapeDtypeStruct(each.shape, self._types[each.name]) for each in inputs]
        try:
            closed = jax.make_jaxpr(function)(params, *shapes)
        except jax.errors.InconclusiveDimensionOperation as problem:
            reason = str(problem).strip().splitlines()[0]
            raise SettingError(f"ONNX: the network must take any number of samples, {BATCH}: {reason}") from problem
        known: list[Given] = []
        for name, leaf in tensors.named(params).items():
            known.append(np.asarray(leaf))
            self.constant(known[-1], f"params.{name}" if name else "params")
        found = self._run(closed.jaxpr, closed.consts, [*known, *inputs])
        return [self._whole(each, aval) for each, aval in zip(found, closed.out_avals, strict=True)]

    def model(self, name: str, about: Mapping[str, str] | None = None) -> Any:
        """The whole as an ONNX model, checked, with texts that say what it is."""
        helper = self._onnx.helper
        used = {each for node in _all_nodes(self._nodes) for each in node.input}
        constants = [
            self._onnx.numpy_helper.from_array(_storable(array), label)
            for array, label in self._constants.values()
            if label in used
        ]
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, constants)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="pfedbred")
        helper.set_model_props(model, dict(about or {}))
        self._onnx.checker.check_model(model, full_check=True)
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
        """An operator's result, of which the graph is told type and shape."""
        return self._result(name, dtype, shape)

    # For the primitives ---------------------------------------------------------------------------------------------

    def loose(self, given: Given) -> str:
        """Its name where an operator repeats axes of size 1 by itself."""
        return given.name if isinstance(given, Value) else self.constant(given)

    def exact(self, given: Given, shape: Sequence[Any] | None = None) -> str:
        """Its name with all axes repeated to ``shape``."""
        if not isinstance(given, Value) or shape is None or given.shape == tuple(shape):
            return self.loose(given)
        return self.op("Expand", given.name, self.shape(shape))

    def shape(self, sizes: Sequence[Any]) -> np.ndarray | str:
        """A shape for an operator that takes it as an input; it may depend on the batch size."""
        if not any(map(_is_symbolic, sizes)):
            return np.array(sizes, np.int64)
        assert self._size is not None
        parts = []
        for size in sizes:
            if not _is_symbolic(size):
                parts.append(self.constant(np.array([size], np.int64)))
                continue
            times = size // self.batch
            if _is_symbolic(times) or times * self.batch != size:
                raise SettingError(f"ONNX: a shape with the size {size}, for {BATCH} samples, is not supported")
            parts.append(self._size if times == 1 else self.op("Mul", self._size, np.array([times], np.int64)))
        return self.op("Concat", *parts, axis=0)

    def reshaped(self, name: str, shape: Sequence[Any]) -> str:
        """With another shape; the one size that depends on the batch is found by the runtime."""
        symbolic = [place for place, size in enumerate(shape) if _is_symbolic(size)]
        if len(symbolic) == 1:
            return self.op("Reshape", name, np.array([-1 if _is_symbolic(size) else size for size in shape], np.int64))
        return self.op("Reshape", name, self.shape(shape))

    def transposed(self, name: str, axes: Sequence[int]) -> str:
        """With the axes in this order."""
        order = [int(axis) for axis in axes]
        return name if order == sorted(order) else self.op("Transpose", name, perm=order)

    def cast(self, name: str, dtype: Any) -> str:
        """In another type."""
        return self.op("Cast", name, to=self._onnx_type(dtype))

    # Programs -------------------------------------------------------------------------------------------------------

    def _run(self, program: Any, constants: Sequence[Any], given: Sequence[Given]) -> list[Given]:
        """Converts a program's equations one by one."""
        found: dict[Any, Given] = dict(zip(program.constvars, map(np.asarray, constants), strict=True))
        found |= zip(program.invars, given, strict=True)

        def read(each: Any) -> Given:
            return np.asarray(each.val, each.aval.dtype) if isinstance(each, core.Literal) else found[each]

        for equation in program.eqns:
            results = self._converted(equation, [read(each) for each in equation.invars])
            found |= zip(equation.outvars, results, strict=True)
        return [read(each) for each in program.outvars]

    def _converted(self, equation: Any, given: list[Given]) -> Sequence[Given]:
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
            raise SettingError(f"ONNX: this model computes {name!r}, for which there is no conversion; export it as safetensors")
        made = convert(self, equation, *given)
        if not equation.primitive.multiple_results:
            made = [made]
        return [self._as_result(each, out.aval) for each, out in zip(made, equation.outvars, strict=True)]

    def _whole(self, given: Given, aval: Any) -> Given:
        if not isinstance(given, Value):
            return given
        return self._result(self.exact(given, aval.shape), aval.dtype, aval.shape)

    def _as_result(self, made: str | Value, aval: Any) -> Value:
        name, shape = (made, aval.shape) if isinstance(made, str) else made
        return self._result(name, aval.dtype, shape)

    def _loop(self, equation: Any, given: list[Given]) -> list[Given]:
        """A loop over the first axis of some inputs: ONNX's Scan, whose body reads the graph around it by name."""
        params, closed = equation.params, equation.params["jaxpr"]
        fixed, carried = params["num_consts"], params["num_carry"]
        avals = [each.aval for each in equation.invars]
        outer, self._nodes = self._nodes, []
        inside: list[Given] = list(given[:fixed])
        inputs = []
        for variable in closed.jaxpr.invars[fixed:]:
            name = self._new("loop")
            inputs.append(self._described(name, variable.aval.dtype, variable.aval.shape))
            inside.append(self._result(name, variable.aval.dtype, variable.aval.shape))
        outputs = []
        for value, variable in zip(
            self._run(closed.jaxpr, closed.consts, inside), closed.jaxpr.outvars, strict=True
        ):
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
        name = next(each for number in itertools.count(len(self._taken)) if (each := f"{kind}_{number}") not in self._taken)
        return self._named(name)

    def _described(self, name: str, dtype: Any, shape: Sequence[Any]) -> Any:
        sizes = [str(size) if _is_symbolic(size) else int(size) for size in shape]
        return self._onnx.helper.make_tensor_value_info(name, self._onnx_type(dtype), sizes)

    def _onnx_type(self, dtype: Any) -> int:
        if dtype is str:
            return int(self._onnx.TensorProto.STRING)
        return int(self._onnx.helper.np_dtype_to_tensor_dtype(_storable(np.zeros(0, dtype)).dtype))


def _library() -> Any:
    try:
        library = importlib.import_module("onnx")
    except ImportError:
        raise SettingError("the format onnx needs onnx: pip install 'pfedbred[onnx]'") from None
    importlib.import_module("onnx.checker")
    importlib.import_module("onnx.numpy_helper")
    return library


def _storable(array: np.ndarray) -> np.ndarray:
    """Half precision as float32."""
    return array.astype(np.float32) if array.dtype == jax.numpy.bfloat16 else array


def _is_symbolic(size: Any) -> bool:
    return not isinstance(size, int | np.integer)


def _symbolic(variable: Any) -> bool:
    return any(map(_is_symbolic, variable.aval.shape))


def _all_nodes(nodes: Sequence[Any]) -> list[Any]:
    """With those in the bodies of loops."""
    inner = [attribute.g.node for node in nodes for attribute in node.attribute if attribute.HasField("g")]
    return [*nodes, *(each for body in inner for each in _all_nodes(body))]


# Primitives ---------------------------------------------------------------------------------------------------------

Convert = Callable[..., Any]
_PRIMITIVES: dict[str, Convert] = {}
"""By name: from the graph, the equation and what it is applied to, to the name of its result, or a list of them."""


def _converts(*names: str) -> Callable[[Convert], Convert]:
    def register(convert: Convert) -> Convert:
        _PRIMITIVES.update(dict.fromkeys(names, convert))
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


def _one(like: Any, value: float = 1) -> np.ndarray:
    """A number in the type of a variable."""
    return _storable(np.asarray(value, like.aval.dtype))


_SAME = {
    **{"add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "neg": "Neg"},
    **{"abs": "Abs", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "sqrt": "Sqrt", "exp": "Exp", "log": "Log"},
    **{"sin": "Sin", "cos": "Cos", "tan": "Tan", "tanh": "Tanh", "logistic": "Sigmoid", "erf": "Erf"},
    **{"max": "Max", "min": "Min", "eq": "Equal", "lt": "Less", "le": "LessOrEqual"},
    **{"gt": "Greater", "ge": "GreaterOrEqual", "atan": "Atan", "asin": "Asin", "acos": "Acos"},
}
"""Primitives of entries that are one operator."""

for _name, _kind in _SAME.items():
    _PRIMITIVES[_name] = _entrywise(lambda graph, equation, *names, kind=_kind: graph.op(kind, *names))


@_converts("ne")
@_entrywise
def _not_equal(graph: Graph, equation: Any, a: str, b: str) -> str:
    return graph.op("Not", graph.op("Equal", a, b))


@_converts("and", "or", "xor", "not")
@_entrywise
def _logical(graph: Graph, equation: Any, *names: str) -> str:
    kind = equation.primitive.name.capitalize()
    return graph.op(kind if equation.outvars[0].aval.dtype == bool else f"Bitwise{kind}", *names)


@_converts("rsqrt")
@_entrywise
def _inverse_root(graph: Graph, equation: Any, x: str) -> str:
    return graph.op("Reciprocal", graph.op("Sqrt", x))


@_converts("square")
@_entrywise
def _square(graph: Graph, equation: Any, x: str) -> str:
    return graph.op("Mul", x, x)


@_converts("integer_pow")
@_entrywise
def _power(graph: Graph, equation: Any, x: str) -> str:
    power = equation.params["y"]
    return graph.op("Mul", x, x) if power == 2 else graph.op("Pow", x, _one(equation.invars[0], power))


@_converts("erfc")
@_entrywise
def _erfc(graph: Graph, equation: Any, x: str) -> str:
    return graph.op("Sub", _one(equation.invars[0]), graph.op("Erf", x))


@_converts("log1p")
@_entrywise
def _log1p(graph: Graph, equation: Any, x: str) -> str:
    return graph.op("Log", graph.op("Add", x, _one(equation.invars[0])))


@_converts("expm1")
@_entrywise
def _expm1(graph: Graph, equation: Any, x: str) -> str:
    return graph.op("Sub", graph.op("Exp", x), _one(equation.invars[0]))


@_converts("round")
@_entrywise
def _round(graph: Graph, equation: Any, x: str) -> str:
    if equation.params["rounding_method"] != jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        raise SettingError("ONNX: rounding halves away from zero is not supported")
    return graph.op("Round", x)


@_converts("is_finite")
@_entrywise
def _is_finite(graph: Graph, equation: Any, x: str) -> str:
    return graph.op("Not", graph.op("Or", graph.op("IsNaN", x), graph.op("IsInf", x)))


@_converts("rem")
@_entrywise
def _remainder(graph: Graph, equation: Any, a: str, b: str) -> str:
    return graph.op("Mod", a, b, fmod=1)


@_converts("clamp")
@_entrywise
def _clamp(graph: Graph, equation: Any, low: str, x: str, high: str) -> str:
    return graph.op("Min", graph.op("Max", x, low), high)


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
    before, after = (_one(each[0], 0).dtype for each in (equation.invars, equation.outvars))
    return x if before == after else graph.cast(x, after)


@_converts("stop_gradient", "copy", "copy_p", "reduce_precision", "name", "sharding_constraint", "pvary")
@_entrywise
def _same(graph: Graph, equation: Any, x: str) -> str:
    return x


# Shapes


@_converts("broadcast_in_dim")
def _broadcast(graph: Graph, equation: Any, x: Given, *sizes: Given) -> Value:
    """Axes of size 1 where there were none; they are repeated only where somebody needs it."""
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
    return graph.op("Slice", name, *map(np.ascontiguousarray, (starts, ends)), np.array(list(cuts), np.int64), steps.copy())


@_converts("slice")
def _slice(graph: Graph, equation: Any, x: Given) -> str:
    params, shape = equation.params, equation.invars[0].aval.shape
    steps = params["strides"] or (1,) * len(shape)
    cuts = {
        axis: cut
        for axis, cut in enumerate(zip(params["start_indices"], params["limit_indices"], steps, strict=True))
        if cut != (0, shape[axis], 1)
    }
    if any(map(_is_symbolic, itertools.chain.from_iterable(cuts.values()))):
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
        if not isinstance(start, np.ndarray) or _is_symbolic(shape[axis]):
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
    if _is_symbolic(shape[axis]):
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
    return graph.transposed(found, np.argsort(names.out_spec))


@_converts("reduce_window_max")
def _max_pool(graph: Graph, equation: Any, x: Given) -> str:
    return _pooled(graph, equation, x, "MaxPool")


@_converts("reduce_window_sum")
def _sum_pool(graph: Graph, equation: Any, x: Given) -> str:
    mean = _pooled(graph, equation, x, "AveragePool", count_include_pad=1)
    return graph.op("Mul", mean, _one(equation.invars[0], math.prod(equation.params["window_dimensions"])))


def _pooled(graph: Graph, equation: Any, x: Given, kind: str, **options: Any) -> str:
    """Pooling over the axes between the first and the last, which are samples and channels."""
    params, shape = equation.params, equation.invars[0].aval.shape
    window, steps, padding = (params[key] for key in ("window_dimensions", "window_strides", "padding"))
    dilated = {*params["base_dilation"], *params["window_dilation"]} != {1}
    if dilated or len(shape) < 3 or any((window[axis], steps[axis], *padding[axis]) != (1, 1, 0, 0) for axis in (0, -1)):
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
    return graph.transposed(found, np.argsort(axes))


@_converts("gather")
def _gather(graph: Graph, equation: Any, x: Given, places: Given) -> str:
    """Rows by their number, such as the vectors of words; or a slice at a known place, which JAX traces so."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape, at = (each.aval for each in equation.invars)
    axes = list(numbers.start_index_map)
    if isinstance(places, np.ndarray) and places.ndim == 1:
        return _taken_out(graph, graph.exact(x, shape.shape), shape.shape, dict(zip(axes, places, strict=True)), equation)
    others = [axis for axis in range(shape.ndim) if axis not in axes]
    whole = all(sizes[axis] == shape.shape[axis] for axis in others)
    if numbers.operand_batching_dims or sorted(numbers.collapsed_slice_dims) != sorted(axes) or not whole:
        raise SettingError("ONNX: this way of indexing is not supported, only rows by number")
    rows, bounds = graph.exact(places, at.shape), [shape.shape[axis] for axis in axes]
    if any(map(_is_symbolic, bounds[1:])):
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
    # The axes of the numbers are first now; JAX has them wherever no axis of the rows is.
    own, first = iter(range(at.ndim - 1, equation.outvars[0].aval.ndim)), iter(range(at.ndim - 1))
    order = [next(own if axis in numbers.offset_dims else first) for axis in range(equation.outvars[0].aval.ndim)]
    return graph.transposed(found, order)


def _taken_out(graph: Graph, name: str, shape: Sequence[Any], starts: Mapping[int, Any], equation: Any) -> str:
    """A slice from these places on, along these axes, without the axes that are left out."""
    cuts = {}
    for axis, size in enumerate(equation.params["slice_sizes"]):
        if size == shape[axis]:
            continue
        if _is_symbolic(shape[axis]):
            raise SettingError("ONNX: a part of the samples is not supported; the network must treat every sample alike")
        first = min(max(int(starts.get(axis, 0)), 0), shape[axis] - size)
        cuts[axis] = (first, first + size, 1)
    gone = equation.params["dimension_numbers"].collapsed_slice_dims
    found = _sliced(graph, name, cuts)
    return graph.op("Squeeze", found, np.array(gone, np.int64)) if gone else found
