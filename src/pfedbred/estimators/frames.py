"""Data frames with texts: their categories as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from pfedbred.data.columns import MOST_CATEGORIES, DataColumn, as_category, is_missing
from pfedbred.errors import SettingError


def is_frame(given: Any) -> bool:
    """Whether it is a data frame of pandas."""
    return all(hasattr(given, name) for name in ("columns", "dtypes", "isetitem"))


def numbered(frame: Any, known: Sequence[DataColumn] | None = None) -> tuple[Any, tuple[DataColumn, ...]]:
    """The frame with the number of its category in place of each text, NaN for a gap; and what its columns are.

    Categories are those of the ``known`` columns, where an unknown text is -1; without any, all that are there.
    """
    frame, found = frame.copy(), []
    before = {column.name: column.categories for column in known or ()}
    for place, name in enumerate(map(str, frame.columns)):
        categories, dtype = before.get(name), frame.dtypes.iloc[place]
        if known is None and dtype.kind == "O":  # objects, texts and pandas' own categories
            categories = _categories(name, frame.iloc[:, place].tolist())
        if categories is not None:
            number = {text: float(i) for i, text in enumerate(categories)}
            cells = frame.iloc[:, place].tolist()
            values = [np.nan if _is_gap(each) else number.get(as_category(each), -1.0) for each in cells]
            frame.isetitem(place, np.array(values, np.float64))
        found.append(DataColumn(name, categories))
    return frame, tuple(found)


def _categories(name: str, cells: Sequence[Any]) -> tuple[str, ...] | None:
    """The different texts of a column; None if its cells are numbers."""
    present = [each for each in cells if not _is_gap(each)]
    if all(isinstance(each, Real) for each in present):
        return None
    texts = tuple(sorted({as_category(each) for each in present}))
    if len(texts) > MOST_CATEGORIES:
        raise SettingError(
            f"column {name!r} has {len(texts):,} different texts, more than {MOST_CATEGORIES:,} categories: drop it"
        )
    return texts


def _is_gap(cell: Any) -> bool:
    return type(cell).__name__ == "NAType" or is_missing(cell)  # pandas' NA does not compare
