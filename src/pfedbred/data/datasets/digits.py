"""scikit-learn's handwritten digits."""

from __future__ import annotations

import numpy as np

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.cyclic import cyclic_labels
from pfedbred.data.pool import Pool


def digits(data_dir: str | None, clients: int, seed: int) -> Pool:
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""
    from sklearn.datasets import load_digits  # the import takes a second: only where it is used

    x, y = load_digits(return_X_y=True)
    return Pool("digits", (x / 16.0).astype(np.float32), y.astype(np.int32), 10)


DATASET = Dataset(digits, cyclic_labels, clients=20, labels_per_client=3, models=("mclr", "dnn"))
