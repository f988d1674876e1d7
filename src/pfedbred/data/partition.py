"""Splitting one dataset over clients."""

from __future__ import annotations

import numpy as np

from pfedbred.data.federation import Federation, from_clients
from pfedbred.errors import SettingError


def by_labels(
    x: np.ndarray,
    y: np.ndarray,
    *,
    clients: int,
    labels_per_client: int,
    test_fraction: float = 0.25,
    seed: int = 0,
    name: str = "custom",
) -> Federation:
    """Client u holds the labels (u + j) mod C, j = 0 .. labels_per_client - 1, in unequal amounts.

    The samples of a label are dealt to its holders in log-normal proportions, so clients differ in size as in the
    paper's splits; every holder gets at least two. Each client's samples are then divided into training and test, by
    label, so that a client's test labels are its training labels. No sample is used twice; the seed decides all.
    """
    classes = int(y.max()) + 1
    if not 1 <= labels_per_client <= classes:
        raise SettingError(f"labels_per_client must be 1 to {classes}, not {labels_per_client}")
    if clients < 1:
        raise SettingError(f"clients must be >= 1, not {clients}")
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
            held_out = min(len(mine) - 1, max(1, round(test_fraction * len(mine))))
            test[u].append(mine[:held_out])
            train[u].append(mine[held_out:])

    def samples(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        rows = rng.permutation(np.concatenate(parts))
        return x[rows], y[rows]

    return from_clients([samples(parts) for parts in train], [samples(parts) for parts in test], name=name)


def _deal(rows: np.ndarray, holders: int, rng: np.random.Generator) -> list[np.ndarray]:
    """All rows, in log-normal proportions, at least two to each holder."""
    if holders == 0:
        return []
    shares = rng.lognormal(0.0, 0.5, holders)
    spare = len(rows) - 2 * holders
    cuts = np.floor(np.cumsum(shares / shares.sum())[:-1] * spare).astype(int) + 2 * np.arange(1, holders)
    return np.split(rows, cuts)
