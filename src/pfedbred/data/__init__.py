"""Data: from a source, through a partition, to a federation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pfedbred.data.federation import Federation, Split, from_clients
from pfedbred.data.partition import by_labels
from pfedbred.errors import SettingError, nearest

__all__ = ["DATASETS", "Federation", "Split", "by_labels", "digits", "from_clients", "load"]


def digits(*, clients: int = 20, labels_per_client: int = 3, seed: int = 0) -> Federation:
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, split by label."""
    from sklearn.datasets import load_digits  # takes a second: only where it is used

    x, y = load_digits(return_X_y=True)
    scaled = (x / 16.0).astype(np.float32)
    return by_labels(
        scaled,
        y.astype(np.int32),
        clients=clients,
        labels_per_client=labels_per_client,
        seed=seed,
        name="digits",
    )


DATASETS: dict[str, Callable[..., Federation]] = {"digits": digits}
"""Every named dataset, from ``(*, clients, labels_per_client, seed)``. A new one is a function and a line here."""


def load(name: str, **options: int) -> Federation:
    """The federation of that name."""
    if name not in DATASETS:
        raise SettingError(f"unknown dataset {name!r}{nearest(name, DATASETS)}")
    return DATASETS[name](**options)
