"""Folders that only their owner can read."""

from __future__ import annotations

import os
from pathlib import Path

from pfedbred.errors import SettingError


def folder_path(given: str | os.PathLike[str] | None) -> Path | None:
    """The path of a folder as a caller gives it, if any."""
    if given is None:
        return None
    if not isinstance(given, str | os.PathLike):
        raise SettingError(f"out takes the path of a folder, such as 'runs/mine', not {given!r}")
    return Path(given)


def ensure_folder(folder: Path) -> Path:
    """The folder, checked to be writable; created for its owner alone, with its parents, if it does not exist."""
    try:
        if folder.exists() and not folder.is_dir():
            raise SettingError(f"{folder} exists and is not a folder")
        for each in (*reversed(folder.parents), folder):  # parents made by mkdir would be readable by everyone
            if not each.exists():
                each.mkdir(0o700, exist_ok=True)
    except OSError as problem:
        raise SettingError(f"cannot create the folder {folder}: {problem.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise SettingError(f"cannot write into {folder}: permission denied")
    return folder
