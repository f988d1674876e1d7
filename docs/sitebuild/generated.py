"""The parts of pages that are made from the code: settings of all methods, the Python reference, the words we use."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pfedbred
from pfedbred import settings
from pfedbred.algorithms.guidance import guidance
from pfedbred.algorithms.wrappers import WRAPPERS


def parts(root: Path) -> dict[str, Callable[[], str]]:
    """By name, what pages ask for with ``<!-- generated: NAME -->``."""
    return {"settings": all_settings, "reference": reference, "words": partial(words, root)}


def all_settings() -> str:
    """A section for each method, and for each suffix: what it does, and a table of its settings."""
    methods = [_section(name, build) for name, build in pfedbred.ALGORITHMS.items()]
    suffixes = [_section(f"+{name}", build) for name, build in WRAPPERS.items()]
    return "\n\n".join([*methods, "## Suffixes", *suffixes])


def _section(name: str, build: Callable[..., Any]) -> str:
    about = getattr(build, "about", None)
    first = (inspect.getdoc(build) or "").split("\n\n", 1)[0].replace("\n", " ")
    lines = [f"### {name}", "", _plain(first), ""]
    if about:
        year = f" ({about.year})" if about.year else ""
        lines += [f"G: {_code(about.global_)} · P: {_code(about.personal)} · {about.paper}{year}", ""]
    lines += ["| setting, default | what it is |", "|---|---|"]
    described, base = settings.described(build), name.removeprefix("+")
    for setting, parameter in settings.declared(build).items():
        allowed = settings.allowed(parameter.annotation)
        default = "" if parameter.default is None else f"= {parameter.default}"
        values = f" *({_cell(allowed)})*" if allowed else ""
        advice = guidance(base, setting)
        sensible = f" Sensible: {_cell(advice)}" if advice else ""
        lines.append(f"| {_code(f'{setting} {default}'.strip())} | {_plain(described[setting])}{values}{sensible} |")
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`"


def _cell(text: str) -> str:
    """Text in which Markdown and tables see nothing of their own."""
    return re.sub(r"([\\*_|<>\[\]])", r"\\\1", text)


def _plain(text: str) -> str:
    """A docstring's words as Markdown: code stays code, and what lies between is plain text."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text)
    pieces = re.split(r"``(.+?)``", text)
    return "".join(_code(piece) if i % 2 else _cell(piece) for i, piece in enumerate(pieces))


_GROUPS = (
    ("Running", ("pfedbred.experiment", "pfedbred.runs")),
    ("Estimators", ("pfedbred.estimators",)),
    ("Data", ("pfedbred.data",)),
    ("Models", ("pfedbred.models",)),
    ("Tasks", ("pfedbred.tasks",)),
    ("Algorithms", ("pfedbred.algorithms",)),
    ("Priors, means and proximal maps", ("pfedbred.bregman",)),
    ("Aggregation", ("pfedbred.aggregation",)),
    ("Engine and metrics", ("pfedbred.engine",)),
    ("Settings, types and errors", ("pfedbred.settings", "pfedbred.types", "pfedbred.errors")),
)
_TABLES = {
    "ALGORITHMS": "pfedbred.algorithms.registry",
    "DATASETS": "pfedbred.data.datasets",
    "METRICS": "pfedbred.engine.metrics",
    "MODELS": "pfedbred.models",
    "RULES": "pfedbred.aggregation",
    "SELECTIONS": "pfedbred.engine.selection",
    "TASKS": "pfedbred.tasks",
}
"""Where the tables of names are: a mapping does not say where it was made."""


def reference() -> str:
    """A directive for mkdocstrings for each public name, in groups by folder."""
    by_group: dict[str, list[str]] = {title: [] for title, _ in _GROUPS}
    for name in pfedbred.__all__:
        path = _path(name)
        if path is None:
            continue
        title = next(title for title, folders in _GROUPS if path.startswith(folders))
        by_group[title].append(f"::: {path}")
    return "\n\n".join(f"## {title}\n\n" + "\n\n".join(entries) for title, entries in by_group.items() if entries)


def _path(name: str) -> str | None:
    """Where a public name is defined; None for what has no docstring to show, such as the version."""
    value = getattr(pfedbred, name)
    if isinstance(value, types.ModuleType):
        return value.__name__
    if name in _TABLES:
        return f"{_TABLES[name]}.{name}"
    module = getattr(value, "__module__", "")
    if not module.startswith("pfedbred.") or not hasattr(value, "__qualname__"):
        return _ALIASES.get(name)
    return f"{module}.{value.__qualname__}"


_ALIASES = {
    "Count": "pfedbred.settings.values.Count",
    "Fraction": "pfedbred.settings.values.Fraction",
    "NonNegative": "pfedbred.settings.values.NonNegative",
    "Positive": "pfedbred.settings.values.Positive",
    "Array": "pfedbred.types.Array",
    "Key": "pfedbred.types.Key",
    "Tree": "pfedbred.types.Tree",
    "Words": "pfedbred.types.Words",
    "Info": "pfedbred.algorithms.base.Info",
    "Rule": "pfedbred.aggregation.base.Rule",
    "Select": "pfedbred.engine.selection.Select",
}
"""Where the types are that are only other names for a type."""


def words(root: Path) -> str:
    """CONTRIBUTING's table of words."""
    text = (root / "CONTRIBUTING.md").read_text()
    found = re.search(r"^\| word \| means .*?(?=\n\n)", text, re.DOTALL | re.MULTILINE)
    assert found, "CONTRIBUTING has no table of words"
    return found[0]
