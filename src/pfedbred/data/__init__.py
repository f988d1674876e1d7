"""Data: from a source, through a partition, to a federation."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from pfedbred.data.federation import Federation, Split, from_clients
from pfedbred.data.paper import paper_split
from pfedbred.data.partition import by_labels
from pfedbred.data.sources import images
from pfedbred.errors import SettingError, nearest

__all__ = ["DATASETS", "Federation", "Split", "by_labels", "defaults", "from_clients", "load"]


def digits(*, clients: int = 20, labels_per_client: int = 3, seed: int = 0, data_dir: str | None = None) -> Federation:
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, split by label."""
    from sklearn.datasets import load_digits  # takes a second: only where it is used

    x, y = load_digits(return_X_y=True)
    scaled = (x / 16.0).astype(np.float32)
    return by_labels(
        scaled, y.astype(np.int32), clients=clients, labels_per_client=labels_per_client, seed=seed, name="digits"
    )


def mnist(*, clients: int = 100, labels_per_client: int = 3, seed: int = 0, data_dir: str | None = None) -> Federation:
    """MNIST in the paper's split, with true labels."""
    return _mnist("mnist", clients, labels_per_client, seed, data_dir, slot_labels=False)


def mnist_paper(
    *, clients: int = 100, labels_per_client: int = 3, seed: int = 0, data_dir: str | None = None
) -> Federation:
    """MNIST in the paper's split, with the label noise behind the paper's MNIST column."""
    return _mnist("mnist-paper", clients, labels_per_client, seed, data_dir, slot_labels=True)


def _mnist(name: str, clients: int, labels: int, seed: int, data_dir: str | None, slot_labels: bool) -> Federation:
    pool = images("mnist", data_dir)
    federation = paper_split(
        pool, clients=clients, labels_per_client=labels, seed=seed, name=name, slot_labels=slot_labels
    )
    shift, spread = pool.x.mean(axis=0), pool.x.std(axis=0) + 0.001  # pixel by pixel
    return dataclasses.replace(federation, shift=shift.astype(np.float32), scale=(1 / spread).astype(np.float32))


def fashion_mnist(
    *, clients: int = 100, labels_per_client: int = 2, seed: int = 0, data_dir: str | None = None
) -> Federation:
    """Fashion-MNIST in the paper's split."""
    pool = images("fashion-mnist", data_dir)
    federation = paper_split(
        pool, clients=clients, labels_per_client=labels_per_client, seed=seed, name="fashion-mnist"
    )
    shift, scale = np.asarray(pool.x.mean(), np.float32), np.asarray(1 / pool.x.std(), np.float32)
    return dataclasses.replace(federation, shift=shift, scale=scale)


def cifar10(*, clients: int = 20, labels_per_client: int = 3, seed: int = 0, data_dir: str | None = None) -> Federation:
    """CIFAR-10 in the paper's split, pixels in [-1, 1]."""
    pool = images("cifar10", data_dir)
    federation = paper_split(
        pool, clients=clients, labels_per_client=labels_per_client, seed=seed, name="cifar10", sizes="cifar10"
    )
    return dataclasses.replace(federation, shift=np.asarray(127.5, np.float32), scale=np.asarray(1 / 127.5, np.float32))


DATASETS: dict[str, Callable[..., Federation]] = {
    "cifar10": cifar10,
    "digits": digits,
    "fashion-mnist": fashion_mnist,
    "mnist": mnist,
    "mnist-paper": mnist_paper,
}
"""Every named dataset, from ``(*, clients, labels_per_client, seed, data_dir)``. A new one is a function and a line."""


def defaults(name: str) -> dict[str, Any]:
    """The dataset's own number of clients and of labels for each."""
    if name not in DATASETS:
        raise SettingError(f"unknown dataset {name!r}{nearest(name, DATASETS)}")
    return {key: each.default for key, each in inspect.signature(DATASETS[name]).parameters.items()}


def load(name: str, **options: Any) -> Federation:
    """The federation of that name; options that are None keep the dataset's default."""
    own = defaults(name)
    return DATASETS[name](**{**own, **{key: value for key, value in options.items() if value is not None}})
