"""Settings in words: what docstrings say about them."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pfedbred.settings.signatures import declared
from pfedbred.settings.values import InPlaceOf

_ENTRY = re.compile(r"^  (?! )(\w+): ")


def arguments(function: Callable[..., Any]) -> dict[str, str]:
    """The ``Args:`` of a function's docstring, by name; each text on one line.

    >>> def f(a, b):
    ...     '''One line.
    ...
    ...     Args:
    ...       a: the first,
    ...         and more about it.
    ...       b: the second.
    ...
    ...     References: none.
    ...     '''
    >>> arguments(f)
    {'a': 'the first, and more about it.', 'b': 'the second.'}
    """
    _, _, section = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    found: dict[str, list[str]] = {}
    name = None
    for line in section.splitlines():
        if not line.startswith("  "):  # the section's end
            break
        if entry := _ENTRY.match(line):
            name = entry[1]
            found[name] = [line[entry.end() :].strip()]
        elif name:
            found[name].append(line.strip())
    return {name: " ".join(lines) for name, lines in found.items()}


def in_words(function: Callable[..., Any]) -> dict[str, str]:
    """Every setting of a function in words: its docstring's, or those of the functions that it passes it on to."""
    words: dict[str, str] = {}
    for each in reversed(_passed_on(function)):
        words |= arguments(each)
    return {name: words.get(name, "") for name in declared(function)}


def _passed_on(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The function, and those that take its settings."""
    return [function, *(each for base in getattr(function, "passes_on_to", ()) for each in _passed_on(base))]


def allowed(annotation: Any) -> str:
    """Which values a setting of this type may have, in words; empty where the type does not say it.

    >>> from pfedbred.settings.values import Epochs, Positive
    >>> allowed(Positive)
    'a number > 0'
    >>> allowed(Literal["theta", "global"])
    'theta, global'
    >>> allowed(Epochs)
    'a whole number >= 1 and below 2**31'
    """
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        kind, rule = parts
        return allowed(kind) if isinstance(rule, InPlaceOf) else rule.words
    if origin is Literal:
        return ", ".join(map(str, parts))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(filter(None, map(allowed, parts)))
    return ""
