"""Checkpoints: a run between two rounds, in files from which it is resumed bit for bit.

Files are written atomically and the last two are kept, so whenever the process dies there is a complete one. A
checkpoint holds the backend's state, and how much of metrics.jsonl belongs to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.errors import SettingError
from pfedbred.io import tensors
from pfedbred.io.strict import Unreadable

_KIND = tensors.Kind("pfedbred checkpoint 1", "checkpoint", "it cannot be loaded")
_KEPT = 2


class Misfit(SettingError):
    """An intact checkpoint that does not fit the metrics in its folder."""


class Checkpoint(NamedTuple):
    """The content of a file.

    Attributes:
      path: of the file.
      round: the round after which it was written.
      facts: plain values.
      arrays: by name.
    """

    path: Path
    round: int
    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


def files(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the newest first."""
    return sorted((each for each in folder.glob("checkpoint-*") if _round(each) is not None), key=_round, reverse=True)  # type: ignore[arg-type]


def _round(path: Path) -> int | None:
    found = re.fullmatch(r"checkpoint-(\d{1,12})\.safetensors", path.name)
    return int(found[1]) if found else None


def write(
    folder: Path, round_: int, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray | tensors.Pieces]
) -> Path:
    """Writes a checkpoint, and removes all but the last two."""
    path = folder / f"checkpoint-{round_:08d}.safetensors"
    tensors.save(_KIND, path, {**facts, "round": round_}, arrays)
    for each in files(folder)[_KEPT:]:
        remove(each)
    return path


def remove(path: Path) -> None:
    """Removes a checkpoint. A folder in its place is renamed instead, with its content."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.not-a-checkpoint"))
    else:
        path.unlink(missing_ok=True)


def latest(
    folder: Path, warn: Callable[[str], None], fits: Callable[[Checkpoint], None] = lambda found: None
) -> Checkpoint | None:
    """The newest intact checkpoint; None if the folder has none. ``warn`` is called for each that cannot be read.

    ``fits`` may raise Misfit.
    """
    found, problems = files(folder), list[SettingError]()
    for path in found:
        try:
            checkpoint = read(path)
            fits(checkpoint)
            return checkpoint
        except (tensors.Damaged, Unreadable, Misfit) as problem:
            warn(f"{problem}; trying the one before")
            problems.append(problem)
    if not found:
        return None
    unreadable = [each for each in problems if isinstance(each, Unreadable)]
    if unreadable:  # they may be intact, so nothing is removed
        raise SettingError(f"no checkpoint in {folder} can be read: {unreadable[0]}")
    misfits = [each for each in problems if isinstance(each, Misfit)]
    if misfits:
        raise SettingError(
            f"no checkpoint in {folder} fits its metrics.jsonl: restore that file, or start again with --overwrite "
            f"({misfits[0]})"
        )
    raise SettingError(
        f"all checkpoints in {folder} are damaged: start again with --overwrite, or remove the folder ({problems[0]})"
    )


def remove_after(folder: Path, round_: int) -> None:
    """Removes the checkpoints of later rounds, which were damaged: the run is resumed from this one."""
    for each in files(folder):
        if (_round(each) or 0) > round_:
            remove(each)


def read(path: Path) -> Checkpoint:
    """One checkpoint, if it is intact."""
    facts, arrays = tensors.load(_KIND, path)
    if facts.get("round") != _round(path):
        raise tensors.Damaged(f"{path} does not match its name: it is of round {facts.get('round')}")
    return Checkpoint(path, facts["round"], facts, arrays)
