"""Columns of a table as features: numbers, or texts as categories, with gaps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pfedbred.data.columns import MOST_CATEGORIES, DataColumn, is_missing
from pfedbred.data.sources.tables import TableRows, is_number
from pfedbred.errors import SettingError


def features_of(table: TableRows, columns: Sequence[str], hint: str = "") -> tuple[np.ndarray, tuple[DataColumn, ...]]:
    """These columns side by side, as numbers or numbers of texts, NaN for a gap; and their descriptions.

    ``hint`` ends the error for a column that cannot be a feature.
    """
    found = [_feature(table, column, hint) for column in columns]
    described = tuple(DataColumn(name, texts) for name, (_, texts) in zip(columns, found, strict=True))
    return np.stack([values for values, _ in found], axis=1), described


def _feature(table: TableRows, column: str, hint: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """One column, and its texts if it has any."""
    import pyarrow

    cells, kinds = table.column(column), pyarrow.types
    if kinds.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if any(kind(cells.type) for kind in (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal)):
        return np.asarray(cells.cast(pyarrow.float64(), safe=False).to_numpy(), np.float64), None
    values = cells.to_pylist()
    if not all(value is None or isinstance(value, str) for value in values):
        raise table.no_number(column, values, hint)
    present = [row for row, value in enumerate(values) if not is_missing(value)]
    numbers = sum(is_number(values[row]) for row in present)
    if numbers == len(present):
        return np.array([np.nan if is_missing(value) else float(value) for value in values]), None
    if 2 * numbers > len(present):  # more likely a typo than a category
        raise table.no_number(column, [None if is_missing(value) else value for value in values], hint)
    texts = tuple(sorted({values[row].strip() for row in present}))
    if len(texts) > MOST_CATEGORIES:
        raise SettingError(
            f"{table.name}: column {column!r} has {len(texts):,} different texts, more than {MOST_CATEGORIES:,} "
            f"categories{hint}"
        )
    place = {text: float(number) for number, text in enumerate(texts)}
    return np.array([np.nan if is_missing(value) else place[value.strip()] for value in values]), texts
