"""MNIST, with its true labels and with the label noise of the paper's MNIST column."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.paper import paper_split
from pfedbred.data.pool import Pool
from pfedbred.data.scaling import by_pixel
from pfedbred.data.sources.hub import HubDataset
from pfedbred.data.sources.samples import table_pool

SOURCE = HubDataset("mnist", "ylecun/mnist", "mnist", ("image", "label"))


def mnist(data_dir: str | None, clients: int, seed: int) -> Pool:
    """MNIST with true labels."""
    return table_pool(SOURCE, data_dir, classes=10, normalise=by_pixel)


def mnist_paper(data_dir: str | None, clients: int, seed: int) -> Pool:
    """MNIST, whose paper split has the label noise of the paper's MNIST column."""
    return replace(mnist(data_dir, clients, seed), name="mnist-paper")


DATASET = Dataset(mnist, paper_split, clients=100, labels_per_client=3, seed=1, models=("mclr", "dnn"))
PAPER_DATASET = DATASET._replace(pool=mnist_paper, paper=partial(paper_split, slot_labels=True))
