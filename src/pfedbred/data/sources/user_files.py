"""The user's own data: arrays, .npz, .csv and .parquet files, a `datasets.Dataset`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.data.client_arrays import check_resolution
from pfedbred.data.columns import DataColumn, numbers_of
from pfedbred.data.labels import FRACTION, ReadLabels, kind_of, numbered, read_labels, stored, whole_number
from pfedbred.data.pool import Pool
from pfedbred.data.scaling import FitScaling, standardise, to_unit_interval
from pfedbred.data.sources.leaf import leaf_files
from pfedbred.data.sources.table_features import features_of
from pfedbred.data.sources.tables import TableRows, is_number, read_csv, read_parquet
from pfedbred.errors import NoSamples, SettingError
from pfedbred.io.npy import Npz
from pfedbred.settings.values import parse_number
from pfedbred.tasks import usual


def pool_from_arrays(
    x: Any,
    y: Any,
    client: Any = None,
    *,
    name: str = "custom",
    normalise: FitScaling | None = None,
    where: str = "",
    task: str | None = None,
) -> Pool:
    """A pool from an array of samples, one of labels, and one with the client of each sample.

    Labels and clients may be numbers or names. Whole-number labels from 0 are kept; others are numbered in sorted
    order. The ``task`` regression reads them as numbers to predict, multi-label as rows of 0 and 1.
    """
    where = where or name
    x, y = np.asarray(x), np.asarray(y)
    texts = x.dtype.kind in "US" or (x.dtype == object and all(isinstance(each, str) for each in x.ravel()))
    if texts and x.ndim > 1 and x.size:
        raise SettingError(
            f"{where}: x of shape {x.shape} holds texts where numbers are expected; texts as samples have one dimension"
        )
    several = kind_of(task) == "sets"
    if (x.ndim != 1 if texts else x.ndim < 2) or y.ndim != 1 + several or len(x) != len(y) or not len(y):
        raise SettingError(
            f"{where}: x of shape {x.shape} and y of shape {y.shape}; expected one row and one label for each sample"
        )
    x = x.astype(str).astype(object) if texts else compact(x, where)
    owner, owners = None, None
    if client is not None:
        client = np.asarray(client)
        if client.shape != y.shape[:1]:
            raise SettingError(f"{where}: client has shape {client.shape}, y {y.shape}")
        owner, owners = numbered(client, f"{where}: client")
    y, labels, classes, task = read_labels(y, task, where)
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
        task=task,
    )


def compact(x: np.ndarray, where: str) -> np.ndarray:
    """Numbers in a type that devices support: bytes are kept, whole numbers become int32, others float32.

    Values that 32 bits cannot resolve are rejected, not rounded.
    """
    if x.dtype.kind not in "biuf":
        raise SettingError(f"{where}: x must be numbers or texts, not {x.dtype}")
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind in "iu" and (np.abs(x.astype(float)) < 2**31).all():
        return x.astype(np.int32)
    check_resolution(x, where)
    with np.errstate(over="ignore"):  # overflow becomes infinite, which a pool rejects
        return x.astype(np.float32)


def pool_from_file(
    path: Path,
    *,
    client_column: str | None,
    label_column: str | None,
    features: Sequence[str] | None,
    task: str | None = None,
    columns: Sequence[DataColumn] | None = None,
) -> Pool:
    """A pool from an .npz, a .csv, a .parquet, or a folder of .parquet files."""
    if os.path.isdir(path):
        parts = sorted(path.glob("*.parquet"))
        if not parts and leaf_files(path):
            raise SettingError(
                f"{path} holds LEAF's files: use --dataset femnist or sent140, with its parent folder as --data-dir"
            )
        if not parts:
            raise SettingError(f"{path} holds no .parquet files")
        table = read_parquet(parts)
    elif not os.path.exists(path):  # False for a name too long
        raise SettingError(f"there is no file {path}")
    elif path.suffix == ".npz":
        if features:
            raise SettingError(f"features names columns of a table; {path} has one array x")
        return _pool_from_npz(path, client_column, label_column or "y", task)
    elif path.suffix == ".csv":
        table = read_csv(path)
    elif path.suffix == ".parquet":
        table = read_parquet([path])
    else:
        raise SettingError(f"cannot read {path}: expected .fed, .npz, .csv, .parquet or a folder of .parquet")
    return pool_from_table(table, str(path), client_column, label_column, features, task, columns)


def pool_from_dataset(
    dataset: Any,
    *,
    client_column: str | None = None,
    label_column: str | None = None,
    features: Sequence[str] | None = None,
    name: str = "custom",
    task: str | None = None,
) -> Pool:
    """A pool from a `datasets.Dataset`."""
    if not hasattr(dataset, "with_format") or not hasattr(dataset, "num_rows") or isinstance(dataset, dict):
        raise SettingError(
            f"from_dataset takes a datasets.Dataset (one part, such as train), not a {type(dataset).__name__}"
        )
    table = dataset.with_format("arrow")[:]  # keeps the order after shuffle and select
    return pool_from_table(TableRows.of([table], [name], ()), name, client_column, label_column, features, task)


def _pool_from_npz(path: Path, client_column: str | None, label: str, task: str | None) -> Pool:
    client = client_column or "client"
    with Npz(path) as arrays:
        for column in ("x", label, *((client,) if client_column else ())):
            if column not in arrays.names:
                raise SettingError(f"{path} has no array {column!r}, only {', '.join(arrays.names)}")
        found = {column: arrays[column] for column in ("x", label, client) if column in arrays.names}
    x = found["x"]
    normalise = standardise if x.ndim == 2 and x.dtype.kind in "biuf" and x.dtype != np.uint8 else None
    given: dict[str, Any] = {"name": path.stem, "normalise": normalise, "where": str(path), "task": task}
    return pool_from_arrays(x, found[label], found.get(client), **given)


def pool_from_table(
    table: TableRows,
    where: str,
    client_column: str | None,
    label_column: str | None,
    features: Sequence[str] | None,
    task: str | None,
    agreed: Sequence[DataColumn] | None = None,
) -> Pool:
    """A pool whose features are columns of numbers or categories, or one column of images, texts or lists.

    Columns given as ``agreed`` are read as they specify.
    """
    client = client_column or next((each for each in ("client",) if each in table.columns), None)
    if not len(table):
        raise NoSamples(f"{where} has no rows")
    answers = label_columns(table, label_column, task, where)
    y, labels, classes, task = _table_labels(table, answers, task)
    owner, owners = table.names(client) if client else (None, None)
    chosen = list(features) if features else [each for each in table.columns if each not in (*answers, client)]
    if agreed:
        chosen = [each.name for each in agreed]
    if not chosen:
        raise SettingError(f"{where} has no columns other than the label and the client")
    if agreed:
        found = TableInputs(numbers_of(agreed, table.rows(chosen), where), columns=tuple(agreed))
    else:
        found = inputs_of(table, chosen, where, _CHOOSE)
    return Pool(
        Path(where).stem,
        found.x,
        y,
        classes,
        owner=owner,
        owners=owners,
        labels=labels,
        features=tuple(chosen),
        normalise=found.normalise,
        origin=table.origin,
        task=task,
        columns=found.columns,
        agreed=agreed is not None,
    )


def label_columns(table: TableRows, given: str | None, task: str | None, where: str) -> list[str]:
    """The column with the labels; for sets of labels, one column for each label."""
    if given is None:
        found = next((each for each in ("label", "y") if each in table.columns), None)
        if found is None:
            raise SettingError(
                f"{where} has no column 'label' or 'y', only {', '.join(table.columns)}: name the label column with "
                "--label-column"
            )
        return [found]
    return [each.strip() for each in given.split(",")] if kind_of(task) == "sets" else [given]


def _table_labels(table: TableRows, columns: Sequence[str], task: str | None) -> ReadLabels:
    kind = kind_of(task)
    if kind == "sets":
        return read_labels(table.numbers(columns, _CHOOSE_LABELS), task, table.name)._replace(names=tuple(columns))
    if kind == "numbers":
        return read_labels(table.numbers(columns, _CHOOSE_LABELS)[:, 0], task, table.name)
    if task is None and (row := table.first_fraction(columns[0])) is not None:
        raise SettingError(f"{table.origin(row)}: label {table.cell(columns[0], row)!r} {FRACTION}")
    number, names = table.names(columns[0])
    if len(names) > max(_MOST_DECIMALS, len(table) / 10) and table.first_fraction(columns[0]) is not None:
        raise SettingError(
            f"{table.name}: column {columns[0]!r} has {len(names)} different decimal numbers in {len(table)} rows, too "
            "many for classes: to predict numbers, the task is regression (--task regression)"
        )
    if task is None and len(names) > max(_MOST_NUMBERS, len(table) / 10) and all(map(_is_number, names)):
        raise SettingError(
            f"{table.name}: column {columns[0]!r} has {len(names)} different numbers in {len(table)} rows: to predict "
            "numbers, the task is regression (--task regression); if they are classes, use --task classification"
        )
    whole = [each for each in map(whole_number, names) if each is not None]
    if len(whole) == len(names) and max(whole) <= 10 * len(names) + 10:
        y = np.asarray(whole)[number]  # already numbers, with few gaps
        return ReadLabels(stored(y, kind), None, int(y.max()) + 1, task or usual(kind))
    return ReadLabels(stored(number, kind), names, len(names), task or usual(kind))


def _is_number(text: str) -> bool:
    return parse_number(text) is not None


_MOST_NUMBERS = 100
"""Up to this many different whole numbers may always be classes."""

_MOST_DECIMALS = 20
"""Up to this many different decimal numbers may always be names of classes, such as grades."""


class TableInputs(NamedTuple):
    """Samples in columns of a table, with their normalisation, or their columns if these have gaps or texts."""

    x: np.ndarray
    normalise: FitScaling | None = None
    columns: tuple[DataColumn, ...] | None = None


def _mostly_numbers(table: TableRows, column: str) -> bool:
    """Whether texts are numbers with gaps or typing errors rather than texts to be read."""
    cells = table.column(column).to_pylist()
    return 2 * sum(map(is_number, cells)) > len(cells)


_CHOOSE = "; choose columns with --features, or name the client's with --client-column"
_CHOOSE_LABELS = "; choose the label column with --label-column"


def inputs_of(table: TableRows, columns: Sequence[str], where: str, hint: str = "") -> TableInputs:
    """The samples in these columns: one column of images, texts or lists, or several of numbers and categories.

    ``hint`` ends the error for a column that cannot be an input.
    """
    if len(columns) == 1 and table.holds_images(columns[0]):
        return TableInputs(table.images(columns[0]), to_unit_interval)
    if len(columns) == 1 and table.holds_texts(columns[0]) and not _mostly_numbers(table, columns[0]):
        return TableInputs(table.texts(columns[0]))
    if len(columns) == 1 and table.holds_lists(columns[0]):
        return TableInputs(compact(table.vectors(columns[0]), where), standardise)
    x, described = features_of(table, columns, hint)
    if np.isnan(x).any() or any(column.categories is not None for column in described):
        return TableInputs(x, columns=described)
    return TableInputs(compact(x, where), standardise)
