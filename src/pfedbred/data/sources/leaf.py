"""LEAF's JSON files.

LEAF writes files of ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``, in the
folders ``train`` and ``test`` or, before it has divided them, in one place.

Reference: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.errors import SettingError
from pfedbred.io.strict import read_json

LeafFile = tuple[Path, bool | None]
"""A file, and whether it holds test samples; None if they are not divided."""


class UserSamples(NamedTuple):
    """Samples with the user of each, as a pool has them. ``is_test`` is None if the source does not divide them."""

    x: Any
    y: np.ndarray
    owner: np.ndarray
    owners: tuple[str, ...]
    is_test: np.ndarray | None
    origin: Callable[[int], str]


def leaf_files(folder: Path) -> list[LeafFile]:
    """The JSON files of a LEAF folder."""
    for parent in (folder, folder / "data"):
        divided = [
            (path, part == "test") for part in ("train", "test") for path in sorted(parent.glob(f"{part}/*.json"))
        ]
        if divided:
            return list(divided)
    return [(path, None) for path in sorted(folder.glob("*.json"))]


def read_leaf(files: list[LeafFile]) -> UserSamples:
    """The samples of these files, in order."""
    x: list[Any] = []
    y: list[Any] = []
    owner: list[int] = []
    is_test: list[bool] = []
    begins: list[tuple[int, Path, str]] = []
    numbers: dict[str, int] = {}
    for path, test in files:
        for user, entry in _users(path):
            if len(entry["x"]) != len(entry["y"]):
                raise SettingError(f"{path}: user {user!r} has {len(entry['x'])} samples and {len(entry['y'])} labels")
            begins.append((len(y), path, user))
            x += entry["x"]
            y += entry["y"]
            owner += [numbers.setdefault(user, len(numbers))] * len(entry["y"])
            is_test += [bool(test)] * len(entry["y"])

    def origin(row: int) -> str:
        begin, path, user = max(each for each in begins if each[0] <= row)
        return f"{path}, user {user!r}, sample {row - begin}"

    if not y:
        raise SettingError(f"{files[0][0]} holds no samples")
    for row, label in enumerate(y):
        if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < 2**31:
            raise SettingError(f"{origin(row)}: label {label!r} is not a whole number from 0")
    divided = np.asarray(is_test) if any(test is not None for _, test in files) else None
    return UserSamples(x, np.asarray(y, np.int32), np.asarray(owner, np.int64), tuple(numbers), divided, origin)


def _users(path: Path) -> list[tuple[str, dict[str, Any]]]:
    loaded = read_json(path, large=True)
    users = loaded.get("user_data") if isinstance(loaded, dict) else None
    if not isinstance(users, dict):
        raise SettingError(f"{path} is not a LEAF file: it has no user_data")
    for user, entry in users.items():
        if not isinstance(entry, dict) or not all(isinstance(entry.get(part), list) for part in ("x", "y")):
            raise SettingError(f"{path}: user {user!r} has no lists x and y")
    return list(users.items())
