"""Shapes of plain values from files, checked with a one-line error that names the wrong part.

jsonschema and pydantic do this for long-lived public schemas; here a shape is a literal next to the code that reads it,
and the message must name the file and the part in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pfedbred.errors import SettingError


class Maybe(NamedTuple):
    """The given shape, or None."""

    shape: Any


class Some(NamedTuple):
    """A non-empty list with entries of the given shape."""

    shape: Any


class Each(NamedTuple):
    """A mapping with any keys, and values of the given shape."""

    shape: Any


NUMBER, FRACTION, COUNT = "a number", "a number from 0 to 1", "a whole number from 0"
_WORDS = {str: "a text", dict: "a mapping", bool: "true or false"}


def expect(value: Any, shape: Any, where: Any, what: str = "its content") -> None:
    """Rejects a value that does not have this ``shape``, naming the wrong part.

    A shape is a class; NUMBER, FRACTION or COUNT; a list with the shape of all entries; a dict with the shapes of
    required entries (others are allowed); a Maybe, a Some or an Each.
    """
    if isinstance(shape, Maybe):
        if value is not None:
            expect(value, shape.shape, where, what)
    elif isinstance(shape, dict):
        _require(isinstance(value, Mapping), what, "a mapping", value, where)
        for name, inner in shape.items():
            if name not in value:
                raise SettingError(f"{where} is damaged, or of another version: {what} has no {name!r}")
            expect(value[name], inner, where, repr(name))
    elif isinstance(shape, Each):
        _require(isinstance(value, Mapping), what, "a mapping", value, where)
        expect(list(value.values()), [shape.shape], where, what)
    elif isinstance(shape, list):
        _require(isinstance(value, list), what, "a list", value, where)
        for each in value:
            expect(each, shape[0], where, f"an entry of {what}")
    elif isinstance(shape, Some):
        _require(isinstance(value, list) and bool(value), what, "a list that is not empty", value, where)
        expect(value, [shape.shape], where, what)
    elif shape == FRACTION:
        _require(_is_number(value) and 0 <= value <= 1, what, FRACTION, value, where)
    elif shape == NUMBER:
        _require(_is_number(value), what, NUMBER, value, where)
    elif shape == COUNT:
        _require(
            isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63, what, COUNT, value, where
        )
    else:
        _require(isinstance(value, shape), what, _WORDS[shape], value, where)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -1e300 < value < 1e300


def _require(holds: bool, what: str, words: str, value: Any, where: Any) -> None:
    if not holds:
        found = repr(value) if value is None or isinstance(value, str | int | float) else f"a {type(value).__name__}"
        raise SettingError(f"{where} is damaged, or of another version: {what} must be {words}, not {found}")
