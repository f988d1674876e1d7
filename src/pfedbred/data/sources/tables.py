"""Tables with named columns: parquet files, CSV files, `datasets.Dataset`; and their columns as arrays.

Every complaint names the file and the row.
"""

from __future__ import annotations

import bisect
import io
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.data.sources import png
from pfedbred.errors import SettingError
from pfedbred.io.npy import refuse_bomb

_MOST_PIXELS = 2**24
_NEEDS = "needs pyarrow and pillow: pip install 'pfedbred[data]'"


class Table:
    """Rows from one or more files, one after another."""

    def __init__(self, table: Any, names: Sequence[str], begins: Sequence[int]) -> None:
        self._table, self._names, self._begins = table, list(names), list(begins)

    @staticmethod
    def of(parts: Sequence[Any], names: Sequence[str], columns: Sequence[str]) -> Table:
        """The rows of some Arrow tables, of which only these columns are kept; all of them if none are named."""
        import pyarrow

        for part, name in zip(parts, names, strict=True):
            for column in columns:
                if column not in part.column_names:
                    raise SettingError(f"{name} has no column {column!r}, only {', '.join(part.column_names)}")
        for part, name in zip(parts, names, strict=True):
            twice = [column for column in part.column_names if part.column_names.count(column) > 1]
            if twice:
                raise SettingError(f"{name} has the column {twice[0]!r} twice")
        kept = [part.select(list(columns)) if columns else part for part in parts]
        begins = np.concatenate([[0], np.cumsum([part.num_rows for part in parts])[:-1]]).astype(int).tolist()
        try:
            return Table(pyarrow.concat_tables(kept), names, begins)
        except pyarrow.ArrowException:
            raise SettingError(f"{names[0]} and the files beside it do not have the same columns") from None

    @property
    def columns(self) -> list[str]:
        """Their names."""
        return list(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def origin(self, row: int) -> str:
        """The file and the row in it."""
        part = bisect.bisect_right(self._begins, row) - 1
        return f"{self._names[part]}, row {row - self._begins[part]}"

    def _cells(self, column: str) -> Any:
        if column not in self.columns:
            raise SettingError(f"{self._names[0]} has no column {column!r}, only {', '.join(self.columns)}")
        cells = self._table.column(column)
        try:
            cells.validate(full=True)
        except (ValueError, TypeError):  # Arrow's own errors are of these kinds
            raise SettingError(f"{self._names[0]}: column {column!r} is damaged, or not text in UTF-8") from None
        if cells.null_count:
            row = int(np.argmax(np.asarray(cells.is_null())))
            raise SettingError(f"{self.origin(row)}: column {column!r} is empty")
        return cells

    def whole_numbers(self, column: str) -> np.ndarray:
        """A column of labels."""
        import pyarrow

        cells = self._cells(column)
        try:
            if pyarrow.types.is_integer(cells.type):  # Arrow's own way imports pandas, a fifth of a second
                values = np.array(cells.to_pylist(), cells.type.to_pandas_dtype())
            else:
                values = np.asarray(cells.to_numpy())
        except (TypeError, ValueError):
            values = np.array(["?"])
        if not np.issubdtype(values.dtype, np.integer):
            raise SettingError(f"{self.origin(0)}: column {column!r} must hold whole numbers")
        wrong = np.flatnonzero((values < 0) | (values >= 2**31))
        if len(wrong):
            raise SettingError(f"{self.origin(int(wrong[0]))}: label {values[wrong[0]]} is not a whole number from 0")
        return values.astype(np.int32)

    def names(self, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
        """A column of names or numbers: which of its different values each row has, and those values in order."""
        values = np.asarray(self._cells(column).to_numpy())
        for row, value in enumerate(values.tolist()):
            if isinstance(value, bytes):
                raise SettingError(f"{self.origin(row)}: column {column!r} is not text in UTF-8")
            if value == "" or value != value:
                raise SettingError(f"{self.origin(row)}: column {column!r} is empty")
        try:
            different, number = np.unique(values, return_inverse=True)
        except (TypeError, ValueError):
            raise SettingError(f"{self.origin(0)}: column {column!r} must hold names or numbers") from None
        return number.astype(np.int64), tuple(str(each) for each in different)

    def holds_images(self, column: str) -> bool:
        """Whether a column's cells are encoded images, as the hub stores them."""
        import pyarrow

        return column in self.columns and bool(pyarrow.types.is_struct(self._table.column(column).type))

    def holds_texts(self, column: str) -> bool:
        """Whether a column's cells are texts."""
        import pyarrow

        kinds = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view)
        return column in self.columns and any(kind(self._table.column(column).type) for kind in kinds)

    def texts(self, column: str) -> np.ndarray:
        """A column of texts."""
        values = self._cells(column).to_pylist()
        for row, value in enumerate(values):
            if not isinstance(value, str):
                raise SettingError(f"{self.origin(row)}: column {column!r} must hold texts")
        return np.array(values, object)

    def numbers(self, columns: Sequence[str]) -> np.ndarray:
        """Columns of numbers, side by side."""
        found = []
        for column in columns:
            values = np.asarray(self._cells(column).to_numpy())
            if not (np.issubdtype(values.dtype, np.number) or values.dtype == bool):
                row = next((row for row, value in enumerate(values.tolist()) if not _is_number(value)), 0)
                raise SettingError(
                    f"{self.origin(row)}: column {column!r} does not hold numbers; name the features to use, or the "
                    "client's column if it is that: --features and --client-column of 'pfedbred data prepare'"
                )
            found.append(values.astype(np.float64))
        return np.stack(found, axis=1)

    def images(self, column: str) -> np.ndarray:
        """A column of encoded images, all of one shape, as bytes."""
        cells = self._cells(column).to_pylist()
        plain = png.decoded([cell.get("bytes") for cell in cells]) if self.holds_images(column) else None
        if plain is not None:
            return plain
        images = list(self._decoded(cells))
        for row, image in enumerate(images):
            if image.shape != images[0].shape:
                raise SettingError(
                    f"{self.origin(row)}: an image of shape {image.shape}; the first is {images[0].shape}"
                )
        return np.stack(images)

    def _decoded(self, cells: Sequence[Any]) -> Iterator[np.ndarray]:
        try:
            from PIL import Image, UnidentifiedImageError
        except ImportError:
            raise SettingError(f"reading images {_NEEDS}") from None
        for row, cell in enumerate(cells):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of strange metadata, and of sizes that are refused here
                    image = Image.open(io.BytesIO(cell["bytes"]))
                    small = image.width * image.height <= _MOST_PIXELS
                    pixels = np.asarray(image) if small else None
            except (
                *(UnidentifiedImageError, Image.DecompressionBombError, OSError, EOFError),
                *(LookupError, TypeError, ValueError, SyntaxError, AttributeError, struct.error, zlib.error),
            ):
                raise SettingError(f"{self.origin(row)} does not hold an image") from None
            if pixels is None:
                raise SettingError(
                    f"{self.origin(row)}: an image of {image.width} x {image.height} pixels, more than {_MOST_PIXELS:,}"
                )
            yield pixels


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def read_parquet(paths: Sequence[Path], columns: Sequence[str] = ()) -> Table:
    """The rows of these files."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SettingError(f"reading {paths[0]} {_NEEDS}") from None
    parts = []
    for path in paths:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                facts = file.metadata
                if facts.num_rows < 0:
                    raise SettingError(f"cannot read {path}: it is damaged")
                refuse_bomb(path, path.stat().st_size, facts.num_rows * max(1, facts.num_columns))
                parts.append(file.read())
        except SettingError:
            raise
        except (OSError, ValueError, TypeError, pyarrow.ArrowException) as problem:
            raise SettingError(f"cannot read {path}: {_first_line(problem)}") from None
    return Table.of(parts, [str(path) for path in paths], columns)


def read_csv(path: Path) -> Table:
    """The rows of a CSV file with a header."""
    try:
        import pyarrow
        import pyarrow.csv
    except ImportError:
        raise SettingError(f"reading {path} {_NEEDS}") from None
    try:
        return Table.of([pyarrow.csv.read_csv(path)], [str(path)], ())
    except UnicodeDecodeError:
        raise SettingError(f"cannot read {path}: it is not a text file in UTF-8") from None
    except (OSError, pyarrow.ArrowException) as problem:
        raise SettingError(f"cannot read {path}: {_first_line(problem)}") from None


def _first_line(problem: Exception) -> str:
    lines = str(problem).splitlines()
    return lines[0] if lines else type(problem).__name__
