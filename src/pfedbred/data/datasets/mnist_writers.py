"""MNIST with the writer of each digit.

Source: MNIST's images with the writers' numbers of QMNIST, which traced each digit to its form in NIST's Special
Database 19: ``mnist_writers/train.parquet`` and ``test.parquet``, with the columns image, label and writer.

Natural clients: the 539 writers of MNIST's training set, with 19 to 131 digits each; a quarter of each writer's digits,
drawn by the split's seed, is for testing. MNIST's test set was written by 297 other people, who are the clients of
``mnist-writers(test)``; ``mnist-writers(all)`` has all 836.

``mnist-writers-leaf`` is sampled as the paper's FEMNIST was by LEAF: 198 of these writers, nine tenths of each writer's
digits for training. It stands in for FEMNIST, whose characters are from the same forms; but FEMNIST has letters as well
(62 labels), about twice as many characters per writer, and images that are neither cropped nor centred.

Usual models: mclr, dnn and cnn. Published figures to compare with: none.

Reference: Yadav and Bottou, "Cold Case: The Lost MNIST Digits", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.leaf import by_writer
from pfedbred.data.partition.owners import column
from pfedbred.data.pool import Pool
from pfedbred.data.scaling import to_unit_interval
from pfedbred.data.sources.hub import HubDataset
from pfedbred.data.sources.samples import table_pool

SOURCE = HubDataset("mnist-writers", None, "mnist_writers", ("image", "label", "writer"))


def mnist_writers(
    data_dir: str | None, clients: int | None, seed: int, *, writers: Literal["train", "test", "all"] = "train"
) -> Pool:
    """MNIST's digits with their writers as clients."""
    parts = () if writers == "all" else (writers,)
    return table_pool(SOURCE, data_dir, classes=10, normalise=to_unit_interval, parts=parts)


def mnist_writers_leaf(data_dir: str | None, clients: int | None, seed: int) -> Pool:
    """The same digits, with 198 writers sampled as by LEAF."""
    return replace(mnist_writers(data_dir, clients, seed), name="mnist-writers-leaf")


DATASET = Dataset(mnist_writers, column, models=("mclr", "dnn", "cnn"))
LEAF_DATASET = Dataset(mnist_writers_leaf, by_writer, clients=198, models=("mclr", "dnn"))
