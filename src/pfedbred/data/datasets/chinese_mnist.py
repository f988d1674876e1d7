"""Chinese MNIST: handwritten Chinese numerals.

Source: sheets that K. Nazarpour and M. Chen collected at Newcastle University, cut into JPEG images of 64 x 64:
``chinese_mnist/chinese_mnist.parquet``, with the columns image, label and writer.

Natural clients: 100 writers, who wrote each of the 15 numerals ten times; a quarter of each writer's 150 images is for
testing.

Usual model: cnn. Published figures to compare with: none.
"""

from __future__ import annotations

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.owners import column
from pfedbred.data.pool import Pool
from pfedbred.data.scaling import to_unit_interval
from pfedbred.data.sources.hub import HubDataset
from pfedbred.data.sources.samples import table_pool

SOURCE = HubDataset("chinese-mnist", None, "chinese_mnist", ("image", "label", "writer"))
VALUES = (*range(11), 100, 1_000, 10_000, 100_000_000)
"""The numbers that the numerals stand for, since not every font has the numerals."""


def chinese_mnist(data_dir: str | None, clients: int | None, seed: int) -> Pool:
    """Chinese numerals in 64 x 64 pixels, their writers as clients."""
    return table_pool(SOURCE, data_dir, classes=15, normalise=to_unit_interval, labels=tuple(map(str, VALUES)))


DATASET = Dataset(chinese_mnist, column, models=("cnn",))
