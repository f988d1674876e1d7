"""Tables with named columns (parquet files, CSV files, `datasets.Dataset`), and their columns as arrays.

Every error names the file and the row.
"""

from __future__ import annotations

import bisect
import io
import struct
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.errors import SettingError
from pfedbred.io.npy import refuse_bomb
from pfedbred.io.strict import check_regular_file, reading

_MOST_PIXELS = 2**24
_PROGRESS_SECONDS = 3.0  # between two progress messages
_NEEDS = "needs pyarrow and pillow: pip install 'pfedbred[data]'"


class TableRows:
    """Rows from one or more files, one after another."""

    def __init__(self, table: Any, names: Sequence[str], begins: Sequence[int]) -> None:
        self._table, self._names, self._begins = table, list(names), list(begins)
        self.columns: list[str] = table.column_names  # Arrow builds a new list at every access
        self._place = {column: place for place, column in enumerate(self.columns)}

    @staticmethod
    def of(parts: Sequence[Any], names: Sequence[str], columns: Sequence[str]) -> TableRows:
        """The rows of some Arrow tables, with these columns only, or all if none are named."""
        import pyarrow

        for part, name in zip(parts, names, strict=True):
            found = Counter(part.column_names)
            for column in columns:
                if column not in found:
                    raise SettingError(f"{name} has no column {column!r}, only {', '.join(found)}")
            for column, times in found.items():
                if times > 1 and is_number(column):
                    raise SettingError(
                        f"{name} seems to have no header line: {column!r} appears twice in place of column names"
                    )
                if times > 1:
                    raise SettingError(f"{name} has the column {column!r} twice")
        kept = [part.select(list(columns)) if columns else part for part in parts]
        begins = np.concatenate([[0], np.cumsum([part.num_rows for part in parts])[:-1]]).astype(int).tolist()
        try:
            return TableRows(pyarrow.concat_tables(kept), names, begins)
        except pyarrow.ArrowException:
            raise SettingError(f"{names[0]} and the files beside it do not have the same columns") from None

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def name(self) -> str:
        """The name of the file, or of the first of several."""
        return self._names[0]

    def origin(self, row: int) -> str:
        """The file that a row is from, and its row number there (in a CSV file, its line), for errors."""
        part = bisect.bisect_right(self._begins, row) - 1
        name, number = self._names[part], row - self._begins[part]
        if not name.endswith(".csv"):
            return f"{name}, row {number}"
        return f"{name}, line {number + 2 + self._line_breaks(self._begins[part], row)}"

    def _line_breaks(self, begin: int, end: int) -> int:
        """The number of line breaks within the texts of these rows."""
        import pyarrow

        texts = [each for each in self._table.columns if pyarrow.types.is_string(each.type)]
        return sum((cell or "").count("\n") for each in texts for cell in each[begin:end].to_pylist())

    def column(self, column: str) -> Any:
        """A column unchanged, with or without gaps."""
        if column not in self._place:
            raise SettingError(f"{self._names[0]} has no column {column!r}, only {', '.join(self.columns)}")
        cells = self._table.column(self._place[column])
        try:
            cells.validate(full=True)
        except (ValueError, TypeError):  # the bases of Arrow's errors
            raise SettingError(f"{self._names[0]}: column {column!r} is damaged, or not text in UTF-8") from None
        return cells

    def _cells(self, column: str) -> Any:
        """A column without gaps."""
        cells = self.column(column)
        if cells.null_count:
            row = int(np.argmax(np.asarray(cells.is_null())))
            raise SettingError(f"{self.origin(row)}: column {column!r} is empty")
        return cells

    def whole_numbers(self, column: str) -> np.ndarray:
        """A column of labels."""
        import pyarrow

        cells = self._cells(column)
        try:
            if pyarrow.types.is_integer(cells.type):  # to_numpy imports pandas, a fifth of a second
                values = np.array(cells.to_pylist(), cells.type.to_pandas_dtype())
            else:
                values = np.asarray(cells.to_numpy())
        except (TypeError, ValueError):
            values = np.array(["?"])
        if values.dtype.kind == "f" and np.all(values == np.round(values)) and np.all(np.abs(values) < 2**53):
            values = values.astype(np.int64)  # whole numbers stored as floating-point numbers
        if not np.issubdtype(values.dtype, np.integer):
            raise SettingError(f"{self.origin(0)}: column {column!r} must hold whole numbers")
        wrong = np.flatnonzero((values < 0) | (values >= 2**31))
        if len(wrong):
            raise SettingError(f"{self.origin(int(wrong[0]))}: label {values[wrong[0]]} is not a whole number from 0")
        return values.astype(np.int32)

    def first_fraction(self, column: str) -> int | None:
        """The first row of a column with a fractional number; None if there is none."""
        import pyarrow

        cells = self._cells(column)
        if not pyarrow.types.is_floating(cells.type):
            return None
        values = np.asarray(cells.to_numpy())
        fractions = np.flatnonzero(np.isfinite(values) & (values != np.round(values)))
        return int(fractions[0]) if len(fractions) else None

    def cell(self, column: str, row: int) -> Any:
        """One value."""
        return self._table.column(self._place[column])[row].as_py()

    def names(self, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
        """A column of names or numbers: for each row the index of its value, and the distinct values in order."""
        values = np.asarray(self._cells(column).to_numpy())
        for row, value in enumerate(values.tolist()):
            if isinstance(value, bytes):
                raise SettingError(f"{self.origin(row)}: column {column!r} is not text in UTF-8")
            if value == "" or value != value:
                raise SettingError(f"{self.origin(row)}: column {column!r} is empty")
        try:
            distinct, number = np.unique(values, return_inverse=True)
        except (TypeError, ValueError):
            raise SettingError(f"{self.origin(0)}: column {column!r} must hold names or numbers") from None
        return number.astype(np.int64), tuple(str(each) for each in distinct)

    def holds_images(self, column: str) -> bool:
        """Whether a column holds encoded images, as the hub stores them."""
        import pyarrow

        return column in self.columns and bool(pyarrow.types.is_struct(self._table.column(column).type))

    def holds_texts(self, column: str) -> bool:
        """Whether a column holds texts."""
        import pyarrow

        kinds = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view)
        return column in self.columns and any(kind(self._table.column(column).type) for kind in kinds)

    def holds_lists(self, column: str) -> bool:
        """Whether a column holds lists."""
        from pyarrow import types

        kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        return column in self.columns and any(kind(self._table.column(column).type) for kind in kinds)

    def texts(self, column: str) -> np.ndarray:
        """A column of texts."""
        values = self._cells(column).to_pylist()
        for row, value in enumerate(values):
            if not isinstance(value, str):
                raise SettingError(f"{self.origin(row)}: column {column!r} must hold texts")
        return np.array(values, object)

    def numbers(self, columns: Sequence[str], hint: str = "") -> np.ndarray:
        """Columns of numbers, side by side; ``hint`` ends the error for a column of others."""
        found = []
        for column in columns:
            values = np.asarray(self._cells(column).to_numpy())
            if not (np.issubdtype(values.dtype, np.number) or values.dtype == bool):
                raise self.no_number(column, values.tolist(), hint)
            found.append(values.astype(np.float64))
        return np.stack(found, axis=1)

    def no_number(self, column: str, values: Sequence[Any], hint: str = "") -> SettingError:
        """The error for a column with a value that is not a number; ``hint`` is its end."""
        row = next((row for row, value in enumerate(values) if value is not None and not is_number(value)), 0)
        return SettingError(f"{self.origin(row)}: column {column!r} does not hold numbers{hint}")

    def vectors(self, column: str) -> np.ndarray:
        """A column of lists of numbers, all of one length."""
        import pyarrow

        whole = self._cells(column).combine_chunks()
        if not self.holds_lists(column):
            raise SettingError(f"{self._names[0]}: column {column!r} must hold lists of numbers")
        lengths, values = np.asarray(whole.value_lengths()), whole.flatten()
        wrong = np.flatnonzero(lengths != lengths[:1])
        if len(wrong):
            row = int(wrong[0])
            raise SettingError(f"{self.origin(row)}: {lengths[row]} numbers in {column!r}; the first has {lengths[0]}")
        if values.null_count or not (pyarrow.types.is_integer(values.type) or pyarrow.types.is_floating(values.type)):
            raise SettingError(f"{self._names[0]}: column {column!r} must hold lists of numbers")
        return np.asarray(values).reshape(len(lengths), int(lengths.max(initial=0)))

    def byte_strings(self, column: str) -> np.ndarray:
        """A column of byte strings of one length, as one row of bytes each."""
        cells = self._cells(column).to_pylist()
        for row, cell in enumerate(cells):
            if not isinstance(cell, bytes) or len(cell) != len(cells[0]):
                raise SettingError(f"{self.origin(row)}: column {column!r} must hold byte strings of one length")
        return np.frombuffer(b"".join(cells), np.uint8).reshape(len(cells), max(map(len, cells), default=0))

    def rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """The cells of these columns, row by row."""
        return list(zip(*(self.column(column).to_pylist() for column in columns), strict=True))

    def images(self, column: str) -> np.ndarray:
        """A column of encoded images of one size, decoded: bytes, rows x height x width (x channels)."""
        image_module = _pillow()
        cells = self._cells(column).to_pylist()
        images = np.empty(0)
        shown = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, and sizes that are rejected here anyway
            for row, cell in enumerate(cells):
                content = cell.get("bytes") if isinstance(cell, dict) else None
                pixels = _decoded(image_module, content, partial(self.origin, row))
                if row == 0:
                    images = np.empty((len(cells), *pixels.shape), pixels.dtype)
                if pixels.shape != images.shape[1:] or pixels.dtype != images.dtype:
                    raise SettingError(
                        f"{self.origin(row)}: an image of {pixels.dtype} of shape {pixels.shape}; "
                        f"the first is {images.dtype} of shape {images.shape[1:]}"
                    )
                images[row] = pixels
                if time.monotonic() - shown > _PROGRESS_SECONDS:
                    shown = time.monotonic()
                    print(f"decoding images: {row + 1:,} of {len(cells):,}", file=sys.stderr)
        return images


def _pillow() -> Any:
    """Pillow's image module, which is optional."""
    try:
        from PIL import Image
    except ImportError:
        raise SettingError(f"reading images {_NEEDS}") from None
    return Image


def _decoded(image_module: Any, content: Any, where: Callable[[], str]) -> np.ndarray:
    """The pixels of one image; ``where()`` gives its place, for errors."""
    try:
        image = image_module.open(io.BytesIO(content))
        width, height = image.size
        if width * height <= _MOST_PIXELS:
            return np.asarray(image)
    except (
        *(image_module.DecompressionBombError, OSError, EOFError),  # OSError includes UnidentifiedImageError
        *(LookupError, TypeError, ValueError, SyntaxError, AttributeError, struct.error, zlib.error),
    ):
        raise SettingError(f"{where()} does not hold an image") from None
    raise SettingError(f"{where()}: an image of {width} x {height} pixels, more than {_MOST_PIXELS:,}")


def read_image(path: Path) -> np.ndarray:
    """The pixels of an image file: bytes, height x width (x channels)."""
    check_regular_file(path)
    with reading(path):
        content = path.read_bytes()
    return _decoded(_pillow(), content, partial(str, path))


def is_number(value: Any) -> bool:
    """Whether a cell is a number, or a text that reads as one."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def read_parquet(paths: Sequence[Path], columns: Sequence[str] = ()) -> TableRows:
    """The rows of these files."""
    parquet = _arrow("parquet", paths[0])
    parts = []
    for path in paths:
        size = check_regular_file(path)
        with _reading(path), parquet.ParquetFile(path) as file:
            facts = file.metadata
            if facts.num_rows < 0:
                raise SettingError(f"cannot read {path}: it is damaged")
            refuse_bomb(path, size, facts.num_rows * max(1, facts.num_columns))
            parts.append(file.read())
    return TableRows.of(parts, [str(path) for path in paths], columns)


def read_csv(path: Path) -> TableRows:
    """The rows of a CSV file with a header."""
    csv = _arrow("csv", path)
    check_regular_file(path)
    with _reading(path):
        return TableRows.of([csv.read_csv(path)], [str(path)], ())


def _arrow(part: str, path: Path) -> Any:
    """A part of pyarrow, which is optional."""
    try:
        return import_module(f"pyarrow.{part}")
    except ImportError:
        raise SettingError(f"reading {path} {_NEEDS}") from None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns whatever Arrow finds wrong with a file into one line."""
    import pyarrow

    try:
        yield
    except SettingError:
        raise
    except UnicodeDecodeError:
        raise SettingError(f"cannot read {path}: it is not a text file in UTF-8") from None
    except (OSError, ValueError, TypeError, pyarrow.ArrowException) as problem:
        raise SettingError(f"cannot read {path}: {first_line(problem)}") from None


def first_line(problem: Exception) -> str:
    """What an error says, in one line."""
    return next(iter(str(problem).splitlines()), type(problem).__name__)
