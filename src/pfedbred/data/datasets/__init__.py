"""The named datasets. A new one is a file in this folder and a line in ``DATASETS``."""

from __future__ import annotations

from pfedbred.data.datasets import (
    cifar10,
    digits,
    fashion_mnist,
    femnist,
    heart,
    mnist,
    parkinson,
    school,
    sent140,
    synthetic,
)
from pfedbred.data.datasets.base import Dataset

DATASETS: dict[str, Dataset] = {
    "cifar10": cifar10.DATASET,
    "digits": digits.DATASET,
    "fashion-mnist": fashion_mnist.DATASET,
    "femnist": femnist.DATASET,
    "heart": heart.DATASET,
    "mnist": mnist.DATASET,
    "mnist-paper": mnist.PAPER_DATASET,
    "parkinson": parkinson.DATASET,
    "school": school.DATASET,
    "sent140": sent140.DATASET,
    "synthetic": synthetic.DATASET,
}
"""Every named dataset."""

__all__ = ["DATASETS", "Dataset"]
