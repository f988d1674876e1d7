"""What settings mean, in words: from the docstrings of the functions that use them.

Docstring parsers such as ``docstring_parser`` read one docstring; the settings of an algorithm may be described in that
of another, to which it passes them on.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from pfedbred.settings.signatures import declared

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
