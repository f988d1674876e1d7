"""Prepared federations: one memory-mapped file with a checksum, see :mod:`pfedbred.io.tensors`.

Samples stay in the file until a minibatch of them is put on the device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.data.columns import SHAPE, restored
from pfedbred.data.federation import Federation, Split, check
from pfedbred.data.labels import fits
from pfedbred.data.text import Text
from pfedbred.errors import SettingError, nearest
from pfedbred.io import tensors
from pfedbred.io.shapes import COUNT, Maybe, expect
from pfedbred.tasks import TASKS

SUFFIX = ".fed"
_KIND = tensors.Kind("pfedbred federation 1", "prepared federation", "make one with 'pfedbred data prepare'")


def save(federation: Federation, path: Path) -> None:
    """Writes a federation."""
    arrays: dict[str, np.ndarray] = {}
    for part, split in federation.parts.items():
        for name, array in split._asdict().items():
            arrays[f"{part}.{name}"] = np.asarray(array)
    for name, maybe in (("shift", federation.shift), ("scale", federation.scale)):
        if maybe is not None:
            arrays[name] = np.asarray(maybe)
    text = federation.text
    if text is not None and text.vectors is not None:
        arrays["vectors"] = text.vectors
    encoding = federation.encoding
    if encoding is not None:
        arrays |= encoding.arrays()
    facts = {
        "name": federation.name,
        "classes": federation.classes,
        "vocabulary": None if text is None else text.vocabulary,
        "names": federation.names,
        "labels": federation.labels,
        "features": federation.features,
        "about": dict(federation.about),
        "task": federation.task,
        "columns": None if encoding is None else encoding.facts(),
    }
    tensors.save(_KIND, path, facts, arrays)


def load(path: Path) -> Federation:
    """Loads and checks a prepared federation; its samples stay in the file."""
    return _assemble(path, *tensors.load(_KIND, path))


_FACTS = {
    "name": str,
    "classes": COUNT,
    "about": dict,
    "task": str,
    "columns": Maybe(SHAPE),
    **{name: Maybe([str]) for name in ("vocabulary", "names", "labels", "features")},
}


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether an array of this shape broadcasts to the wanted shape."""
    try:
        return np.broadcast_shapes(shape, wanted) == wanted
    except ValueError:
        return False


def _assemble(path: Path, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Federation:
    """The federation, if it is consistent: a checksum only shows that the file has not changed."""
    facts = {"features": None, "task": "classification", "columns": None, **facts}  # missing in older files
    expect(facts, _FACTS, path)
    try:
        parts = ("train", "validation", "test") if "validation.x" in arrays else ("train", "test")
        splits: dict[str, Any] = {part: Split(*(arrays[f"{part}.{name}"] for name in Split._fields)) for part in parts}
        vocabulary = facts["vocabulary"]
        text = None if vocabulary is None else Text(tuple(vocabulary), arrays.get("vectors"))
        tuples: dict[str, Any] = {
            name: None if facts[name] is None else tuple(facts[name]) for name in ("names", "labels", "features")
        }
        federation = Federation(
            name=facts["name"],
            **splits,
            classes=facts["classes"],
            shift=arrays.get("shift"),
            scale=arrays.get("scale"),
            text=text,
            about=facts["about"],
            task=facts["task"],
            encoding=None
            if facts["columns"] is None
            else restored(facts["columns"], arrays, len(splits["train"].offsets) - 1, path),
            **tuples,
        )
    except KeyError as missing:
        raise SettingError(f"{path} has no {missing}") from None
    if facts["task"] not in TASKS:
        raise SettingError(f"{path}: unknown task {facts['task']!r}{nearest(facts['task'], TASKS)}")
    for split in splits.values():
        if not fits(split.y, facts["classes"], federation.label_kind) or split.offsets.dtype.kind not in "iu":
            raise SettingError(f"{path}: labels or offsets do not fit the task {facts['task']}")
        if (
            not len(split.offsets)
            or split.offsets.ndim != 1
            or split.x.ndim < 2
            or split.x.shape[1:] != federation.shape
        ):
            raise SettingError(f"{path}: the arrays do not have the shapes of samples, labels and offsets")
    for name in ("shift", "scale"):
        array = arrays.get(name)
        if array is not None and (not _fits(array.shape, federation.shape) or not np.isfinite(array).all()):
            raise SettingError(f"{path}: {name!r} must be a finite number for each feature")
    if text is not None:
        vectors = arrays.get("vectors")
        if any(split.x.dtype.kind not in "iu" for split in splits.values()):
            raise SettingError(f"{path}: word ids must be whole numbers")
        if vectors is not None and (vectors.ndim != 2 or len(vectors) != text.count or not np.isfinite(vectors).all()):
            raise SettingError(f"{path}: 'vectors' must be one vector of finite numbers for each of {text.count} words")
    if federation.encoding is not None and federation.encoding.names != federation.features:
        raise SettingError(f"{path}: the columns do not give the inputs {federation.features}")
    check(federation, f"{path}: ")
    return federation
