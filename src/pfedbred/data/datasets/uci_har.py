"""UCI HAR: human activities from a smartphone's sensors.

Source: the inertial signals of the UCI repository's "Human Activity Recognition Using Smartphones", in windows of
2.56 s at 50 Hz: ``uci_har/uci_har_inertial.parquet``, with the columns signal_int16 (9 signals x 128, little-endian, in
units of 1/4000), label and subject. The signals are the body's acceleration, the angular velocity and the total
acceleration, each in x, y and z.

Natural clients: 30 people with 281 to 409 windows each, of which a quarter is for testing. Consecutive windows overlap
by half, so test windows have neighbours in training: accuracies are higher than on unseen people.

Usual model: cnn1d. Published figures to compare with: none with these clients (the data's own split is by people).

Reference: Anguita et al., "A Public Domain Dataset for Human Activity Recognition Using Smartphones", ESANN 2013.
"""

from __future__ import annotations

import numpy as np

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.owners import column
from pfedbred.data.pool import Pool
from pfedbred.data.sources.hub import HubDataset
from pfedbred.data.sources.samples import table_pool
from pfedbred.data.sources.tables import TableRows
from pfedbred.errors import SettingError

SOURCE = HubDataset("uci-har", None, "uci_har", ("signal_int16", "label", "subject"))
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
_SIGNALS, _LENGTH, _UNIT = 9, 128, 1 / 4000


def uci_har(data_dir: str | None, clients: int | None, seed: int) -> Pool:
    """Human activities from 9 signals of 128 steps, people as clients."""
    return table_pool(SOURCE, data_dir, classes=6, read=_signals, normalise=_to_units, labels=ACTIVITIES)


def _signals(table: TableRows, column: str) -> np.ndarray:
    """Windows of shape (128, 9): time first, as models for signals expect."""
    stored = table.byte_strings(column)
    if stored.shape[1] != 2 * _SIGNALS * _LENGTH:
        raise SettingError(f"{table.origin(0)}: {stored.shape[1]} bytes, not {_SIGNALS} signals x {_LENGTH} x 2")
    values = stored.view("<i2").reshape(-1, _SIGNALS, _LENGTH).transpose(0, 2, 1)
    return np.ascontiguousarray(values, np.int16)


def _to_units(x: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Accelerations in g, angular velocities in rad/s."""
    return np.asarray(0.0), np.asarray(_UNIT)


DATASET = Dataset(uci_har, column, models=("cnn1d",))
