"""Messages: pytrees as named arrays with a few plain facts beside them, and the checks on what arrives.

What the other side sends must be the expected arrays, or it is refused with a one-line error. Nothing is unpickled, and
no array is allocated that is larger than the message.

Flower's own ArrayRecord.to_numpy_ndarrays gives a flat list without names, and checks neither types nor shapes.
msgpack and flax.serialization rebuild whatever tree the other side describes; here the receiver says what it expects.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import Experiment, field_names
from pfedbred.io import npy, tensors
from pfedbred.io.shapes import COUNT, FRACTION, NUMBER, Maybe, expect
from pfedbred.io.strict import parse_json
from pfedbred.settings import Fraction, hints
from pfedbred.types import Tree, tree_bytes

PROTOCOL = 5
"""The version of all messages. Version 1 evaluated only accuracy and loss, sent as facts; version 2 had no task but
classification; version 3 no validation samples; version 4 no precision but float32.
"""

Trees = Mapping[int, Tree]
"""Trees by client number."""

_FACTS, _JSON = "facts", "json"
_LARGEST_FACTS = 2**20
_HEADROOM = 1_024  # bytes that an array's header may take


def _option_shapes() -> dict[str, Any]:
    """The shapes of those options of the experiment that clients are sent, as plain values."""
    plain: dict[type, Any] = {str: str, bool: bool, int: COUNT, float: NUMBER, dict: dict}
    types, shapes = hints(Experiment), {}
    for field in dataclasses.fields(Experiment):
        build: Any = field.default_factory
        default = build() if field.default is dataclasses.MISSING else field.default
        options = typing.get_args(types[field.name])
        inner = next((typing.get_args(each)[0] for each in options if typing.get_origin(each) is list), None)
        shape = [plain.get(inner, str)] if inner else str if default is None else plain.get(type(default))
        if default is None and Fraction in options:
            shape = FRACTION
        shapes[field.name] = Maybe(shape) if type(None) in options else shape
    return {name: shapes[name] for name in field_names(sent=True)}


EXPERIMENT = _option_shapes()
TARGET = Maybe({"mean": NUMBER, "std": NUMBER})
"""Mean and standard deviation of the training labels, if they are numbers."""

ORDER = {
    "run": str,
    "round": COUNT,
    "deadline": NUMBER,
    "number": COUNT,
    "verdict": Maybe({"round": COUNT, "stands": bool}),
    "experiment": EXPERIMENT,
    "classes": COUNT,
    "labels": Maybe([str]),
    "target": TARGET,
    "upload": bool,
    "evaluate": bool,
    "chosen": Maybe(COUNT),
}
"""The facts in every request but the first."""


def refuse_objects(options: Mapping[str, Any]) -> None:
    """Refuses options that are not plain names and numbers.

    An import path would run code of the other side's choice, and an object cannot be sent.
    """
    for name, value in options.items():
        for each in jax.tree.leaves(value, is_leaf=lambda each: not isinstance(each, dict | list)):
            if isinstance(each, str) and ":" in each:
                raise SettingError(f"{name} must be given by name on a federation, not as an import path: {each!r}")
            if not isinstance(each, str | int | float | None):
                raise SettingError(f"{name} must be given by name on a federation, not as a {type(each).__name__}")


def content(facts: Mapping[str, Any], **trees: Tree) -> RecordDict:
    """A message with these facts and trees."""
    arrays = {name: packed(tree) for name, tree in trees.items()}
    return RecordDict({_FACTS: ConfigRecord({_JSON: json.dumps(facts, allow_nan=False)}), **arrays})


def packed(tree: Tree) -> ArrayRecord:
    """The arrays of a tree by name; already packed ones are returned, so that a broadcast is packed once."""
    if isinstance(tree, ArrayRecord):
        return tree
    return ArrayRecord({name: Array(np.asarray(leaf)) for name, leaf in tensors.named(tree).items()})


def stacked(trees: Trees, like: Tree, clients: Iterable[int]) -> Tree:
    """The trees of these clients, stacked in order; zeros for those that sent none."""
    nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(trees.get(i, nothing) for i in clients))


def facts(message: RecordDict, shape: Any, sender: str) -> Any:
    """The facts in a message, checked to have this shape; see :func:`pfedbred.io.shapes.expect`."""
    where = f"the message of {sender}"
    text = message.config_records[_FACTS].get(_JSON) if _FACTS in message.config_records else None
    if not isinstance(text, str) or len(text) > _LARGEST_FACTS:
        raise SettingError(f"{where} has no facts, or too many")
    said = parse_json(text, where)
    expect(said, shape, where)
    return said


def tree(message: RecordDict, name: str, like: Tree, sender: str, *, finite: bool = False) -> Tree:
    """The tree of that name in a message, checked to have the structure, shapes and types of ``like``.

    With ``finite``, its numbers must be finite too.
    """
    where = f"the message of {sender}"
    if name not in message.array_records:
        raise SettingError(f"{where} has no {name}")
    record = message.array_records[name]
    expected = tensors.named(like)
    if list(record) != list(expected):
        found = sorted(set(record) ^ set(expected))
        raise SettingError(f"{where} holds another tree: {name} has {len(record)} arrays, differing in {found[:3]}")
    size = sum(len(each.data) for each in record.values())
    most = tree_bytes(like) + _HEADROOM * len(expected)
    if size > most:
        raise SettingError(f"{where} is too large: {name} has {size:,} bytes, but the limit is {most:,}")
    arrays = {key: npy.read_bytes(record[key].data, f"{name} {key!r} in {where}") for key in expected}
    filled = tensors.refill(like, arrays, f"{name} in {where}")
    if finite:
        for key, array in arrays.items():
            if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
                raise SettingError(f"{where} is not finite: {name} {key!r}")
    return filled
