"""CIFAR-100.

Source: the hub's ``uoft-cs/cifar100``, or a copy with the columns img and fine_label; training and test set together.

Natural clients: none. By default each of the 100 labels is divided over 20 clients in Dirichlet(0.1) proportions and a
quarter of each client's images is for testing, as in PFLlib.

Usual models: cnn; pfllib-cnn to compare with published figures, PFLlib's column "Dirichlet(0.1), CIFAR-100, CNN"
(FedAvg 31.89, Ditto 52.87, FedRep 52.39), with care: its division gives no more to a client that has a twentieth of
all samples.

Reference: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

from functools import partial

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.general import dirichlet
from pfedbred.data.pool import Pool
from pfedbred.data.scaling import to_plus_minus_one
from pfedbred.data.sources.hub import HubDataset
from pfedbred.data.sources.samples import table_pool

SOURCE = HubDataset("cifar100", "uoft-cs/cifar100", "cifar100", ("img", "fine_label"))


def cifar100(data_dir: str | None, clients: int, seed: int) -> Pool:
    """CIFAR-100, pixels in [-1, 1]."""
    return table_pool(SOURCE, data_dir, classes=100, normalise=to_plus_minus_one)


DATASET = Dataset(cifar100, partial(dirichlet, alpha=0.1), clients=20, models=("cnn", "pfllib-cnn"))
