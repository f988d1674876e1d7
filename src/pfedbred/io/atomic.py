"""Atomic writes: a file is written under a temporary name, flushed to disk, then renamed.

python-atomicwrites does this, but has been archived since 2022, and its author points to ``os.replace``. That alone
neither flushes the file and its folder, nor spares a pipe or a link in the file's place.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from pfedbred.errors import SettingError


class WriteError(SettingError):
    """A file that could not be written."""


PARTIAL = ".partial"
"""The suffix of a file's name while it is being written."""


def open_private(path: Path, mode: str) -> BinaryIO:
    """Opens a file to write that only its owner can read; a link in its place is not followed.

    Records, models and data can reveal personal information. A file to be shared is given another mode by whoever
    shares it.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)

    return open(path, mode, opener=opener)  # type: ignore[return-value]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that replaces ``path`` when the block ends, and leaves no trace if the block fails."""
    _check_replaceable(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        partial.unlink(missing_ok=True)
        with open_private(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _flush_folder(path.parent)
    except OSError as problem:
        raise WriteError(f"cannot write {path}: {problem.strerror or problem}") from None
    finally:
        with suppress(OSError):  # if nothing can be written, it may not be removable either
            partial.unlink(missing_ok=True)


def _check_replaceable(path: Path) -> None:
    """Refuses to replace anything but a regular file, such as a device, a pipe, or a link."""
    try:
        mode = path.lstat().st_mode
    except (OSError, ValueError):  # nothing there, or an error that writing will report too
        return
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "not a file"
        raise WriteError(f"cannot write {path}: it is {kind}")


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Turns the system's write errors into one line."""
    try:
        yield
    except OSError as problem:
        raise WriteError(f"cannot write into {folder}: {problem.strerror or problem}") from None


def _flush_folder(folder: Path) -> None:
    """Makes sure that a new name in a folder survives a power failure; Windows has no such call."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file, indented."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
