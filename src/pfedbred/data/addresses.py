"""How a dataset is given as text: a name, a path, ``hub:owner/name`` or ``pfllib:FOLDER``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pfedbred.data import prepared
from pfedbred.data.datasets import DATASETS

HUB, PFLLIB = "hub:", "pfllib:"
"""The prefixes of a dataset's full name on the public hub, and of a folder of PFLlib's files."""


def address(dataset: Any) -> tuple[str, Any]:
    """The prefix of the dataset's name, ``hub:``, ``pfllib:`` or empty, and the rest of it."""
    kind = next((each for each in (HUB, PFLLIB) if isinstance(dataset, str) and dataset.startswith(each)), "")
    return kind, dataset[len(kind) :] if kind else dataset


def short_name(dataset: str) -> str:
    """A dataset's name for files and folders: the last part of a path, or of the full name on the hub."""
    kind, rest = address(dataset)
    return Path(rest).name if kind else Path(rest).stem if is_file(rest) else rest


def is_file(dataset: Any) -> bool:
    """Whether this is a path, and not the name of a dataset or an object."""
    if isinstance(dataset, os.PathLike):
        return True
    if not isinstance(dataset, str) or dataset in DATASETS or len(dataset) > 4000 or "\0" in dataset:
        return False
    if address(dataset)[0]:
        return False
    known = (prepared.SUFFIX, ".npz", ".csv", ".parquet")
    return Path(dataset).suffix in known or "/" in dataset or os.path.isdir(dataset)  # False for a name too long
