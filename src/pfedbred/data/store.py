"""Prepared federations: one file, memory-mapped, with a checksum: see :mod:`pfedbred.tensors`.

Samples stay as they are stored until a minibatch of them is on the device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pfedbred import tensors
from pfedbred.data.federation import Federation, Split, check
from pfedbred.data.text import Text
from pfedbred.errors import SettingError

SUFFIX = ".fed"
_KIND = tensors.Kind("pfedbred federation 1", "prepared federation", "make one with 'pfedbred data prepare'")


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
    facts = {
        "name": federation.name,
        "classes": federation.classes,
        "vocabulary": None if text is None else text.vocabulary,
        "names": federation.names,
        "labels": federation.labels,
        "about": dict(federation.about),
    }
    tensors.save(_KIND, path, facts, arrays)


def load(path: Path) -> Federation:
    """Reads a prepared federation, checks it, and leaves its samples in the file."""
    return _assemble(path, *tensors.load(_KIND, path))


def _assemble(path: Path, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Federation:
    """The federation, refused if it does not hold together: a checksum only says that it is as it was written."""
    try:
        train, test = (Split(*(arrays[f"{part}.{name}"] for name in Split._fields)) for part in ("train", "test"))
        vocabulary = facts["vocabulary"]
        text = None if vocabulary is None else Text(tuple(vocabulary), arrays.get("vectors"))
        names, labels = facts["names"], facts["labels"]
        federation = Federation(
            name=str(facts["name"]),
            train=train,
            test=test,
            classes=int(facts["classes"]),
            shift=arrays.get("shift"),
            scale=arrays.get("scale"),
            text=text,
            names=None if names is None else tuple(names),
            labels=None if labels is None else tuple(labels),
            about=dict(facts["about"]),
        )
    except KeyError as missing:
        raise SettingError(f"{path} has no {missing}") from None
    except (TypeError, ValueError):
        raise SettingError(f"{path} is not a {_KIND.noun}: {_KIND.hint}") from None
    for split in (train, test):
        if split.y.ndim != 1 or split.offsets.ndim != 1 or split.x.ndim < 2 or split.x.shape[1:] != federation.shape:
            raise SettingError(f"{path}: the arrays do not have the shapes of samples, labels and offsets")
    check(federation, f"{path}: ")
    return federation
