"""Strict JSON and YAML: files from untrusted sources, read as plain values or rejected with a one-line error.

Nothing in a file is executed, unpickled or turned into an object, and nothing may take much more memory than disk
space. PyYAML's SafeLoader still expands aliases without limit and resolves tags; Python's ``json`` accepts NaN,
infinities and any depth of nesting. Both are used here with those features disabled.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import yaml

from pfedbred.errors import SettingError

_DEPTH = 40  # levels of nesting; our own files have at most seven
_LARGEST_CONFIG = 2**20
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")


class Unreadable(SettingError):
    """A file that cannot be opened, or is not a regular file."""


@contextmanager
def reading(where: Any) -> Iterator[None]:
    """Turns the system's read errors into one line; ``where`` names the file in it."""
    try:
        yield
    except OSError as problem:
        raise Unreadable(f"cannot read {where}: {problem.strerror or problem}") from None


def check_regular_file(path: Path, where: Any = None) -> int:
    """The size of a regular file. Anything else is refused before it is opened: opening a FIFO would block.

    ``where`` names the file in error messages; by default its path.
    """
    where = where or path
    try:
        found = path.stat()
    except (OSError, ValueError) as problem:  # the latter for a NUL in a name
        raise Unreadable(f"cannot read {where}: {getattr(problem, 'strerror', problem)}") from None
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a file"
        raise Unreadable(f"cannot read {where}: it is {kind}")
    return found.st_size


def read_text(path: Path, most: int | None = None) -> str:
    """The text of a file in UTF-8, of at most ``most`` bytes."""
    size = check_regular_file(path)
    if most is not None and size > most:
        raise SettingError(f"cannot read {path}: it is larger than {most:,} bytes")
    try:
        with reading(path):
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingError(f"cannot read {path}: it is not a text file in UTF-8") from None


def _no_constant(name: str) -> NoReturn:
    """JSON has no NaN or infinity; Python's reader would accept them, and its writer would fail much later."""
    raise ValueError(name)


def finite_or_none(value: float | None) -> float | None:
    """The number as JSON can hold it: NaN and infinities become None."""
    return None if value is None or not math.isfinite(value) else float(value)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # 1e999
        raise ValueError(text)
    return number


def parse_json(text: str | bytes, where: Any, *, large: bool = False) -> Any:
    """The value of a JSON text; ``where`` names its source in error messages.

    If it is ``large``, numbers may overflow to infinity (1e999): the caller has to check.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=None if large else _finite)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or a number with thousands of digits
        raise SettingError(f"cannot read {where}: it is not a JSON file, or an incomplete one") from None
    _check_depth(value, where)
    if (b"\\u" if isinstance(text, bytes) else "\\u") in text:  # type: ignore[operator]
        _check_texts(value, where)
    return value


def read_json(path: Path, *, large: bool = False) -> Any:
    """The value of a JSON file."""
    return parse_json(read_text(path), path, large=large)


def _check_texts(value: Any, where: Any) -> None:
    """Rejects lone surrogates, which JSON and YAML can express but no file can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise SettingError(f"cannot read {where}: its text is not valid Unicode") from None


def _check_depth(value: Any, where: Any) -> None:
    """Rejects values nested so deeply that printing or writing them would exhaust the stack."""
    level = [value]
    for _ in range(_DEPTH):
        inside: list[Any] = []
        for each in level:
            children = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
            inside += [child for child in children if isinstance(child, dict | list)]
        if not inside:
            return
        level = inside
    raise SettingError(f"cannot read {where}: its values are nested more than {_DEPTH} deep")


class _NotPlain(yaml.MarkedYAMLError):
    """Valid YAML that is not supported here."""


class _PlainLoader(yaml.SafeLoader):
    """Strings, numbers, booleans, lists and mappings; nothing else that YAML offers.

    A tag could ask for a type other than the one written; an alias stands for a value elsewhere, and a few lines of
    aliases to aliases can stand for more values than fit in memory.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Rejects tags, aliases, and numbers such as 010 (8 in YAML 1.1), 0x10 and 1_0."""
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _NotPlain(problem="anchors and aliases are not supported", problem_mark=event.start_mark)
        if getattr(event, "tag", None) not in (None, "!"):
            raise _NotPlain(problem="tags are not supported", problem_mark=event.start_mark)
        node: Any = super().compose_node(parent, index)
        if node.tag == "tag:yaml.org,2002:int" and not _DECIMAL.fullmatch(node.value):
            problem = f"{node.value} is not a decimal number: write it in decimal, or a text in quotes"
            raise _NotPlain(problem=problem, problem_mark=node.start_mark)
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Reads 1:30 as text: in YAML 1.1 it is a base-60 number, which nobody means."""
        if kind is yaml.ScalarNode and ":" in value:
            implicit = (False, False)
        return super().resolve(kind, value, implicit)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Rejects a repeated name: the last value would silently replace the first."""
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise _NotPlain(problem="merge keys are not supported", problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode):  # the base class rejects others
                if (key.tag, key.value) in seen:
                    raise _NotPlain(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


# Dates stay strings: no setting is a date, and a malformed one such as 2001-99-99 would raise.
_PlainLoader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: str, where: Any) -> Any:
    """The plain value of a YAML text."""
    try:
        value = yaml.load(text, _PlainLoader)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        ours = f": {problem.problem}" if isinstance(problem, _NotPlain) else ""
        reason = f"not valid YAML{place}{ours}"
        raise SettingError(f"cannot read {where}: {reason}") from None
    except (ValueError, RecursionError):  # a number with thousands of digits, or nesting too deep for the parser
        raise SettingError(f"cannot read {where}: not valid YAML") from None
    _check_depth(value, where)
    _check_texts(value, where)
    return value


def read_yaml(path: Path) -> Any:
    """The plain value of a YAML file."""
    return parse_yaml(read_text(path, _LARGEST_CONFIG), path)
