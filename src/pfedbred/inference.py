"""Using a trained model on samples in a file: where the personal models are, on the clients' own machines."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pfedbred.data import store
from pfedbred.data.own import inputs_of
from pfedbred.data.tables import Table, read_csv, read_parquet
from pfedbred.errors import SettingError
from pfedbred.exports import TrainedModel, load_model
from pfedbred.npy import Npz, read_npy

PERSONAL = "personal.safetensors"
"""A client's personal model, in a run's folder in its home."""


class Samples(NamedTuple):
    """What to predict, as the data holds it; and the labels, as texts, if the file has them."""

    x: np.ndarray
    labels: list[str] | None


def find_model(path: Path) -> TrainedModel:
    """A model from an exported file, or a client's own: from its home, the newest."""
    if not path.is_dir():
        return load_model(path)
    found = personal_models(path)
    if not found:
        raise SettingError(f"there is no personal model in {path}: the client has not taken part in a round yet")
    return load_model(found[0])


def personal_models(home: Path) -> list[Path]:
    """The personal models in a client's home, the newest first."""
    return sorted(home.glob(f"*/{PERSONAL}"), key=lambda path: path.stat().st_mtime, reverse=True)


def read_samples(path: Path) -> Samples:
    """Samples from .npz, .npy, .csv or .parquet; of a prepared federation, its test samples."""
    if path.suffix == store.SUFFIX:
        federation = store.load(path)
        test, names = federation.test, federation.labels
        return Samples(test.x, [names[i] if names else str(i) for i in test.y])
    if path.suffix == ".npy":
        return Samples(read_npy(path, "samples"), None)
    if path.suffix == ".npz":
        with Npz(path) as arrays:
            if "x" not in arrays.names:
                raise SettingError(f"{path} has no array 'x', only {', '.join(arrays.names)}")
            return Samples(arrays["x"], [str(each) for each in arrays["y"]] if "y" in arrays.names else None)
    if path.suffix in (".csv", ".parquet"):
        table = read_csv(path) if path.suffix == ".csv" else read_parquet([path])
        return _from_table(table, path)
    raise SettingError(f"{path} is not a kind of file that can be read: .npz, .npy, .csv, .parquet or .fed")


def _from_table(table: Table, path: Path) -> Samples:
    label = next((each for each in ("label", "y") if each in table.columns), None)
    chosen = [each for each in table.columns if each not in (label, "client")]
    x, _ = inputs_of(table, chosen, str(path))
    if label is None:
        return Samples(x, None)
    number, names = table.names(label)
    return Samples(x, [names[i] for i in number])
