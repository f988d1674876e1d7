"""The named datasets. A new one is a file in this folder and a line in ``DATASETS``."""

from __future__ import annotations

from pfedbred.data.datasets import (
    agnews,
    audiomnist,
    chinese_mnist,
    cifar10,
    cifar100,
    digits,
    fashion_mnist,
    femnist,
    heart,
    landmine,
    mnist,
    mnist_writers,
    parkinson,
    school,
    sent140,
    shakespeare,
    synthetic,
    uci_har,
)
from pfedbred.data.datasets.base import Dataset

DATASETS: dict[str, Dataset] = {
    "agnews": agnews.DATASET,
    "audiomnist": audiomnist.DATASET,
    "chinese-mnist": chinese_mnist.DATASET,
    "cifar10": cifar10.DATASET,
    "cifar100": cifar100.DATASET,
    "digits": digits.DATASET,
    "fashion-mnist": fashion_mnist.DATASET,
    "femnist": femnist.DATASET,
    "heart": heart.DATASET,
    "landmine": landmine.DATASET,
    "mnist": mnist.DATASET,
    "mnist-paper": mnist.PAPER_DATASET,
    "mnist-writers": mnist_writers.DATASET,
    "mnist-writers-leaf": mnist_writers.LEAF_DATASET,
    "parkinson": parkinson.DATASET,
    "school": school.DATASET,
    "sent140": sent140.DATASET,
    "shakespeare": shakespeare.DATASET,
    "synthetic": synthetic.DATASET,
    "uci-har": uci_har.DATASET,
}
"""Every named dataset."""

__all__ = ["DATASETS", "Dataset"]
