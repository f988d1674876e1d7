"""Checkpoints: a run as it is between two rounds, in files from which it goes on with the same bits.

A file is written beside its place and then renamed into it, and the last two are kept: whenever the process dies, a
whole one is there. It holds the states, and how much of metrics.jsonl belongs to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.io import tensors
from pfedbred.errors import SettingError

_KIND = tensors.Kind("pfedbred checkpoint 1", "checkpoint", "it cannot be used")
_KEPT = 2


class Checkpoint(NamedTuple):
    """What a file holds.

    Attributes:
      path: of the file.
      round: after which it was written.
      facts: what belongs to it and is not an array.
      arrays: the states, by name.
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
    """Writes a checkpoint, and removes those that are no longer needed."""
    path = folder / f"checkpoint-{round_:08d}.safetensors"
    tensors.save(_KIND, path, {**facts, "round": round_}, arrays)
    for each in files(folder)[_KEPT:]:
        each.unlink(missing_ok=True)
    return path


def latest(
    folder: Path, warn: Callable[[str], None], fits: Callable[[Checkpoint], None] = lambda found: None
) -> Checkpoint | None:
    """The newest sound checkpoint; None if there is none at all. Each damaged one is told of.

    ``fits`` may raise Damaged, if one does not fit what else is in the folder.
    """
    found = files(folder)
    for path in found:
        try:
            checkpoint = read(path)
            fits(checkpoint)
            return checkpoint
        except tensors.Damaged as problem:
            warn(f"{problem}; looking for the one before")
    if found:
        raise SettingError(f"no checkpoint in {folder} is sound: start again with --overwrite, or remove the folder")
    return None


def forget_after(folder: Path, round_: int) -> None:
    """Removes the checkpoints of later rounds: of a run that goes on from this one, because they were damaged."""
    for each in files(folder):
        if (_round(each) or 0) > round_:
            each.unlink(missing_ok=True)


def read(path: Path) -> Checkpoint:
    """One checkpoint, if it is sound."""
    facts, arrays = tensors.load(_KIND, path)
    if facts.get("round") != _round(path):
        raise tensors.Damaged(f"{path} is not what its name says: it is of round {facts.get('round')}")
    return Checkpoint(path, facts["round"], facts, arrays)
