"""CIFAR-10."""

from __future__ import annotations

from functools import partial

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.paper import paper_split
from pfedbred.data.pool import Pool, to_plus_minus_one
from pfedbred.data.sources.hub import Source
from pfedbred.data.sources.samples import table_pool

SOURCE = Source("cifar10", "uoft-cs/cifar10", "cifar10", ("img", "label"))


def cifar10(data_dir: str | None, clients: int, seed: int) -> Pool:
    """CIFAR-10, pixels in [-1, 1]."""
    return table_pool(SOURCE, data_dir, classes=10, normalise=to_plus_minus_one)


DATASET = Dataset(
    cifar10, partial(paper_split, sizes="cifar10"), clients=20, labels_per_client=3, seed=1, models=("cnn",)
)
