"""Objects in experiment files: what is not a plain value is written as its import path, ``package.module:name``."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pfedbred.errors import SettingError
from pfedbred.runs.config_file import write_config

_REFERENCE = re.compile(r"[A-Za-z_]\w+(?:\.\w+)*:[A-Za-z_]\w*(?:\.\w+)*")
_NOT_REPRODUCIBLE = re.compile(r"<(?P<name>.*), not importable>")

# By identity; the object is kept, so that no other gets its identity.
_imported: dict[int, tuple[Any, str]] = {}  # with its path
_made: dict[int, tuple[Any, Any]] = {}  # with the function that made it


def import_path(value: Any) -> str | None:
    """``package.module:name``, if importing that gives this very object in another process too."""
    value = _origin(value)
    if id(value) in _imported:
        return _imported[id(value)][1]
    # A script is another module in every process, and multiprocessing knows it by a second name.
    script = sys.modules.get("__main__")
    modules = {name: each for name, each in list(sys.modules.items()) if each is not script}
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    defined = None
    if isinstance(module, str) and isinstance(name, str) and "<" not in name:
        with suppress(KeyError, AttributeError):
            if attrgetter(name)(modules[module]) is value:
                defined = f"{module}:{name}"
    if defined and not _is_private(defined):
        return defined
    paths = [
        f"{module}:{name}"
        for module, each in modules.items()
        for name, held in list(getattr(each, "__dict__", {}).items())
        if held is value and _REFERENCE.fullmatch(f"{module}:{name}")
    ]
    if defined:  # where its own package makes it public
        paths = [path for path in paths if not _is_private(path) and _parts(path)[0] == _parts(defined)[0]]
    return min(paths, key=lambda path: (_is_private(path), len(path), path), default=defined)


def _parts(path: str) -> list[str]:
    return re.split("[.:]", path)


def _is_private(path: str) -> bool:
    return any(part.startswith("_") for part in _parts(path))


def built(given: Callable[..., Any], build: Callable[[Any], Any]) -> Any:
    """``build(given)``, which is recorded as the function ``given`` that made it."""
    made = build(given)
    _made[id(made)] = made, given
    return made


def _origin(value: Any) -> Any:
    """The function that made an object, or else the object."""
    return _made.get(id(value), (value, value))[1]


def object_name(value: Any) -> str:
    """A short name to show: a function's own, with dashes, or that of the type."""
    if isinstance(value, str):
        return value
    name = getattr(value, "__name__", None) or type(value).__name__
    return name.strip("<>").replace("_", "-").lower()


def plain(value: Any) -> Any:
    """``value`` as YAML and JSON can hold it; an object by its import path, or marked as not reproducible."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return np.asarray(value).tolist()
    if isinstance(value, bool | int | float | str | None):
        return value
    return import_path(value) or marked(object_name(_origin(value)))


def marked(name: str) -> str:
    """How a record says that what it names only existed in the program that wrote it."""
    return f"<{name}, not importable>"


def resolve(value: Any, where: str) -> Any:
    """The object that an import path stands for; any other value unchanged. ``where`` names the option."""
    if isinstance(value, list):
        return [resolve(each, where) for each in value]
    if not isinstance(value, str):
        return value
    if gone := _NOT_REPRODUCIBLE.fullmatch(value):
        raise SettingError(
            f"{where} was {gone['name']!r}, an object that only existed in the program that made the run: "
            "run it again from that program"
        )
    if not is_reference(value):
        return value
    try:
        found = load(value)
    except (ImportError, AttributeError) as problem:
        raise SettingError(f"{where}: cannot import {value}: {problem}") from None
    except Exception as problem:  # whatever the user's module does when it is imported
        raise SettingError(f"{where}: cannot import {value}: {type(problem).__name__}: {problem}") from None
    if not _is_private(value) or import_path(found) is None:
        _imported[id(found)] = found, value
    return found


def is_reference(text: str) -> bool:
    """Whether a text has the form of an import path."""
    return _REFERENCE.fullmatch(text) is not None


def load(path: str) -> Any:
    """The object at an import path."""
    module, _, name = path.partition(":")
    return attrgetter(name)(importlib.import_module(module))


def reproducible(value: Any) -> bool:
    """Whether plain values hold no object that only existed in the program that wrote them."""
    if isinstance(value, Mapping):
        return all(map(reproducible, value.values()))
    if isinstance(value, list):
        return all(map(reproducible, value))
    return not (isinstance(value, str) and _NOT_REPRODUCIBLE.fullmatch(value))


def write_experiment(path: Path, options: Mapping[str, Any], command: str) -> None:
    """Writes an experiment file, which says that ``command`` runs it if it can."""
    write_config(path, options, command if reproducible(options) else None)
