"""The split that follows the data: every natural client of a pool keeps its own samples."""

from __future__ import annotations

import numpy as np

from pfedbred.data.pool import TEST_FRACTION, Assignment, Pool, divide
from pfedbred.errors import SettingError


def column(pool: Pool, *, clients: int | None = None, seed: int, test_fraction: float = TEST_FRACTION) -> Assignment:
    """The clients named in the data; given a number of clients, that many of them at random.

    This is one NumPy sort; flwr-datasets' own partitioner goes through all samples once per client.
    """
    if pool.owner is None or pool.owners is None:
        raise SettingError(
            f"{pool.name} does not say which client each sample belongs to: pass client for arrays, name the column of "
            "a table (--client-column), or choose another split, such as iid"
        )
    rng = np.random.default_rng(seed)
    everyone = np.arange(len(pool.owners))
    if clients is not None:
        if clients > len(everyone):
            raise SettingError(f"{pool.name} has {len(everyone)} clients, not {clients}")
        everyone = np.sort(np.random.default_rng([seed, 2]).choice(everyone, clients, replace=False))
    return of_owners(pool, everyone, test_fraction, rng)


def of_owners(pool: Pool, chosen: np.ndarray, test_fraction: float, rng: np.random.Generator) -> Assignment:
    """The assignment with these owners as clients."""
    assert pool.owner is not None
    assert pool.owners is not None
    rows = rows_by_owner(pool.owner, len(pool.owners))
    names = tuple(pool.owners[i] for i in chosen)
    return divide([rows[i] for i in chosen], test_fraction, rng, pool.is_test)._replace(names=names)


def rows_by_owner(owner: np.ndarray, owners: int) -> list[np.ndarray]:
    """The rows of each owner."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, owners)))
