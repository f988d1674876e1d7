"""Hyper-parameters: declared once, in the signature of the function that uses them.

An algorithm is a function ``name(task, *, lam: Positive = 15.0, ...)``. From its signature come the names that
``--set`` accepts, their defaults, their types and what values are possible.
"""

from __future__ import annotations

import inspect
import numbers
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pfedbred.errors import SettingError, nearest
from pfedbred.reading import parse_yaml


class Rule(NamedTuple):
    """What a number must satisfy, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


LARGEST_FLOAT = 3.4028234e38  # beyond it a weight is infinite

Positive = Annotated[float, Rule("a number > 0", lambda value: value > 0)]
NonNegative = Annotated[float, Rule("a number >= 0", lambda value: value >= 0)]
Fraction = Annotated[float, Rule("a number from 0 to 1", lambda value: 0 <= value <= 1)]
Minority = Annotated[float, Rule("a number >= 0 and below 0.5", lambda value: 0 <= value < 0.5)]
Count = Annotated[int, Rule("a whole number >= 1 and below 2**31", lambda value: 1 <= value < 2**31)]
Few = Annotated[int, Rule("a whole number from 1 to 1000", lambda value: 1 <= value <= 1000)]
Seed = Annotated[int, Rule("a whole number from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32)]
NonNegativeCount = Annotated[int, Rule("a whole number >= 0", lambda value: value >= 0)]

Function = TypeVar("Function", bound=Callable[..., Any])


def same_settings(base: Callable[..., Any], *, without: tuple[str, ...]) -> Callable[[Function], Function]:
    """Declares that a function passes its settings on to ``base``, except those it fixes itself."""
    signature = inspect.signature(base, eval_str=True)
    kept = [each for name, each in signature.parameters.items() if name not in without]

    def declare(function: Function) -> Function:
        function.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return function

    return declare


def declared(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The settings of an algorithm: its keyword-only parameters."""
    parameters = inspect.signature(function, eval_str=True).parameters
    return {name: each for name, each in parameters.items() if each.kind is inspect.Parameter.KEYWORD_ONLY}


def hints(owner: Any) -> dict[str, Any]:
    """The annotations of a class, rules included."""
    return typing.get_type_hints(owner, include_extras=True)


def is_whole_number(annotation: Any) -> bool:
    """Whether values of this type are whole numbers (or None)."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    options = typing.get_args(annotation) if union else (annotation,)
    return any(typing.get_origin(each) is Annotated and typing.get_args(each)[0] is int for each in options)


def resolve(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of ``function``, those given checked and the others at their defaults."""
    known = declared(function)
    for name in given:
        if name not in known:
            raise SettingError(f"unknown setting {name!r}{nearest(name, known)}")
    return {
        name: check(name, given[name], parameter.annotation) if name in given else parameter.default
        for name, parameter in known.items()
    }


_CALL = re.compile(r"\s*([^()\s]+)\s*(?:\(([^()]*)\))?\s*")


def parse_call(kind: str, text: str) -> tuple[str, list[str]]:
    """A name and what stands in parentheses after it: ``dirichlet(0.5)``."""
    match = _CALL.fullmatch(text)
    if not match:
        raise SettingError(f"{kind} must be a name, or a name with values such as dirichlet(0.5), not {text!r}")
    values = [each.strip() for each in match[2].split(",")] if match[2] and match[2].strip() else []
    return match[1], values


def resolve_call(
    name: str, function: Callable[..., Any], values: Sequence[str], without: Sequence[str] = ()
) -> dict[str, Any]:
    """The settings of ``function``, the first of them from the values in parentheses."""
    known = {key: each for key, each in declared(function).items() if key not in without}
    if len(values) > len(known):
        takes = f"takes {', '.join(known)}" if known else "takes no values"
        raise SettingError(f"{name}({', '.join(values)}): {name} {takes}")
    given = dict(zip(known, values, strict=False))
    return {
        key: check(f"{name}'s {key}", given[key], each.annotation) if key in given else each.default
        for key, each in known.items()
    }


def check(name: str, value: Any, annotation: Any) -> Any:
    """``value`` as the annotated type, or a one-line error."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        kind, rule = typing.get_args(annotation)
        number = _number(value, kind)
        if number is not None and kind is float and abs(number) > LARGEST_FLOAT:
            raise SettingError(
                f"{name} must be a number that 32 bits can hold, below {LARGEST_FLOAT:.2g}, not {value!r}"
            )
        if number is None or not rule.holds(number):
            raise SettingError(f"{name} must be {rule.words}, not {value!r}")
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
    if annotation is str and not isinstance(value, str):
        raise SettingError(f"{name} must be a name, not {value!r}")
    return value


def _check_union(name: str, value: Any, options: tuple[Any, ...]) -> Any:
    """The first option that fits; an object of one's own fits any option that is a plain class."""
    problem: SettingError | None = None
    for option in options:
        if option is Any or (isinstance(option, type) and isinstance(value, option)):
            return value
        origin = typing.get_origin(option)
        if (origin is Callable and callable(value)) or (origin is list and isinstance(value, list)):
            return value
        if typing.get_origin(option) in (Annotated, Literal):
            try:
                return check(name, value, option)
            except SettingError as refused:
                problem = refused
    raise problem or SettingError(f"{name} cannot be {value!r}")


_LARGEST = sys.float_info.max


def _number(value: Any, kind: type) -> Any:
    """A finite int or float, or None."""
    number = parse_number(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        return None
    number = float(number) if not isinstance(number, numbers.Integral) else int(number)
    if not -_LARGEST < number < _LARGEST:  # also where it is NaN, or a whole number beyond any float
        return None
    return kind(number) if kind is float or number == int(number) else None


def assignment(text: str) -> tuple[str, Any]:
    """The name and the value of a text such as ``lam=30``."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise SettingError(f"a setting is given as NAME=VALUE, such as lam=30, not {text!r}")
    number = parse_number(value)
    if number is not None:
        return name.strip(), number
    return name.strip(), parse_yaml(value, f"the value in {text!r}")


def parse_number(text: str) -> int | float | None:
    """The number that ``text`` is, if it is one. YAML would read 1e-3 as a text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _hint(value: Any, allowed: tuple[Any, ...]) -> str:
    hint = nearest(str(value), [str(each) for each in allowed])
    return hint if "did you mean" in hint else ""
