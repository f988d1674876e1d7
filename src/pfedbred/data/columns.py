"""Columns of a table as a model's inputs: gaps filled, categories as 0 and 1, numbers standardised.

The encoding of a column is decided by training samples alone. A gap is filled with the mean (or median) of the client's
own training samples, or of all clients' if it has none; a column with gaps also gets an input that marks them. A column
of texts has one input per text; an unknown text has 0 in all of them.

scikit-learn's SimpleImputer, OneHotEncoder and StandardScaler do this with one set of statistics for all rows; here
each client has its own, and those of all clients where it has no values. scikit-learn saves fitted objects by pickling;
formats that are safe to load (skops, ONNX) need further packages, for what is a few lists and arrays here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from pfedbred.data.scaling import moments
from pfedbred.errors import SettingError
from pfedbred.io.shapes import Maybe, expect
from pfedbred.io.strict import read_json

Fill = Literal["mean", "median"]
Standardise = Literal["all", "client", "none"]

MOST_CATEGORIES = 1_000
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "None")
"""Texts that stand for a gap."""

SHAPE = [{"name": str, "categories": Maybe([str]), "indicator": bool}]
"""Columns in a file, as :meth:`Encoding.facts` describes them."""


class DataColumn(NamedTuple):
    """A column of a table.

    Attributes:
      name: its title.
      categories: the known texts of a column of texts; None for numbers.
      indicator: whether an input marks its gaps.
    """

    name: str
    categories: tuple[str, ...] | None = None
    indicator: bool = False

    @property
    def inputs(self) -> list[str]:
        """The names of its inputs."""
        values = [self.name] if self.categories is None else [f"{self.name}={each}" for each in self.categories]
        return [*values, *([f"{self.name} missing"] if self.indicator else [])]


class ColumnStatistics(NamedTuple):
    """What fills the gaps of each column, and its standardisation, (x - shift) * scale; unused for texts."""

    fill: np.ndarray
    shift: np.ndarray
    scale: np.ndarray


@dataclass(frozen=True)
class Encoding:
    """How cells become inputs.

    Attributes:
      columns: the table's columns, in order.
      everyone: statistics of all clients' training samples, one number for each column.
      own: statistics of each client, clients x columns.
    """

    columns: tuple[DataColumn, ...]
    everyone: ColumnStatistics
    own: ColumnStatistics

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(name for column in self.columns for name in column.inputs)

    def encode(self, x: np.ndarray, client: int | None = None) -> np.ndarray:
        """The inputs of samples from :func:`numbers_of`, by a client's own statistics if one is given."""
        used = self.everyone if client is None else ColumnStatistics(*(each[client] for each in self.own))
        inputs = []
        for place, (column, values) in enumerate(zip(self.columns, x.T, strict=True)):
            gaps = np.isnan(values)
            if column.categories is None:
                filled = np.where(gaps, used.fill[place], values)
                inputs.append((filled - used.shift[place]) * used.scale[place])
            else:
                inputs += [values == number for number in range(len(column.categories))]
            inputs += [gaps] if column.indicator else []
        return np.stack(inputs, axis=1).astype(np.float32)

    def take(self, clients: np.ndarray) -> Encoding:
        """The encoding with the statistics of these clients only."""
        return Encoding(self.columns, self.everyone, ColumnStatistics(*(each[clients] for each in self.own)))

    def facts(self) -> list[dict[str, Any]]:
        """The columns for a file."""
        return [column._asdict() for column in self.columns]

    def arrays(self) -> dict[str, np.ndarray]:
        """The statistics for a file, by name."""
        whose = {"everyone": self.everyone, "own": self.own}
        return {f"{name}.{key}": each for name, found in whose.items() for key, each in found._asdict().items()}


def restored(facts: Any, arrays: Mapping[str, np.ndarray], clients: int, where: Any) -> Encoding:
    """The encoding in a file, if it is consistent."""
    expect(facts, SHAPE, where, "'columns'")
    columns, found = _columns(facts), []
    for name, shape in (("everyone", (len(columns),)), ("own", (clients, len(columns)))):
        parts = [arrays.get(f"{name}.{key}") for key in ColumnStatistics._fields]
        if any(each is None or each.shape != shape or not np.isfinite(each).all() for each in parts):
            raise SettingError(f"{where}: the statistics must be finite numbers for each of the columns")
        found.append(ColumnStatistics(*(np.asarray(each, np.float64) for each in parts)))
    return Encoding(columns, *found)


def fit(
    x: np.ndarray,
    columns: Sequence[DataColumn],
    clients: Sequence[np.ndarray],
    fill: Fill = "mean",
    standardise: Standardise = "all",
    agreed: bool = False,
    deciding: Sequence[int] | None = None,
) -> tuple[Encoding, np.ndarray]:
    """The encoding that training samples decide, and the samples with texts numbered by it.

    Args:
      x: all samples, one row each: numbers, or the number of a text; NaN for a gap.
      columns: the columns; texts are numbered in the order of their categories.
      clients: the rows of each client's training samples.
      fill: what fills gaps.
      standardise: numbers are standardised over all clients, per client, or not at all.
      agreed: keep the categories and marked gaps of ``columns``, whatever the training samples hold.
      deciding: the clients whose samples decide what all clients share; by default all clients.
    """
    train = x[np.concatenate(clients if deciding is None else [clients[i] for i in deciding])]
    known, x = list(columns) if agreed else [], x.copy()
    for place, column in enumerate(() if agreed else columns):
        gaps = bool(np.isnan(train[:, place]).any())
        categories = column.categories
        if categories is not None:
            used = np.unique(train[:, place][~np.isnan(train[:, place])]).astype(int)
            numbers = np.full(len(categories) + 1, -1.0)  # the last is for gaps, which remain
            numbers[used] = np.arange(len(used))
            numbers[-1] = np.nan
            x[:, place] = numbers[np.where(np.isnan(x[:, place]), len(categories), x[:, place]).astype(int)]
            categories = tuple(categories[number] for number in used)
        known.append(DataColumn(column.name, categories, gaps))
    is_text = np.array([column.categories is not None for column in columns])
    middle = np.nanmedian if fill == "median" else np.nanmean
    everyone = _statistics(train, is_text, middle, standardise, None)
    each = [_statistics(x[rows], is_text, middle, standardise, everyone) for rows in clients]
    own = ColumnStatistics(*(np.stack(part) for part in zip(*each, strict=True)))
    return Encoding(tuple(known), everyone, own), x


def _statistics(
    x: np.ndarray, is_text: np.ndarray, middle: Any, standardise: Standardise, everyone: ColumnStatistics | None
) -> ColumnStatistics:
    """Statistics of the values present; those of everyone where there are none, or all are the same."""
    count = x.shape[1]
    found = ColumnStatistics(np.zeros(count), np.zeros(count), np.ones(count)) if everyone is None else everyone
    fill, shift, scale = (each.copy() for each in found)
    for place in np.flatnonzero(~is_text & ~np.isnan(x).all(axis=0)):
        values = x[:, place][~np.isnan(x[:, place])]
        fill[place] = middle(values)
        if standardise == "client" or (standardise == "all" and everyone is None):
            shift[place], spread = moments(values)
            if spread > 0:
                scale[place] = 1 / spread
    return ColumnStatistics(fill, shift, scale)


def in_words(encoding: Encoding, fill: Fill, standardise: Standardise) -> str:
    """What was done to the columns, in words."""
    columns = encoding.columns
    texts = [column for column in columns if column.categories is not None]
    gaps = sum(column.indicator for column in columns)
    words = [f"{len(columns)} columns as {len(encoding.names)} inputs"]
    if texts:
        words.append(f"{len(texts)} of texts as {sum(len(each.categories or ()) for each in texts)} categories")
    if gaps:
        words.append(f"gaps in {gaps} filled with the client's {fill}, and marked by an input each")
    done = {"all": "standardised over all clients", "client": "standardised by client", "none": "not standardised"}
    return ", ".join([*words, f"numbers {done[standardise]}"])


def read_columns(path: Path) -> tuple[DataColumn, ...]:
    """The columns in a file that several clients share, so that all of them have the same inputs."""
    facts = read_json(path)
    expect(facts, SHAPE, path)
    names = [each["name"] for each in facts]
    if not names or len(set(names)) < len(names):
        raise SettingError(f"{path} must name each column exactly once")
    return _columns(facts)


def _columns(facts: Sequence[Mapping[str, Any]]) -> tuple[DataColumn, ...]:
    return tuple(
        DataColumn(each["name"], None if each["categories"] is None else tuple(each["categories"]), each["indicator"])
        for each in facts
    )


# Cells --------------------------------------------------------------------------------------------------------------


def numbers_of(columns: Sequence[DataColumn], rows: Sequence[Any], where: str = "samples") -> np.ndarray:
    """Samples as numbers, from rows of cells in the order of the columns, or mappings by column name."""
    found = np.full((len(rows), len(columns)), np.nan)
    for number, row in enumerate(rows):
        cells = _cells(columns, row, f"{where}, row {number}")
        for place, (column, cell) in enumerate(zip(columns, cells, strict=True)):
            found[number, place] = _number_of(column, cell, f"{where}, row {number}")
    return found


def _cells(columns: Sequence[DataColumn], row: Any, where: str) -> list[Any]:
    if isinstance(row, Mapping):
        for column in columns:
            if column.name not in row:
                raise SettingError(f"{where}: there is no {column.name!r}, only {', '.join(map(repr, row))}")
        return [row[column.name] for column in columns]
    cells = list(row)
    if len(cells) != len(columns):
        names = ", ".join(column.name for column in columns)
        raise SettingError(f"{where} has {len(cells)} values, but the model takes {len(columns)}: {names}")
    return cells


def _number_of(column: DataColumn, cell: Any, where: str) -> float:
    if is_missing(cell):
        return np.nan
    if column.categories is not None:
        text = as_category(cell)
        return column.categories.index(text) if text in column.categories else -1.0
    try:
        number = float(cell)
    except (TypeError, ValueError):
        raise SettingError(f"{where}: {column.name!r} must be a number, not {cell!r}") from None
    if np.isinf(number):
        raise SettingError(f"{where}: {column.name!r} is not a finite number")
    return number


def is_missing(cell: Any) -> bool:
    """Whether a cell is a gap."""
    return cell is None or cell != cell or (isinstance(cell, str) and cell.strip() in MISSING)


def as_category(cell: Any) -> str:
    """A cell as text; 1.0 becomes "1", because whole numbers in a column with gaps are read as floats."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()
