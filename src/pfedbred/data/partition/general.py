"""Splits of any pool by its labels or at random, made by flwr-datasets' partitioners."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import numpy as np

from pfedbred.data.labels import WORDS, kind_of
from pfedbred.data.pool import TEST_FRACTION, Assignment, Pool, divide
from pfedbred.errors import SettingError
from pfedbred.settings.values import Constraint, Count

# Beyond these bounds a split no longer changes: each label has one owner, or all shares are equal.
Concentration = Annotated[float, Constraint("a number from 0.001 to 1000000", lambda value: 1e-3 <= value <= 1e6)]


def iid(pool: Pool, *, clients: int, seed: int, test_fraction: float) -> Assignment:
    """Every client gets an equal share, drawn at random."""
    from flwr_datasets.partitioner import IidPartitioner

    rng = np.random.default_rng(seed)
    parts = _partition(IidPartitioner(clients), pool, rng.permutation(len(pool.y)), clients)
    return divide(parts, test_fraction, rng)


def dirichlet(
    pool: Pool, *, clients: int, seed: int, test_fraction: float = TEST_FRACTION, alpha: Concentration = 0.5
) -> Assignment:
    """Each label is divided in proportions drawn from Dirichlet(alpha); the smaller alpha, the more uneven."""
    from flwr_datasets.partitioner import DirichletPartitioner

    _need_classes("dirichlet", pool)
    rng = np.random.default_rng(seed)
    partitioner = DirichletPartitioner(clients, "label", alpha, min_partition_size=2, self_balancing=False, seed=seed)
    parts = _partition(partitioner, pool, np.arange(len(pool.y)), clients)
    return divide(parts, test_fraction, rng)


def labels(pool: Pool, *, clients: int, seed: int, test_fraction: float, k: Count = 3) -> Assignment:
    """Every client gets k labels, the first assigned in turn, the others at random; labels are divided into equal
    shares.
    """
    from flwr_datasets.partitioner import PathologicalPartitioner

    _need_classes("labels", pool)
    if k > pool.classes:
        raise SettingError(f"labels({k}): {pool.name} has only {pool.classes} labels")
    rng = np.random.default_rng(seed)
    partitioner = PathologicalPartitioner(
        clients, "label", k, class_assignment_mode="first-deterministic", shuffle=True, seed=seed
    )
    parts = _partition(partitioner, pool, np.arange(len(pool.y)), clients)
    return divide(parts, test_fraction, rng)


def quantity(pool: Pool, *, clients: int, seed: int, test_fraction: float, alpha: Concentration = 0.5) -> Assignment:
    """Clients differ in size only: sizes are drawn from Dirichlet(alpha), at least two samples each."""
    from flwr_datasets.partitioner import SizePartitioner

    rng = np.random.default_rng(seed)
    spare = len(pool.y) - 2 * clients
    if spare < 0:
        raise SettingError(f"{pool.name} has {len(pool.y)} samples, too few for {clients} clients: use fewer clients")
    cuts = np.floor(np.cumsum(rng.dirichlet(np.full(clients, float(alpha))))[:-1] * spare).astype(int)
    sizes = np.diff(np.concatenate([[0], cuts, [spare]])) + 2
    parts = _partition(SizePartitioner(sizes.tolist()), pool, rng.permutation(len(pool.y)), clients)
    return divide(parts, test_fraction, rng)


def _need_classes(split: str, pool: Pool) -> None:
    """Rejects a split by label where labels are not classes."""
    kind = kind_of(pool.task)
    if kind != "classes":
        raise SettingError(
            f"the split {split} divides by label, but the labels of {pool.name} are {WORDS[kind]}: use column, iid or "
            "quantity"
        )


def _partition(partitioner: Any, pool: Pool, order: np.ndarray, clients: int) -> list[np.ndarray]:
    """Each client's rows by one of flwr-datasets' partitioners, which sees only the labels, in this order."""
    import datasets

    table = datasets.Dataset.from_dict({"row": order, "label": pool.y[order]})
    partitioner.dataset = table
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unused labels, which some splits leave out on purpose
            return [np.asarray(partitioner.load_partition(i)["row"], np.int64) for i in range(clients)]
    except ValueError as problem:
        reason = str(problem).split(". ")[0].strip()
        if "number of attempts" in reason:
            reason = "some would get no samples: use fewer clients, or shares that differ less, as in dirichlet(0.5)"
        raise SettingError(f"{pool.name} cannot be split like this over {clients} clients: {reason}") from None
