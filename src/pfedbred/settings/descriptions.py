"""What settings mean, in words: from the docstrings of the functions that use them.

Docstring parsers such as ``docstring_parser`` read one docstring; an algorithm's settings may be described in the
docstring of another, to which it passes them on.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pfedbred.settings.signatures import declared
from pfedbred.settings.values import InPlaceOf

_ENTRY = re.compile(r"  (\w+): (.*)")


def described(function: Callable[..., Any]) -> dict[str, str]:
    """The settings of a function, each with its description; empty where there is none."""
    found = _arguments(inspect.getdoc(function) or "")
    for other in getattr(function, "settings_of", ()):
        found = {**described(other), **found}
    return {name: found.get(name, "") for name in declared(function)}


def plain(text: str) -> str:
    """A docstring's text without its markup: ``:func:`~a.b``` is b."""
    text = re.sub(r":\w+:`~(?:[\w.]*\.)?(\w+)`", r"\1", text)
    return re.sub(r":\w+:`([^`]+)`", r"\1", text).replace("``", "")


def allowed(annotation: Any) -> str:
    """The values that a setting of this type may have, in words; empty if the type does not restrict them.

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


def _arguments(doc: str) -> dict[str, str]:
    """The entries of the section Args."""
    found: dict[str, str] = {}
    _, _, section = doc.partition("\nArgs:\n")
    name = None
    for line in section.splitlines():
        entry = _ENTRY.fullmatch(line)
        if entry:
            name = entry[1]
            found[name] = entry[2]
        elif name and line.startswith("    "):
            found[name] += f" {line.strip()}"
        else:
            break
    return {key: plain(text) for key, text in found.items()}
