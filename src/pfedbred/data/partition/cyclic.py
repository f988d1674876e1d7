"""Consecutive labels for each client, in unequal amounts: the split of the digits."""

from __future__ import annotations

import numpy as np

from pfedbred.data.pool import Assignment, Pool
from pfedbred.errors import SettingError


def cyclic_labels(
    pool: Pool, *, clients: int, labels_per_client: int, seed: int, test_fraction: float = 0.25
) -> Assignment:
    """Client u holds the labels (u + j) mod C, j = 0 .. labels_per_client - 1, in unequal amounts.

    The samples of a label are divided among its holders in log-normal proportions, so that clients differ in size as
    in the paper's splits; every holder gets at least two. Training and test are divided label by label, so that a
    client is tested on the labels it was trained on.
    """
    classes, y = pool.classes, pool.y
    if not 1 <= labels_per_client <= classes:
        raise SettingError(f"labels_per_client must be 1 to {classes}, not {labels_per_client}")
    rng = np.random.default_rng(seed)
    train: list[list[np.ndarray]] = [[] for _ in range(clients)]
    test: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label in range(classes):
        holders = [u for u in range(clients) if (label - u) % classes < labels_per_client]
        rows = rng.permutation(np.flatnonzero(y == label))
        if holders and len(rows) < 2 * len(holders):
            raise SettingError(
                f"label {label} has {len(rows)} samples, too few for its {len(holders)} clients: use fewer clients"
            )
        for u, mine in zip(holders, _deal(rows, len(holders), rng), strict=True):
            held_out = min(len(mine) - 1, max(1 if test_fraction else 0, round(test_fraction * len(mine))))
            test[u].append(mine[:held_out])
            train[u].append(mine[held_out:])
    mixed = [[rng.permutation(np.concatenate(parts)) for parts in side] for side in (train, test)]
    return Assignment(mixed[0], mixed[1])


def _deal(rows: np.ndarray, holders: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Deals out all rows in log-normal proportions, at least two to each holder."""
    if holders == 0:
        return []
    shares = rng.lognormal(0.0, 0.5, holders)
    spare = len(rows) - 2 * holders
    cuts = np.floor(np.cumsum(shares / shares.sum())[:-1] * spare).astype(int) + 2 * np.arange(1, holders)
    return np.split(rows, cuts)
