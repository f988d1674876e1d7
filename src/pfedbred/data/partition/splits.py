"""Splits: which samples of a pool each client gets.

A split is a function ``(pool, *, clients, seed, test_fraction, ...) -> Assignment``. The seed decides everything, no
sample is used twice, and training and test share none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from pfedbred.data.pool import Assignment, Pool, divide
from pfedbred.errors import SettingError
from pfedbred.settings.values import Count, Positive


def iid(pool: Pool, *, clients: int, seed: int, test_fraction: float) -> Assignment:
    """Every client an equal share, drawn at random."""
    from flwr_datasets.partitioner import IidPartitioner

    rng = np.random.default_rng(seed)
    parts = _partition(IidPartitioner(clients), pool, rng.permutation(len(pool.y)), clients)
    return divide(parts, test_fraction, rng)


def dirichlet(pool: Pool, *, clients: int, seed: int, test_fraction: float, alpha: Positive = 0.5) -> Assignment:
    """Each label's samples are dealt in proportions drawn from Dirichlet(alpha); a small alpha is very uneven."""
    from flwr_datasets.partitioner import DirichletPartitioner

    rng = np.random.default_rng(seed)
    partitioner = DirichletPartitioner(clients, "label", alpha, min_partition_size=2, self_balancing=False, seed=seed)
    parts = _partition(partitioner, pool, np.arange(len(pool.y)), clients)
    return divide(parts, test_fraction, rng)


def labels(pool: Pool, *, clients: int, seed: int, test_fraction: float, k: Count = 3) -> Assignment:
    """Every client has k labels, one of them by turns and the others at random; a label is dealt in equal shares."""
    from flwr_datasets.partitioner import PathologicalPartitioner

    if k > pool.classes:
        raise SettingError(f"labels({k}): {pool.name} has only {pool.classes} labels")
    rng = np.random.default_rng(seed)
    partitioner = PathologicalPartitioner(
        clients, "label", k, class_assignment_mode="first-deterministic", shuffle=True, seed=seed
    )
    parts = _partition(partitioner, pool, np.arange(len(pool.y)), clients)
    return divide(parts, test_fraction, rng)


def quantity(pool: Pool, *, clients: int, seed: int, test_fraction: float, alpha: Positive = 0.5) -> Assignment:
    """Labels alike everywhere, amounts not: the clients' sizes are drawn from Dirichlet(alpha), at least two each."""
    from flwr_datasets.partitioner import SizePartitioner

    rng = np.random.default_rng(seed)
    spare = len(pool.y) - 2 * clients
    if spare < 0:
        raise SettingError(f"{pool.name} has {len(pool.y)} samples, too few for {clients} clients: use fewer clients")
    cuts = np.floor(np.cumsum(rng.dirichlet(np.full(clients, float(alpha))))[:-1] * spare).astype(int)
    sizes = np.diff(np.concatenate([[0], cuts, [spare]])) + 2
    parts = _partition(SizePartitioner(sizes.tolist()), pool, rng.permutation(len(pool.y)), clients)
    return divide(parts, test_fraction, rng)


def column(pool: Pool, *, clients: int | None, seed: int, test_fraction: float) -> Assignment:
    """The clients that the data names itself; a number of clients takes that many of them at random.

    One NumPy sort: flwr-datasets' own partitioner for this goes through all samples once for each client.
    """
    if pool.owner is None or pool.owners is None:
        raise SettingError(f"{pool.name} does not say whose its samples are: choose another split, such as iid")
    rng = np.random.default_rng(seed)
    everyone = np.arange(len(pool.owners))
    if clients is not None:
        if clients > len(everyone):
            raise SettingError(f"{pool.name} has {len(everyone)} clients, not {clients}")
        everyone = np.sort(np.random.default_rng([seed, 2]).choice(everyone, clients, replace=False))
    return of_owners(pool, everyone, test_fraction, rng)


def of_owners(pool: Pool, chosen: np.ndarray, test_fraction: float, rng: np.random.Generator) -> Assignment:
    """These owners as clients, their samples divided as the source does it, or else at random."""
    assert pool.owner is not None
    assert pool.owners is not None
    rows = rows_by_owner(pool.owner, len(pool.owners))
    names = tuple(pool.owners[i] for i in chosen)
    if pool.is_test is None:
        return divide([rows[i] for i in chosen], test_fraction, rng)._replace(names=names)
    train = [rows[i][~pool.is_test[rows[i]]] for i in chosen]
    test = [rows[i][pool.is_test[rows[i]]] for i in chosen]
    return Assignment(train, test, names=names)


def rows_by_owner(owner: np.ndarray, owners: int) -> list[np.ndarray]:
    """The rows of each owner."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, owners)))


def by_labels(pool: Pool, *, clients: int, labels_per_client: int, seed: int, test_fraction: float) -> Assignment:
    """Client u holds the labels (u + j) mod C, j = 0 .. labels_per_client - 1, in unequal amounts.

    The samples of a label are dealt to its holders in log-normal proportions, so clients differ in size as in the
    paper's splits; every holder gets at least two. Each client's samples are then divided into training and test, by
    label, so that a client's test labels are its training labels.
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
    """All rows, in log-normal proportions, at least two to each holder."""
    if holders == 0:
        return []
    shares = rng.lognormal(0.0, 0.5, holders)
    spare = len(rows) - 2 * holders
    cuts = np.floor(np.cumsum(shares / shares.sum())[:-1] * spare).astype(int) + 2 * np.arange(1, holders)
    return np.split(rows, cuts)


def _partition(partitioner: Any, pool: Pool, order: np.ndarray, clients: int) -> list[np.ndarray]:
    """What one of flwr-datasets' partitioners makes of the pool, its rows in that order. It sees labels only."""
    import datasets

    if clients > len(order):
        raise SettingError(f"{pool.name} has {len(order)} samples, too few for {clients} clients: use fewer clients")
    table = datasets.Dataset.from_dict({"row": order, "label": pool.y[order]})
    partitioner.dataset = table
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of labels left over, which is what some splits ask for
            return [np.asarray(partitioner.load_partition(i)["row"], np.int64) for i in range(clients)]
    except ValueError as problem:
        reason = str(problem).split(". ")[0].strip()
        raise SettingError(f"{pool.name} cannot be split so over {clients} clients: {reason}") from None


SPLITS: dict[str, Callable[..., Assignment]] = {
    "column": column,
    "dirichlet": dirichlet,
    "iid": iid,
    "labels": labels,
    "quantity": quantity,
}
"""Every split of any data, by name; ``paper`` means another one for each dataset."""
