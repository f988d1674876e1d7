"""Files of named arrays in the safetensors format: written atomically, memory-mapped when read, with a checksum.

Any reader of safetensors can read them. The safetensors library itself needs all arrays in memory to write them, copies
them when it reads into NumPy, and has no checksum; client stores and prepared federations may be larger than memory,
so they are written in pieces here and read through a memory map.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import ml_dtypes
import numpy as np

from pfedbred.errors import SettingError
from pfedbred.io.atomic import replacing
from pfedbred.io.shapes import expect
from pfedbred.io.strict import check_regular_file, parse_json, reading
from pfedbred.types import Tree

_TYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "I64": "<i8",
    "BF16": ml_dtypes.bfloat16,
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
}
_NAMES = {np.dtype(each): name for name, each in _TYPES.items()}
_LARGEST_HEADER = 100 * 2**20
_PIECE = 2**22  # bytes read or written at a time


class Damaged(SettingError):
    """A file whose content is not what was written; not one that cannot be opened, or is of another version."""


class Pieces(NamedTuple):
    """An array given in pieces along its first axis; ``pieces`` may be called repeatedly."""

    dtype: np.dtype
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[np.ndarray]]


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
      format: its name with a version: ``pfedbred federation 1``.
      noun: its name in error messages.
      hint: what to do if it is damaged.
    """

    format: str
    noun: str
    hint: str

    @property
    def facts(self) -> str:
        """The header's name for the values that are not arrays."""
        return self.format.split()[1]


def named(tree: Tree) -> dict[str, Any]:
    """The arrays of a tree by path, such as ``hidden.weight``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def refill(like: Tree, arrays: Mapping[str, np.ndarray], what: str) -> Tree:
    """A tree in the shape of ``like`` with copies of these arrays, which must have its types and shapes.

    JAX on CPU may alias the buffer, so the arrays are copied.
    """
    leaves = []
    for name, leaf in named(like).items():
        array = arrays.get(name)
        if array is None or array.shape != leaf.shape or array.dtype != leaf.dtype:
            found = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
            raise SettingError(f"{what} does not fit: {name!r} is {found}, not {leaf.dtype} of shape {leaf.shape}")
        leaves.append(np.array(array))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


# Writing ------------------------------------------------------------------------------------------------------------


def write(path: Path, arrays: Mapping[str, np.ndarray | Pieces], metadata: Mapping[str, str]) -> None:
    """Writes a file atomically."""
    ordered = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # so that every array is aligned
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in ordered:
        array = arrays[name]
        dtype = array.dtype.newbyteorder("<")
        if dtype not in _NAMES:
            raise SettingError(
                f"cannot write {path}: {name} is of type {array.dtype}, which the format does not support"
            )
        begin, end = end, end + int(np.prod(array.shape, dtype=int)) * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with replacing(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in ordered:
            for piece in _pieces(arrays[name]):
                file.write(piece)


def save(kind: Kind, path: Path, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray | Pieces]) -> None:
    """Writes a file with a checksum of its whole content."""
    text = json.dumps(facts)
    write(path, arrays, {"format": kind.format, kind.facts: text, "sha256": _checksum(text, arrays)})


def _pieces(array: np.ndarray | Pieces) -> Iterator[memoryview]:
    """The bytes of an array, in pieces."""
    for whole in array.pieces() if isinstance(array, Pieces) else [array]:
        flat = whole.reshape(-1)
        step = max(1, _PIECE // flat.dtype.itemsize)
        for begin in range(0, len(flat), step):
            part = flat[begin : begin + step]
            yield np.ascontiguousarray(part, part.dtype.newbyteorder("<")).view(np.uint8).data


def _checksum(facts: str, arrays: Mapping[str, np.ndarray | Pieces]) -> str:
    """The checksum of the plain values, and of every array's name, type, shape and bytes."""
    digest = hashlib.sha256(facts.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.newbyteorder('<').str} {tuple(array.shape)}".encode())
        for piece in _pieces(array):
            digest.update(piece)
    return digest.hexdigest()


# Reading ------------------------------------------------------------------------------------------------------------


def load(kind: Kind, path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The plain values of a file, and its arrays, which stay in the file. Rejects damaged files."""
    size = check_regular_file(path)
    with reading(path), open(path, "rb") as file:
        header, begin = _header(kind, path, file, size)
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {
        name: _array(path, content, name, entry, begin) for name, entry in header.items() if name != "__metadata__"
    }
    text, expected = header["__metadata__"][kind.facts], header["__metadata__"]["sha256"]
    found = _checksum(text, arrays)
    if found != expected:
        raise Damaged(f"{path} is damaged: its checksum is {found[:12]}..., not {expected[:12]}...; {kind.hint}")
    if hasattr(content, "madvise"):
        content.madvise(mmap.MADV_DONTNEED)  # pages read for the checksum need not stay in memory
    facts = parse_json(text, path)
    expect(facts, dict, path)
    return facts, arrays


def _header(kind: Kind, path: Path, file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """The header, and where the arrays begin."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _LARGEST_HEADER):
        raise Damaged(f"{path} is not a {kind.noun}, or only the beginning of one")
    text = file.read(length)
    try:
        header = parse_json(text, path)
        expect(header, {"__metadata__": {"format": str, kind.facts: str, "sha256": str}}, path)
        said = header["__metadata__"]["format"]
    except SettingError:
        said = ""
    if said != kind.format and said.startswith(kind.format.rsplit(maxsplit=1)[0]):
        raise SettingError(f"{path} was written by another version: it is {said!r}, not {kind.format!r}")
    if said != kind.format:
        raise Damaged(f"{path} is not a {kind.noun}: {kind.hint}")
    return header, 8 + length


def _array(path: Path, content: mmap.mmap, name: str, entry: Any, begin: int) -> np.ndarray:
    """One array, left in the file. Nothing is allocated for it, whatever the header claims."""
    try:
        dtype, shape = np.dtype(_TYPES[entry["dtype"]]), tuple(int(each) for each in entry["shape"])
        first, last = (int(each) for each in entry["data_offsets"])
        count = 1
        for each in shape:
            count *= each
        valid = min(shape, default=1) >= 0 and 0 <= first <= last and last - first == count * dtype.itemsize
        valid = valid and len(shape) <= 32 and (count > 0 or max(shape[1:], default=0) < 2**31)
    except (KeyError, TypeError, ValueError, OverflowError):
        valid = False
    if not valid:
        raise Damaged(f"{path} is damaged: its header does not describe {name!r}")
    if begin + last > len(content):
        raise Damaged(f"{path} is truncated: {name!r} ends at byte {begin + last} of {len(content)}")
    return np.frombuffer(content, dtype, count, begin + first).reshape(shape)
