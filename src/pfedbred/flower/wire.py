"""Messages: pytrees as named arrays with a few plain facts beside them, and the checks before one is believed.

Whatever the other side sends, it is the arrays that were agreed on, or it is refused with one line. Nothing is
unpickled, and nothing is made that the message is too short to hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from pfedbred.errors import SettingError
from pfedbred.io import npy, tensors
from pfedbred.io.shapes import COUNT, NUMBER, Maybe, expect
from pfedbred.io.strict import parse_json
from pfedbred.types import Tree

_FACTS, _JSON = "facts", "json"
_LARGEST_FACTS = 2**20
_HEADROOM = 1_024  # bytes that an array's header may take


EXPERIMENT = {
    "model": str,
    "algorithm": str,
    "settings": dict,
    "batch_size": COUNT,
    "seed": COUNT,
    "participation": str,
}
ORDER = {
    "run": str,
    "round": COUNT,
    "deadline": NUMBER,
    "number": COUNT,
    "verdict": Maybe({"round": COUNT, "stands": bool}),
    "experiment": EXPERIMENT,
    "classes": COUNT,
    "labels": Maybe([str]),
    "upload": bool,
    "evaluate": bool,
}
"""What a server says with every message but the first."""


def content(facts: Mapping[str, Any], **trees: Tree) -> RecordDict:
    """A message of these facts and trees."""
    records: dict[str, Any] = {_FACTS: ConfigRecord({_JSON: json.dumps(facts, allow_nan=False)})}
    for name, tree in trees.items():
        records[name] = packed(tree)
    return RecordDict(records)


def packed(tree: Tree) -> ArrayRecord:
    """The arrays of a tree by name; one that goes to many need be packed only once."""
    if isinstance(tree, ArrayRecord):
        return tree
    return ArrayRecord({name: Array(np.asarray(leaf)) for name, leaf in tensors.named(tree).items()})


def facts(message: RecordDict, shape: Any, sender: str) -> Any:
    """What a message says, if it is of that shape; see :func:`pfedbred.io.strict.expect`."""
    where = f"what {sender} sent"
    text = message.config_records[_FACTS].get(_JSON) if _FACTS in message.config_records else None
    if not isinstance(text, str) or len(text) > _LARGEST_FACTS:
        raise SettingError(f"{where} does not say what it is")
    said = parse_json(text, where)
    expect(said, shape, where)
    return said


def largest(like: Tree) -> int:
    """The most bytes that a message of arrays like these may have: theirs, and a kilobyte for each one's header."""
    return sum(leaf.size * leaf.dtype.itemsize + _HEADROOM for leaf in jax.tree.leaves(like))


def tree(message: RecordDict, name: str, like: Tree, sender: str, *, finite: bool = False) -> Tree:
    """The tree of that name in a message, which must be like ``like`` in structure, shapes and types.

    With ``finite``, its numbers must be so, too.
    """
    where = f"what {sender} sent"
    if name not in message.array_records:
        raise SettingError(f"{where} has no {name}")
    record = message.array_records[name]
    expected = tensors.named(like)
    if list(record) != list(expected):
        found = sorted(set(record) ^ set(expected))
        raise SettingError(f"{where} is another tree: {name} has {len(record)} arrays, differing in {found[:3]}")
    size, most = sum(len(each.data) for each in record.values()), largest(like)
    if size > most:
        raise SettingError(f"{where} is too large: {name} has {size:,} bytes, and {most:,} is the limit")
    arrays = {key: _array(record[key], f"{name} {key!r} in {where}") for key in expected}
    filled = tensors.refill(like, arrays, f"{name} in {where}")
    if finite:
        for key, array in arrays.items():
            if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
                raise SettingError(f"{where} is not finite: {name} {key!r}")
    return filled


def _array(array: Array, where: str) -> np.ndarray:
    return npy.read_bytes(array.data, where)
