"""Client registration: what a client reports, and whether its data is compatible with the others'."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from pfedbred.data.federation import MOST_CLASSES, names_fit
from pfedbred.flower.wire import PROTOCOL, TARGET
from pfedbred.io.shapes import COUNT, Maybe
from pfedbred.tasks import TASKS

NodeFacts = Mapping[str, Any]

SCHEMA = {
    "dataset": str,
    "shape": [COUNT],
    "classes": COUNT,
    "labels": Maybe([str]),
    "features": Maybe([str]),
    "words": Maybe(COUNT),
    "vocabulary": Maybe(str),
    "task": str,
}
"""What the data of all clients must have in common, except the dataset's name."""

INTRODUCTION = {
    "client": str,
    "name": str,
    "number": Maybe(COUNT),
    **SCHEMA,
    "train": COUNT,
    "test": COUNT,
    "target": TARGET,
}
"""A client's introduction, apart from its protocol version and its number of validation samples."""

_REMEDIES = {
    **dict.fromkeys(("classes", "labels"), "; set classes= or labels= in the run config"),
    "features": "; give the columns in the others' order with features= in its node config, or, if they have "
    "gaps or texts, give all clients the same columns=",
}
_LARGEST = 2**24  # numbers in a sample, words, or samples of a client


def unusable(facts: NodeFacts, min_samples: int) -> str | None:
    """Why a client cannot take part, judging by its introduction; None if it can."""
    version = facts.get("protocol", 1)  # missing in the first version
    if not isinstance(version, int):
        return f"its protocol version must be a number, not {str(version)[:100]!r}"
    if version != PROTOCOL:
        age = "older" if version < PROTOCOL else "newer"
        return f"its pfedbred is {age} than the server's: protocol version {version}, not {PROTOCOL}"
    shape, words, labels, features = (facts[name] for name in ("shape", "words", "labels", "features"))
    held = facts.get("validation", 0)
    if not isinstance(held, int) or held < 0:
        return f"its validation samples must be a number, not {str(held)[:100]!r}"
    largest = max(math.prod(shape), facts["train"], facts["test"], held, words or 0)
    if not shape or len(shape) > 8 or 0 in shape or words == 0 or largest > _LARGEST:
        return f"its samples cannot be used: {facts['train']} of shape {shape}"
    if not names_fit(features, shape):
        return f"its samples cannot be used: they have shape {shape}, and names for {len(features)} numbers"
    if not 1 <= facts["classes"] <= MOST_CLASSES or (labels is not None and len(labels) != facts["classes"]):
        return f"its labels cannot be used: there are {facts['classes']}"
    target = facts["target"]
    if facts["task"] not in TASKS or (target is None) != (TASKS[facts["task"]].labels != "numbers"):
        return f"its task cannot be used: {facts['task'][:100]!r}"
    if target is not None and not (target["std"] >= 0 and max(abs(target["mean"]), target["std"]) < 1e30):
        return f"its labels cannot be used: their mean is {target['mean']:g}, their deviation {target['std']:g}"
    if len(facts["client"]) > 100:
        return "its identity is too long"
    return too_few(facts["train"], min_samples)


def too_few(samples: int, min_samples: int) -> str | None:
    """Why a client with this many training samples cannot take part; None if it can."""
    if not samples:
        return "it has no training samples"
    return f"it has {samples} training samples, but min-samples is {min_samples}" if samples < min_samples else None


def difference(facts: NodeFacts, schema: NodeFacts) -> str | None:
    """The first difference between a client's data and the schema, with a remedy; None if there is none."""
    name = next((name for name in SCHEMA if not _alike(name, facts[name], schema[name])), None)
    if name is None:
        return None
    found, expected, remedy = facts[name], schema[name], _REMEDIES.get(name, "")
    if name == "features":
        pairs = enumerate(zip_longest(found, expected))
        place, (found, expected) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        name = f"column {place}"
    return f"{name} {str(found)[:200]}, not {str(expected)[:200]}{remedy}"


def _alike(name: str, one: Any, other: Any) -> bool:
    """Whether two facts agree as far as it matters.

    The dataset's name does not, nor that of a single column. Arrays, whose columns have no names, fit any table.
    """
    if name == "features" and (one is None or other is None or len(one) == len(other) == 1):
        return True
    return name == "dataset" or one == other


def majority(said: Sequence[NodeFacts], least: int) -> dict[str, Any] | None:
    """The schema of most of these clients; None unless ``least`` clients and more than half share it."""
    schemas = [{name: facts[name] for name in SCHEMA} for facts in said]
    if not schemas:
        return None
    most = _most_common(schemas)
    named = [one for one in schemas if one["features"] is not None and difference(one, most) is None]
    if named:  # arrays fit any table, but tables must agree with each other
        most = _most_common(named)
    count = _fitting(most, schemas)
    return most if count >= least and 2 * count > len(schemas) else None


def _most_common(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The schema that agrees with most of the others."""
    return max(schemas, key=lambda one: _fitting(one, schemas))


def _fitting(schema: NodeFacts, schemas: Sequence[NodeFacts]) -> int:
    return sum(difference(one, schema) is None for one in schemas)
