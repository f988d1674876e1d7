"""Data of one's own: arrays, .npz, .csv, parquet files, a `datasets.Dataset`."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.data.pool import Normalise, Pool, standardise, to_unit_interval
from pfedbred.data.tables import Table, read_csv, read_parquet
from pfedbred.errors import SettingError


def pool_from_arrays(
    x: Any, y: Any, client: Any = None, *, name: str = "custom", normalise: Normalise | None = None, where: str = ""
) -> Pool:
    """A pool from one array of samples, one of labels, and one that says whose each sample is.

    Labels and clients may be numbers or names. Whole-number labels from 0 are kept as they are; others are numbered
    in order.
    """
    where = where or name
    x, y = np.asarray(x), np.asarray(y)
    if x.dtype.kind in "US" or (x.dtype == object and all(isinstance(each, str) for each in x.ravel())):
        x = x.astype(str).astype(object)
    elif x.dtype.kind not in "biuf":
        raise SettingError(f"{where}: x must be numbers or texts, not {x.dtype}")
    if x.ndim < (1 if x.dtype == object else 2) or y.ndim != 1 or len(x) != len(y):
        raise SettingError(f"{where}: x of shape {x.shape} and y of shape {y.shape}; one row and one label a sample")
    owner, owners = None, None
    if client is not None:
        client = np.asarray(client)
        if client.shape != y.shape:
            raise SettingError(f"{where}: client has shape {client.shape}, y {y.shape}")
        different, owner = np.unique(client, return_inverse=True)
        owners = tuple(str(each) for each in different)
    y, labels, classes = _labels(y, where)
    if x.dtype.kind == "f" or x.dtype == bool:
        x = x.astype(np.float32)
    return Pool(
        name,
        x,
        y,
        classes,
        owner=owner,
        owners=owners,
        labels=labels,
        normalise=normalise or (to_unit_interval if x.dtype == np.uint8 else None),
        origin=lambda row: f"{where}, row {row}",
    )


def _labels(y: np.ndarray, where: str) -> tuple[np.ndarray, tuple[str, ...] | None, int]:
    """Labels as numbers, what they stand for if they were names, and how many there are."""
    if y.dtype.kind == "f" and len(y) and np.all(np.isfinite(y)) and np.all(y == np.round(y)):
        y = y.astype(np.int64)  # whole numbers, as a CSV or a spreadsheet may write them
    if y.dtype.kind in "iu":
        wrong = np.flatnonzero((y < 0) | (y >= 2**31))
        if len(wrong):
            raise SettingError(f"{where}, row {wrong[0]}: label {y[wrong[0]]} is not a whole number from 0")
        return y.astype(np.int32), None, int(y.max()) + 1 if len(y) else 0
    if y.dtype.kind == "f":
        strange = np.flatnonzero(~np.isfinite(y) | (y != np.round(y)))
        raise SettingError(f"{where}, row {strange[0]}: label {y[strange[0]]} is neither a whole number nor a name")
    different, number = np.unique(y.astype(str), return_inverse=True)
    return number.astype(np.int32), tuple(str(each) for each in different), len(different)


def pool_from_file(
    path: Path, *, client_column: str | None, label_column: str | None, features: Sequence[str] | None
) -> Pool:
    """A pool from an .npz, a .csv, a .parquet, or a folder of .parquet files."""
    if path.is_dir():
        parts = sorted(path.glob("*.parquet"))
        if not parts:
            raise SettingError(f"{path} holds no .parquet files")
        return _pool_from_table(read_parquet(parts), str(path), client_column, label_column, features)
    if not path.exists():
        raise SettingError(f"there is no file {path}")
    if path.suffix == ".npz":
        return _pool_from_npz(path, client_column or "client", label_column or "y")
    if path.suffix == ".csv":
        return _pool_from_table(read_csv(path), str(path), client_column, label_column, features)
    if path.suffix == ".parquet":
        return _pool_from_table(read_parquet([path]), str(path), client_column, label_column, features)
    raise SettingError(f"{path} is not a kind of file that can be read: .fed, .npz, .csv, .parquet or a folder of them")


def pool_from_dataset(
    dataset: Any,
    *,
    client_column: str | None = None,
    label_column: str | None = None,
    features: Sequence[str] | None = None,
    name: str = "custom",
) -> Pool:
    """A pool from a `datasets.Dataset`."""
    table = dataset.with_format("arrow")[:]  # in the dataset's own order: shuffles and selections count
    return _pool_from_table(Table.of([table], [name], ()), name, client_column, label_column, features)


def _pool_from_npz(path: Path, client: str, label: str) -> Pool:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for column in ("x", label):
                if column not in arrays:
                    raise SettingError(f"{path} has no array {column!r}, only {', '.join(arrays)}")
            found = {column: arrays[column] for column in ("x", label, client) if column in arrays}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, zlib.error) as problem:
        if isinstance(problem, SettingError):
            raise
        raise SettingError(
            f"cannot read {path}: {str(problem).splitlines()[0] if str(problem) else 'damaged'}"
        ) from None
    x = found["x"]
    normalise = standardise if x.ndim == 2 and x.dtype.kind in "if" and x.dtype != np.uint8 else None
    return pool_from_arrays(x, found[label], found.get(client), name=path.stem, normalise=normalise, where=str(path))


def _pool_from_table(
    table: Table, where: str, client_column: str | None, label_column: str | None, features: Sequence[str] | None
) -> Pool:
    """Features are numbers, or one column of images or of texts."""
    label = label_column or next((each for each in ("label", "y") if each in table.columns), "label")
    client = client_column or next((each for each in ("client",) if each in table.columns), None)
    number, names = table.names(label)
    values = [int(each) for each in names] if all(each.isdecimal() for each in names) else None
    y, labels = (np.asarray(values)[number], None) if values else (number, names)
    owner, owners = table.names(client) if client else (None, None)
    chosen = list(features) if features else [each for each in table.columns if each not in (label, client)]
    if not chosen:
        raise SettingError(f"{where} has no column beside the label and the client")
    normalise: Normalise | None = None
    if len(chosen) == 1 and table.holds_images(chosen[0]):
        x: np.ndarray = table.images(chosen[0])
        normalise = to_unit_interval
    elif len(chosen) == 1 and table.holds_texts(chosen[0]):
        x = table.texts(chosen[0])
    else:
        x, normalise = table.numbers(chosen), standardise
    return Pool(
        Path(where).stem,
        x,
        y.astype(np.int32),
        int(y.max()) + 1,
        owner=owner,
        owners=owners,
        labels=labels,
        normalise=normalise,
        origin=table.origin,
    )
