"""Settings are declared once, in the signature of the function that uses them.

An algorithm is a function ``name(task, *, lam: Positive = 15.0, ...)``. Its signature gives the names that ``--set``
accepts, their defaults, their types and the values they allow.

pydantic's ``validate_call`` checks arguments against a signature too, but it cannot list the settings of a function
built from others (wrappers, methods that fix some settings), nor let a value be traced by JAX in a sweep, and its
errors are many lines.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import jax

from pfedbred.errors import SettingError, nearest
from pfedbred.settings.schedules import check_schedule, is_schedule, may_vary
from pfedbred.settings.values import InPlaceOf, check

Function = TypeVar("Function", bound=Callable[..., Any])


def same_settings(
    base: Callable[..., Any], *more: Callable[..., Any], without: tuple[str, ...]
) -> Callable[[Function], Function]:
    """Declares that a function passes its settings on to ``base`` and ``more``, except those it fixes itself.

    A setting that the function declares itself, with its own default, replaces the one of the same name.
    """
    signature = inspect.signature(base, eval_str=True)
    parameters = [*signature.parameters.values(), *(each for other in more for each in declared(other).values())]
    kept = [each for each in parameters if each.name not in without]

    def declare(function: Function) -> Function:
        own = declared(function)
        replaced = [own.get(each.name, each) for each in kept]
        function.__signature__ = signature.replace(parameters=replaced)  # type: ignore[attr-defined]
        function.settings_of = (base, *more)  # type: ignore[attr-defined]
        return function

    return declare


Settle = Callable[[Mapping[str, Any], int], Any]
"""``settle(settings, clients)`` is the value of an omitted setting, once the number of clients is known."""


def settled_by_clients(**rules: Settle) -> Callable[[Function], Function]:
    """Declares how settings that default to None follow from the number of clients."""

    def declare(function: Function) -> Function:
        function.settled = rules  # type: ignore[attr-defined]
        return function

    return declare


def settled(function: Any, settings: Mapping[str, Any], clients: int) -> dict[str, Any]:
    """The settings, completed by those that the number of clients decides."""
    rules: Mapping[str, Settle] = getattr(function, "settled", {})
    decided = {name: rule(settings, clients) for name, rule in rules.items() if settings.get(name, 0) is None}
    return {**settings, **decided}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function that the user gave; raises SettingError if it has no inspectable signature."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise SettingError(f"{function!r} cannot be used here: wrap it in a function with named parameters") from None


def declared(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The settings of an algorithm: its keyword-only parameters."""
    parameters = inspect.signature(function, eval_str=True).parameters
    return {name: each for name, each in parameters.items() if each.kind is inspect.Parameter.KEYWORD_ONLY}


def build_part(what: str, function: Callable[..., Any], available: Mapping[str, Any]) -> Any:
    """What a function given as ``what`` builds from those available settings that it takes."""
    taken = {each.name: available[each.name] for each in parameters(function) if each.name in available}
    try:
        inspect.signature(function).bind(**taken)
    except TypeError as problem:
        may = f"may take {' and '.join(available)}" if available else "takes no arguments"
        raise SettingError(f"a function given as {what} {may}: {problem}") from None
    with building(what, function):
        return function(**taken)


@contextmanager
def building(what: str, given: object) -> Iterator[None]:
    """Makes what a user's function raises while it builds its ``what`` one line that names it.

    What is given by name is this package's own, whose faults keep their traceback.
    """
    try:
        yield
    # Where settings vary it is told that one of them decides how something is built; where a run is started, that
    # memory is exhausted.
    except (SettingError, MemoryError, jax.errors.JaxRuntimeError, jax.errors.ConcretizationTypeError):
        raise
    except Exception as problem:
        if isinstance(given, str):
            raise
        name = getattr(given, "__name__", given)
        raise SettingError(f"the {what} {name} cannot be built: {type(problem).__name__}: {problem}") from problem


def hints(owner: Any) -> dict[str, Any]:
    """The annotations of a class, constraints included."""
    return typing.get_type_hints(owner, include_extras=True)


def is_whole_number(annotation: Any) -> bool:
    """Whether values of this type are whole numbers (or None)."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    options = typing.get_args(annotation) if union else (annotation,)
    return any(typing.get_origin(each) is Annotated and typing.get_args(each)[0] is int for each in options)


def resolve(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of ``function``: those given, checked, and the others at their defaults.

    Where one setting replaces another (epochs and R), only the one in use is included.
    """
    known = declared(function)
    given = {name: value for name, value in given.items() if not (value is None and name in alternatives(function))}
    for name in given:
        if name not in known:
            raise SettingError(f"unknown setting {name!r}{nearest(name, known)}")
    for name, parameter in known.items():
        if name not in given and parameter.default is inspect.Parameter.empty:
            raise SettingError(f"the setting {name!r} has no default: it must be given")
    unused = set()
    for name, other in alternatives(function).items():
        if name in given and other in given:
            raise SettingError(f"{name} replaces {other}: give only one of them")
        unused.add(other if name in given else name)
    return {
        name: _check(name, given[name], parameter.annotation) if name in given else parameter.default
        for name, parameter in known.items()
        if name not in unused
    }


def _check(name: str, value: Any, annotation: Any) -> Any:
    """A value, or a schedule of values."""
    # A method built from others passes on what a sweep or a schedule varies: a number in an array, which is not known
    # while a program is traced, and was checked where it was given.
    if isinstance(value, jax.core.Tracer):
        return _check_traced(name, value, annotation)
    if isinstance(value, jax.Array) and value.ndim == 0:
        value = value.item()
    scheduled = isinstance(value, Mapping) and "schedule" in value
    if scheduled or (may_vary(annotation) and is_schedule(value)):
        return check_schedule(name, value, annotation)
    return check(name, value, annotation)


def _check_traced(name: str, value: jax.core.Tracer[Any], annotation: Any) -> jax.core.Tracer[Any]:
    """The number, if the setting may vary; else what JAX raises where a value is needed that is not known."""
    if not may_vary(annotation):
        try:
            check(name, value, annotation)
        except SettingError:
            raise jax.errors.ConcretizationTypeError(value, f"{name} decides how the program is built.") from None
    return value


def alternatives(function: Callable[..., Any]) -> dict[str, str]:
    """The settings that can replace another, and which one they replace."""
    return {
        name: rule.other
        for name, parameter in declared(function).items()
        for rule in getattr(parameter.annotation, "__metadata__", ())
        if isinstance(rule, InPlaceOf)
    }


_CALL = re.compile(r"\s*([^()\s]+)\s*(?:\(([^()]*)\))?\s*")


def parse_call(kind: str, text: str) -> tuple[str, list[str]]:
    """A name and the values in parentheses after it: ``dirichlet(0.5)``."""
    match = _CALL.fullmatch(text)
    if not match:
        raise SettingError(f"{kind} must be a name, or a name with values such as dirichlet(0.5), not {text!r}")
    values = [each.strip() for each in match[2].split(",")] if match[2] and match[2].strip() else []
    return match[1], values


def resolve_call(
    name: str, function: Callable[..., Any], values: Sequence[str], without: Sequence[str] = ()
) -> dict[str, Any]:
    """The settings of ``function``, from the values in parentheses: in order, or by name as in ``huber(c=0.1)``."""
    known = {key: each for key, each in declared(function).items() if key not in without}
    if len(values) > len(known):
        takes = f"takes {', '.join(known)}" if known else "takes no values"
        raise SettingError(f"{name}({', '.join(values)}): {name} {takes}")
    given: dict[str, str] = {}
    for place, value in enumerate(values):
        key, named, rest = (each.strip() for each in value.partition("="))
        key = key if named else list(known)[place]
        if key not in known:
            raise SettingError(f"{name} has no setting {key!r}{nearest(key, known)}")
        if key in given:
            raise SettingError(f"{name}({', '.join(values)}): {key} is given twice")
        given[key] = rest if named else value
    return {
        key: check(f"{name}'s {key}", given[key], each.annotation) if key in given else each.default
        for key, each in known.items()
    }
