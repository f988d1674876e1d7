"""The types of settings: what values are allowed, and a one-line error for those that are not.

pydantic has constrained numbers too; why it is not used here is in :mod:`pfedbred.settings.signatures`.
"""

from __future__ import annotations

import numbers
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from pfedbred.errors import SettingError, nearest


class Constraint(NamedTuple):
    """What a number must satisfy, in words and as a predicate; and whether it decides how the program is built."""

    words: str
    holds: Callable[[Any], bool]
    builds: bool = False


class InPlaceOf(NamedTuple):
    """Marks a setting that replaces another: only one of the two is ever set."""

    other: str


LARGEST_FLOAT = 3.4028234e38  # beyond this a float32 is infinite

Positive = Annotated[float, Constraint("a number > 0", lambda value: value > 0)]
NonNegative = Annotated[float, Constraint("a number >= 0", lambda value: value >= 0)]
Tolerance = Annotated[float, Constraint("a number >= 0", lambda value: value >= 0, builds=True)]
Fraction = Annotated[float, Constraint("a number from 0 to 1", lambda value: 0 <= value <= 1)]
Level = Annotated[float, Constraint("a number above 0 and below 1", lambda value: 0 < value < 1)]
Minority = Annotated[float, Constraint("a number >= 0 and below 0.5", lambda value: 0 <= value < 0.5)]
Count = Annotated[int, Constraint("a whole number >= 1 and below 2**31", lambda value: 1 <= value < 2**31)]
Few = Annotated[int, Constraint("a whole number from 1 to 1000", lambda value: 1 <= value <= 1000)]
Seed = Annotated[int, Constraint("a whole number from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32)]
Epochs = Annotated[Count | None, InPlaceOf("R")]
NonNegativeCount = Annotated[int, Constraint("a whole number >= 0", lambda value: value >= 0)]


def check(name: str, value: Any, annotation: Any) -> Any:
    """``value`` as the annotated type, or a one-line error."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        kind, rule = typing.get_args(annotation)
        if isinstance(rule, InPlaceOf):
            return check(name, value, kind)
        if kind is str:
            if not isinstance(value, str) or not rule.holds(value):
                raise SettingError(f"{name} must be {rule.words}, not {value!r}")
            return value
        number = _number(value, kind)
        if number is None or not rule.holds(number):
            raise SettingError(f"{name} must be {rule.words}, not {value!r}")
        if kind is float and abs(number) > LARGEST_FLOAT:
            raise SettingError(
                f"{name} must be a number that 32 bits can hold, below {LARGEST_FLOAT:.2g}, not {value!r}"
            )
        return number
    if origin is Literal:
        allowed = typing.get_args(annotation)
        if value not in allowed:
            raise SettingError(
                f"{name} must be one of {', '.join(map(str, allowed))}, not {value!r}{_hint(value, allowed)}"
            )
        return value
    if origin in (typing.Union, types.UnionType):
        return _check_union(name, value, typing.get_args(annotation))
    if annotation is bool and not isinstance(value, bool):
        raise SettingError(f"{name} must be true or false, not {value!r}")
    if annotation is str and not isinstance(value, str):
        raise SettingError(f"{name} must be a name, not {value!r}")
    return value


def _check_union(name: str, value: Any, options: tuple[Any, ...]) -> Any:
    """The first option that fits; an option that is a plain class takes its instances."""
    problem: SettingError | None = None
    rules = [typing.get_args(each)[1] for each in options if typing.get_origin(each) is Annotated]
    for option in options:
        if option is Any or (isinstance(option, type) and isinstance(value, option)):
            return value
        origin = typing.get_origin(option)
        if (origin is Callable and callable(value)) or (origin in (list, dict) and isinstance(value, origin)):
            return value
        if typing.get_origin(option) in (Annotated, Literal):
            try:
                return check(name, value, option)
            except SettingError as refused:
                problem = refused
    if len(rules) > 1 and len(rules) == len(options):
        raise SettingError(f"{name} must be {' or '.join(rule.words for rule in rules)}, not {value!r}")
    raise problem or SettingError(f"{name} must be {_kinds(options)}, not {value!r}")


def _kinds(options: tuple[Any, ...]) -> str:
    """What a value may be, in words: a name, a Model or a function."""
    known = {str: "a name", list: "a list", dict: "a mapping", Callable: "a function", type(None): ""}
    words = [known.get(typing.get_origin(each) or each) for each in options]
    words = [f"a {each.__name__}" if word is None else word for word, each in zip(words, options, strict=True)]
    *others, last = [word for word in words if word]
    return f"{', '.join(others)} or {last}" if others else last


_LARGEST = sys.float_info.max


def _number(value: Any, kind: type) -> Any:
    """A finite int or float, or None."""
    number = parse_number(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        return None
    number = float(number) if not isinstance(number, numbers.Integral) else int(number)
    if not -_LARGEST < number < _LARGEST:  # also rejects NaN, and whole numbers beyond any float
        return None
    return kind(number) if kind is float or number == int(number) else None


def parse_number(text: str) -> int | float | None:
    """``text`` as a number, if it is one. YAML would read 1e-3 as a string."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _hint(value: Any, allowed: tuple[Any, ...]) -> str:
    hint = nearest(str(value), [str(each) for each in allowed])
    return hint if "did you mean" in hint else ""
