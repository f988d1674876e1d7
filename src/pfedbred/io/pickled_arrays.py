"""The arrays of a pickled dict, without unpickling: ``np.savez(file, data={"x": ..., "y": ...})`` writes one.

Unpickling runs whatever a file asks for. Limiting it to NumPy's own functions, as restricted unpicklers do
(fickling's, for one), is not enough: the state of a dtype can make NumPy read bytes of the file as addresses. Here a
file's instructions are read as data: lists, tuples and dicts are built, and what would be imported or called is only
recorded. The arrays are then built from their types, shapes and bytes, which are checked. Everything else is rejected.
"""

from __future__ import annotations

import pickletools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from pfedbred.errors import SettingError

_NUMBER = re.compile(r"[iuf][1248]")
_ARRAY = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_PLAIN = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_WITH_VALUE = (
    *("BININT", "BININT1", "BININT2", "LONG1"),
    *("SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
)
_MARK = object()  # where a tuple, or a run of entries, begins on the stack


class _Unsupported(Exception):
    """Anything but a dict of arrays of numbers."""


@dataclass(frozen=True)
class _ImportedName:
    """What would be imported."""

    text: str


@dataclass
class _Call:
    """What would be called with which arguments, and the state that the result would be given."""

    function: Any
    arguments: Any
    state: Any = None


def read_pickled(content: bytes, where: str) -> dict[str, np.ndarray]:
    """The arrays of a pickled dict, by name; ``where`` names its source in error messages."""
    try:
        shape, kind, _, objects = _array_parts(_build(content))
        if shape != () or kind.char != "O" or not isinstance(objects, list) or len(objects) != 1:
            raise _Unsupported
        (entries,) = objects
        if not isinstance(entries, dict):
            raise _Unsupported
        return {name: _numbers(value) for name, value in entries.items()}
    except _Unsupported:
        raise SettingError(f"cannot read {where}: it holds Python objects other than a dict of arrays") from None
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError, MemoryError):
        raise SettingError(f"cannot read {where}: it is damaged") from None


def _build(content: bytes) -> Any:
    """The result of the instructions, with a :class:`_Call` in place of every object they would make."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    value: Any
    for opcode, value, _ in pickletools.genops(content):
        name = opcode.name
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            (result,) = stack
            return result
        if name in _PLAIN:
            stack.append(_PLAIN[name])
        elif name in _WITH_VALUE:
            stack.append(value)
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if value is None else value] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(_popped(stack, int(name[-1]))))
        elif name == "TUPLE":
            stack.append(tuple(_since_mark(stack)))
        elif name in ("APPEND", "APPENDS"):
            items = _popped(stack, 1) if name == "APPEND" else _since_mark(stack)
            _last(stack, list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = _popped(stack, 2) if name == "SETITEM" else _since_mark(stack)
            if not all(isinstance(key, str) for key in items[::2]):
                raise _Unsupported
            _last(stack, dict).update(zip(items[::2], items[1::2], strict=True))
        elif name == "GLOBAL":
            stack.append(_ImportedName(value))
        elif name == "STACK_GLOBAL":
            stack.append(_ImportedName(" ".join(_popped(stack, 2))))
        elif name == "REDUCE":
            stack.append(_Call(*_popped(stack, 2)))
        elif name == "BUILD":
            (state,) = _popped(stack, 1)
            _last(stack, _Call).state = state
        else:
            raise _Unsupported
    raise ValueError


def _popped(stack: list[Any], count: int) -> list[Any]:
    if len(stack) < count:
        raise IndexError
    taken = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return taken


def _since_mark(stack: list[Any]) -> list[Any]:
    place = len(stack) - 1
    while stack[place] is not _MARK:  # from the end: everything passed is taken
        place -= 1
    taken = stack[place + 1 :]
    del stack[place:]
    return taken


def _last(stack: list[Any], kind: type) -> Any:
    if not isinstance(stack[-1], kind):
        raise _Unsupported
    return stack[-1]


def _array_parts(value: Any) -> tuple[Any, np.dtype[Any], bool, Any]:
    """Shape, type, whether in Fortran order, and content of what would become an array."""
    if (
        not isinstance(value, _Call)
        or not isinstance(value.function, _ImportedName)
        or value.function.text not in _ARRAY
    ):
        raise _Unsupported
    if value.arguments[0] != _ImportedName("numpy ndarray"):  # a subclass
        raise _Unsupported
    _, shape, kind, fortran, content = value.state
    if not isinstance(shape, tuple) or not all(type(each) is int and 0 <= each < 2**63 for each in shape):
        raise ValueError
    if len(shape) > 32 or not isinstance(fortran, bool):
        raise ValueError
    return shape, _dtype(kind), fortran, content


def _dtype(value: Any) -> np.dtype[Any]:
    if not isinstance(value, _Call) or value.function != _ImportedName("numpy dtype"):
        raise _Unsupported
    text, (_, order, *inner) = value.arguments[0], value.state
    if text in ("O", "O8"):
        return np.dtype(object)
    if not isinstance(text, str) or not _NUMBER.fullmatch(text) or order not in ("<", ">", "|", "="):
        raise _Unsupported  # bytes, texts, dates, records
    if any(each is not None for each in inner[:3]):
        raise _Unsupported
    return np.dtype(order + text)


def _numbers(value: Any) -> np.ndarray:
    shape, kind, fortran, content = _array_parts(value)
    if kind.char == "O":
        raise _Unsupported
    if not isinstance(content, bytes):
        raise ValueError
    return np.frombuffer(content, kind).reshape(shape, order="F" if fortran else "C")
