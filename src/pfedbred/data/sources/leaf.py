"""LEAF: its JSON files, and its way of taking a sample of a dataset's users.

LEAF writes files of ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``, in the
folders ``train`` and ``test`` or, before it divides them, in one place.

References: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.data.partition.splits import of_owners, rows_by_owner
from pfedbred.data.pool import Assignment, Pool, divide
from pfedbred.errors import SettingError
from pfedbred.io.strict import read_json


class LeafSamples(NamedTuple):
    """All samples of some LEAF files. ``is_test`` is None if LEAF has not divided them."""

    x: list[Any]
    y: list[Any]
    owner: np.ndarray
    owners: tuple[str, ...]
    is_test: np.ndarray | None
    origin: Callable[[int], str]


def leaf_files(folder: Path) -> list[tuple[Path, bool | None]]:
    """The JSON files of a LEAF folder, each with whether it is a test file; None if there are no such folders."""
    for parent in (folder, folder / "data"):
        divided = [
            (path, part == "test") for part in ("train", "test") for path in sorted(parent.glob(f"{part}/*.json"))
        ]
        if divided:
            return list(divided)
    return [(path, None) for path in sorted(folder.glob("*.json"))]


def read_leaf(files: list[tuple[Path, bool | None]]) -> LeafSamples:
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
    divided = np.asarray(is_test) if any(test is not None for _, test in files) else None
    return LeafSamples(x, y, np.asarray(owner, np.int64), tuple(numbers), divided, origin)


def _users(path: Path) -> list[tuple[str, dict[str, Any]]]:
    loaded = read_json(path, large=True)
    users = loaded.get("user_data") if isinstance(loaded, dict) else None
    if not isinstance(users, dict):
        raise SettingError(f"{path} is not a LEAF file: it has no user_data")
    for user, entry in users.items():
        if not isinstance(entry, dict) or not all(isinstance(entry.get(part), list) for part in ("x", "y")):
            raise SettingError(f"{path}: user {user!r} has no lists x and y")
    return list(users.items())


def sampled_owners(
    pool: Pool, *, fraction: float, min_samples: int, at_least: int, rng: np.random.Generator
) -> np.ndarray:
    """LEAF's sample: users in random order until they hold ``fraction`` of all samples, then those with enough.

    At least so many users are taken, if there are that many: a pool that is itself a part of the data is used whole.
    """
    assert pool.owner is not None
    assert pool.owners is not None
    sizes = np.bincount(pool.owner, minlength=len(pool.owners))
    order = rng.permutation(len(sizes))
    held = np.cumsum(sizes[order])
    enough = max(int(np.searchsorted(held, fraction * len(pool.y))) + 1, at_least)
    taken = np.sort(order[:enough])
    return taken[sizes[taken] >= min_samples]


def by_writer(pool: Pool, *, clients: int | None, seed: int, test_fraction: float = 0.1) -> Assignment:
    """LEAF's FEMNIST: writers who hold 5 % of the samples (the paper: 198), nine tenths of each for training."""
    rng = np.random.default_rng(seed)
    if pool.owners is None:
        raise SettingError(f"{pool.name} does not say who wrote what")
    if clients is not None:
        if clients > len(pool.owners):
            raise SettingError(f"{pool.name} has {len(pool.owners)} writers here, not {clients}")
        chosen = np.sort(rng.choice(len(pool.owners), clients, replace=False))
    elif pool.raw:
        chosen = sampled_owners(pool, fraction=0.05, min_samples=2, at_least=198, rng=rng)
    else:
        chosen = np.arange(len(pool.owners))
    if not len(chosen):
        raise SettingError(f"{pool.name} has no writer with at least 2 samples")
    return of_owners(pool, chosen, test_fraction, rng)


def by_groups(pool: Pool, *, clients: int, seed: int, test_fraction: float = 0.1) -> Assignment:
    """LEAF's Sent140, its users gathered into groups whose shares of the users are drawn from Dirichlet(0.5).

    Users come from LEAF's sample: 5 % of the samples, at least 3 a user. Every group has at least 10 samples.
    """
    rng = np.random.default_rng(seed)
    if pool.owner is None or pool.owners is None:
        raise SettingError(f"{pool.name} does not say who wrote what")
    users = np.arange(len(pool.owners))
    if pool.raw:
        users = sampled_owners(pool, fraction=0.05, min_samples=3, at_least=1000, rng=rng)
    rows = rows_by_owner(pool.owner, len(pool.owners))
    sizes = np.array([len(rows[user]) for user in users])
    if sizes.sum() < 20 * clients:
        raise SettingError(f"{pool.name} has {sizes.sum()} samples, too few for {clients} groups: use fewer clients")
    for _ in range(10_000):
        shares = rng.dirichlet(np.full(clients, 0.5))
        group = rng.permutation(np.searchsorted(np.cumsum(shares), (np.arange(len(users)) + 0.5) / len(users)))
        group = np.minimum(group, clients - 1)
        if np.bincount(group, sizes, clients).min() >= 10:
            break
    else:
        raise SettingError(f"{pool.name}: no {clients} groups of at least 10 samples were found: use fewer clients")
    grouped = np.full(len(pool.y), -1, np.int64)
    for user, number in zip(users, group, strict=True):
        grouped[rows[user]] = number
    kept = np.flatnonzero(grouped >= 0)
    order = kept[np.argsort(grouped[kept], kind="stable")]
    parts = np.split(order, np.searchsorted(grouped[order], np.arange(1, clients)))
    if pool.is_test is not None:
        return Assignment([p[~pool.is_test[p]] for p in parts], [p[pool.is_test[p]] for p in parts])
    return divide(parts, test_fraction, rng)
