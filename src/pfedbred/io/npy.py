"""NumPy's .npy and .npz files of numbers and texts, from untrusted sources.

``numpy.load`` allocates what the header claims before it checks the file's size, and accepts any header that parses as
a Python literal. Here nothing larger than the file is allocated, compression bombs are rejected, and objects are never
read.
"""

from __future__ import annotations

import ast
import io
import math
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pfedbred.errors import SettingError
from pfedbred.io.strict import Unreadable, check_regular_file, reading

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 1_000
_TYPE = re.compile(r"[<>=|]?[?biufcSU]\d{0,9}")
_DEFLATE = 1032  # the most that deflate can compress
_BOMB_BYTES, _BOMB_RATIO = 2**30, 100


def refuse_bomb(where: Any, packed: int, unpacked: int) -> None:
    """Rejects content that would expand to gigabytes from almost nothing: it is meant to exhaust memory."""
    if unpacked > _BOMB_BYTES and unpacked > _BOMB_RATIO * packed:
        raise SettingError(
            f"cannot read {where}: its {packed:,} bytes would unpack to {unpacked:,}, too many for real data"
        )


def read_npy(path: Path, what: str) -> np.ndarray:
    """The array of a .npy file; ``what`` names its content in error messages."""
    where = f"{what} from {path}"
    size = check_regular_file(path, where)
    with reading(where), path.open("rb") as file:
        return _array(file, size, where)


def read_bytes(data: bytes, where: str) -> np.ndarray:
    """The array of a .npy file in memory, with nothing after it; ``where`` names its source in error messages."""
    file = io.BytesIO(data)
    array = _array(file, len(data), where)
    if file.tell() != len(data):
        raise SettingError(f"cannot read {where}: there are extra bytes after the array")
    return array


class Npz:
    """The arrays of an .npz file, each read on demand."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, check_regular_file(path)
        try:
            with reading(path):
                self._archive = zipfile.ZipFile(path)
        except Unreadable:
            raise
        except (ValueError, zipfile.BadZipFile, NotImplementedError):  # the last is zipfile's, for newer zip formats
            raise SettingError(f"cannot read {path}: it is not an .npz file, or an incomplete one") from None
        self.names = [name.removesuffix(".npy") for name in self._archive.namelist() if name.endswith(".npy")]

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read(name, _array)

    def objects(self, name: str) -> bytes:
        """The bytes of an array of Python objects, which are pickled; see :mod:`pfedbred.io.pickled_arrays`."""
        return self._read(name, _objects)

    def _read(self, name: str, read: Callable[[Any, int, str], Any]) -> Any:
        entry, where = self._archive.getinfo(f"{name}.npy"), f"{name!r} in {self._path}"
        if entry.compress_size > self._size or entry.file_size > _DEFLATE * entry.compress_size + _LONGEST_HEADER:
            raise SettingError(f"cannot read {where}: it is damaged")
        refuse_bomb(where, entry.compress_size, entry.file_size)
        try:
            with self._archive.open(entry) as file:
                return read(file, entry.file_size, where)
        except SettingError:
            raise
        except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
            raise SettingError(f"cannot read {where}: it is damaged, or compressed in an unknown way") from None

    def __enter__(self) -> Npz:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()


def _array(file: Any, size: int, where: Any) -> np.ndarray:
    """The array that begins here; ``size`` is that of the whole file."""
    dtype, shape, fortran, begin = _header(file, where)
    count = math.prod(shape)
    if count * dtype.itemsize > size - begin:
        raise SettingError(f"cannot read {where}: its header claims {count:,} numbers, but the file is too short")
    array = np.empty(count, dtype)
    rest = memoryview(array.view(np.uint8)).cast("B") if array.nbytes else memoryview(b"")  # type: ignore[arg-type]
    while rest:
        got = file.readinto(rest)
        if not got:
            raise SettingError(f"cannot read {where}: it is truncated")
        rest = rest[got:]
    if dtype.kind == "U" and array.nbytes and array.view(dtype.byteorder + "u4").max() > 0x10FFFF:
        raise SettingError(f"cannot read {where}: its text is not valid Unicode")
    return array.reshape(shape, order="F" if fortran else "C")


def _objects(file: Any, size: int, where: Any) -> bytes:
    """What follows the header of an array of objects."""
    begin = file.read(10)
    header = file.read(int.from_bytes(begin[8:10], "little"))
    if begin[:8] != _MAGIC + b"\x01\x00" or len(header) > _LONGEST_HEADER or b"'descr': '|O'" not in header:
        raise SettingError(f"cannot read {where}: it is not an array of objects in NumPy's format")
    return file.read()


def _header(file: BinaryIO, where: Any) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """The array's type, shape and order, and where its numbers begin."""
    begin = file.read(8)
    if len(begin) < 8 or begin[:6] != _MAGIC or begin[6] not in (1, 2, 3):
        raise SettingError(f"cannot read {where}: it is not in NumPy's format")
    width = 2 if begin[6] == 1 else 4
    length = int.from_bytes(file.read(width), "little")
    text = file.read(min(length, _LONGEST_HEADER))
    try:
        said: Any = ast.literal_eval(text.decode("latin-1").strip()) if len(text) == length else None
        dtype, shape, fortran = said["descr"], said["shape"], said["fortran_order"]
        valid = isinstance(shape, tuple) and all(type(each) is int and 0 <= each < 2**63 for each in shape)
        valid = valid and isinstance(fortran, bool) and len(shape) <= 32 and (not shape or 0 not in shape[1:])
        if valid and isinstance(dtype, str) and _TYPE.fullmatch(dtype):
            return np.dtype(dtype), shape, fortran, 8 + width + length
        objects = valid and "O" in str(dtype)
    except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError, OverflowError):
        objects = False  # not a Python literal, or too deep for the parser; no data has been read yet
    if objects:
        raise SettingError(f"cannot read {where}: it holds Python objects, not numbers or texts")
    raise SettingError(f"cannot read {where}: its header does not describe an array of numbers or texts")
