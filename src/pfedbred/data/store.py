"""Prepared federations: one file, memory-mapped, with a checksum.

The file is in the safetensors format: eight bytes that give the header's length, the header in JSON, the arrays one
after another. The library of that name writes it and can read it anywhere; here it is read through a memory map, which
that library's NumPy side does not offer. Samples stay as they are stored until a minibatch of them is on the device.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pfedbred import tensors
from pfedbred.data.federation import Federation, Split, check
from pfedbred.data.text import Text
from pfedbred.errors import SettingError
from pfedbred.reading import COUNT, Maybe, expect, parse_json

SUFFIX = ".fed"
_FORMAT = "pfedbred federation 1"
_TYPES = {"U8": "u1", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F32": "<f4", "F64": "<f8"}
_LARGEST_HEADER = 100 * 2**20


def save(federation: Federation, path: Path) -> None:
    """Writes the federation."""
    arrays: dict[str, np.ndarray] = {}
    for part, split in (("train", federation.train), ("test", federation.test)):
        for name, array in split._asdict().items():
            arrays[f"{part}.{name}"] = np.asarray(array)
    for name, maybe in (("shift", federation.shift), ("scale", federation.scale)):
        if maybe is not None:
            arrays[name] = np.asarray(maybe)
    text = federation.text
    if text is not None and text.vectors is not None:
        arrays["vectors"] = text.vectors
    facts = json.dumps(
        {
            "name": federation.name,
            "classes": federation.classes,
            "vocabulary": None if text is None else text.vocabulary,
            "names": federation.names,
            "labels": federation.labels,
            "about": dict(federation.about),
        }
    )
    for name, array in arrays.items():
        if array.dtype.newbyteorder("<").str.lstrip("|<") not in {each.lstrip("<") for each in _TYPES.values()}:
            raise SettingError(f"{name} is of type {array.dtype}, which a federation file cannot hold")
    metadata = {"format": _FORMAT, "federation": facts, "sha256": _checksum(facts, arrays)}
    tensors.write(path, arrays, metadata)


def load(path: Path) -> Federation:
    """Reads a prepared federation, checks it, and leaves its samples in the file."""
    try:
        with path.open("rb") as file:
            header, begin = _header(path, file)
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as problem:
        raise SettingError(f"cannot read {path}: {problem.strerror}") from None
    arrays = {
        name: _array(path, content, name, entry, begin) for name, entry in header.items() if name != "__metadata__"
    }
    facts, expected = header["__metadata__"]["federation"], header["__metadata__"]["sha256"]
    found = _checksum(facts, arrays)
    if found != expected:
        raise SettingError(
            f"{path} is damaged: its checksum is {found[:12]}..., not {expected[:12]}...; prepare it again"
        )
    if hasattr(content, "madvise"):
        content.madvise(mmap.MADV_DONTNEED)  # what was read for the checksum need not stay in memory
    return _assemble(path, parse_json(facts, path), arrays)


def _header(path: Path, file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The header, and where the arrays begin."""
    size = path.stat().st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _LARGEST_HEADER):
        raise SettingError(f"{path} is not a prepared federation, or only the beginning of one")
    text = file.read(length)
    try:
        header = parse_json(text, path)
        expect(header, {"__metadata__": {"format": str, "federation": str, "sha256": str}}, path)
        said = header["__metadata__"]["format"]
    except SettingError:
        said = ""
    if said.startswith("pfedbred federation") and said != _FORMAT:
        raise SettingError(f"{path} was written by another version: it is {said!r}, not {_FORMAT!r}")
    if said != _FORMAT:
        raise SettingError(f"{path} is not a prepared federation: make one with 'pfedbred data prepare'")
    return header, 8 + length


def _array(path: Path, content: mmap.mmap, name: str, entry: Any, begin: int) -> np.ndarray:
    """One array, left in the file. Nothing is allocated for it, whatever the header claims."""
    try:
        dtype, shape = np.dtype(_TYPES[entry["dtype"]]), tuple(int(each) for each in entry["shape"])
        first, last = (int(each) for each in entry["data_offsets"])
        count = 1
        for each in shape:
            count *= each
        sound = min(shape, default=1) >= 0 and 0 <= first <= last and last - first == count * dtype.itemsize
        sound = sound and len(shape) <= 32 and (count > 0 or max(shape[1:], default=0) < 2**31)
    except (KeyError, TypeError, ValueError, OverflowError):
        sound = False
    if not sound:
        raise SettingError(f"{path} is damaged: its header does not describe {name!r}")
    if begin + last > len(content):
        raise SettingError(f"{path} is cut off: {name!r} ends at byte {begin + last} of {len(content)}")
    return np.frombuffer(content, dtype, count, begin + first).reshape(shape)


def _checksum(facts: str, arrays: dict[str, np.ndarray]) -> str:
    """Of what the file says and of every array: its name, type, shape and bytes."""
    digest = hashlib.sha256(facts.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.newbyteorder('<').str} {array.shape}".encode())
        flat = array.reshape(-1)
        step = max(1, 2**20 // array.dtype.itemsize)
        for begin in range(0, len(flat), step):
            digest.update(np.ascontiguousarray(flat[begin : begin + step]).data)
    return digest.hexdigest()


_FACTS = {
    "name": str,
    "classes": COUNT,
    "about": dict,
    **{name: Maybe([str]) for name in ("vocabulary", "names", "labels")},
}


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether an array of that shape can be applied to every sample of the other."""
    try:
        return np.broadcast_shapes(shape, wanted) == wanted
    except ValueError:
        return False


def _assemble(path: Path, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Federation:
    """The federation, refused if it does not hold together: a checksum only says that it is as it was written."""
    expect(facts, _FACTS, path)
    try:
        train, test = (Split(*(arrays[f"{part}.{name}"] for name in Split._fields)) for part in ("train", "test"))
        vocabulary = facts["vocabulary"]
        text = None if vocabulary is None else Text(tuple(vocabulary), arrays.get("vectors"))
        names, labels = facts["names"], facts["labels"]
        federation = Federation(
            name=facts["name"],
            train=train,
            test=test,
            classes=facts["classes"],
            shift=arrays.get("shift"),
            scale=arrays.get("scale"),
            text=text,
            names=None if names is None else tuple(names),
            labels=None if labels is None else tuple(labels),
            about=facts["about"],
        )
    except KeyError as missing:
        raise SettingError(f"{path} has no {missing}") from None
    for split in (train, test):
        if split.y.dtype.kind not in "iu" or split.offsets.dtype.kind not in "iu":
            raise SettingError(f"{path}: labels and offsets must be whole numbers")
        if (
            not len(split.offsets)
            or split.y.ndim != 1
            or split.offsets.ndim != 1
            or split.x.ndim < 2
            or split.x.shape[1:] != federation.shape
        ):
            raise SettingError(f"{path}: the arrays do not have the shapes of samples, labels and offsets")
    for name in ("shift", "scale"):
        array = arrays.get(name)
        if array is not None and (not _fits(array.shape, federation.shape) or not np.isfinite(array).all()):
            raise SettingError(f"{path}: {name!r} is not a finite number for each feature")
    if text is not None:
        vectors = arrays.get("vectors")
        if train.x.dtype.kind not in "iu" or test.x.dtype.kind not in "iu":
            raise SettingError(f"{path}: word ids must be whole numbers")
        if vectors is not None and (vectors.ndim != 2 or len(vectors) != text.count or not np.isfinite(vectors).all()):
            raise SettingError(f"{path}: 'vectors' is not one vector of finite numbers for each of {text.count} words")
    check(federation, f"{path}: ")
    return federation
