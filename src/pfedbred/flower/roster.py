"""The clients that take part in a federation: each has a number, which it keeps, and a node, which may change."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from pfedbred.data.federation import MOST_CLASSES, names_fit
from pfedbred.errors import SettingError, printable
from pfedbred.flower.wire import PROTOCOL
from pfedbred.io.shapes import COUNT, Maybe
from pfedbred.types import Words

INTRODUCTION = {
    "client": str,
    "name": str,
    "number": Maybe(COUNT),
    "dataset": str,
    "shape": [COUNT],
    "classes": COUNT,
    "labels": Maybe([str]),
    "features": Maybe([str]),
    "words": Maybe(COUNT),
    "vocabulary": Maybe(str),
    "train": COUNT,
    "test": COUNT,
}
"""What a client tells when it introduces itself, beside the version of its messages."""

MEMBER = {name: INTRODUCTION[name] for name in ("client", "name", "train", "test")}
_DATA_FACTS = ("dataset", "shape", "classes", "labels", "features", "words", "vocabulary")
SCHEMA = {name: INTRODUCTION[name] for name in _DATA_FACTS}
_REMEDIES = {
    **dict.fromkeys(("classes", "labels"), "; set classes= or labels= in the run config"),
    "features": "; give the columns in the order of the others with features= in its node config",
}
_LARGEST = 2**24  # numbers in a sample, words, or samples of a client
_PAUSE = 300.0  # seconds until a refused node is asked again
_MOST_CLIENTS = 10**6


def _differs(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first fact in which the data of two clients differ; None if they can be trained on together.

    The dataset's name does not matter, nor that of a single column. Arrays, whose columns have no names, fit any table.
    """

    def alike(name: str) -> bool:
        if name == "features":
            return columns_alike(one[name], other[name])
        return name == "dataset" or one[name] == other[name]

    return next((name for name in SCHEMA if not alike(name)), None)


def columns_alike(one: list[str] | None, other: list[str] | None) -> bool:
    """Whether samples with these columns can be mixed."""
    return one is None or other is None or one == other or len(one) == len(other) == 1


def _most_common(schemas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The one that agrees with most of the others."""
    return max(schemas, key=lambda one: sum(_differs(one, other) is None for other in schemas))


def _unusable(facts: Mapping[str, Any]) -> str | None:
    """Why a client cannot take part, by what it tells of itself; None if it can."""
    version = facts.get("protocol", 1)  # the first version did not tell
    if version != PROTOCOL:
        age = "older" if version < PROTOCOL else "newer"
        return f"its pfedbred is {age} than the server's: version {version} of the messages, not {PROTOCOL}"
    if not facts["train"]:
        return "it has no training samples"
    shape, words, labels, features = (facts[name] for name in ("shape", "words", "labels", "features"))
    largest = max(math.prod(shape), facts["train"], facts["test"], words or 0)
    if not shape or len(shape) > 8 or 0 in shape or words == 0 or largest > _LARGEST:
        return f"its samples cannot be used: {facts['train']} of shape {shape}"
    if not names_fit(features, shape):
        return f"its samples cannot be used: they have shape {shape}, and names for {len(features)} numbers"
    if not 1 <= facts["classes"] <= MOST_CLASSES or (labels is not None and len(labels) != facts["classes"]):
        return f"its labels cannot be used: there are {facts['classes']}"
    return "its identity is too long" if len(facts["client"]) > 100 else None


@dataclass
class Member:
    """A client of the federation.

    Attributes:
      client: its identity, which it drew itself.
      name: for people.
      train: how many training samples it has.
      test: how many test samples.
    """

    client: str
    name: str
    train: int
    test: int


@dataclass(frozen=True)
class Description:
    """What the server knows of the data: a Federation without the samples and their normalisation."""

    name: str
    shape: tuple[int, ...]
    classes: int
    labels: tuple[str, ...] | None
    features: tuple[str, ...] | None
    word_count: int | None
    clients: int
    train_samples: int = 0
    test_samples: int = 0
    text: None = None
    shift: None = None
    scale: None = None
    names: tuple[str, ...] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> Words | None:
        """What a model has to know of word ids; None if the samples are numbers."""
        return None if self.word_count is None else Words(self.word_count)

    @property
    def facts(self) -> dict[str, Any]:
        """What the data holds, in a few numbers."""
        return {
            "name": self.name,
            "clients": self.clients,
            "train_samples": self.train_samples,
            "test_samples": self.test_samples,
            "classes": self.classes,
        }


class Roster:
    """The known clients and their nodes, by number."""

    def __init__(self, clients: int | None, log: Callable[[str], None]) -> None:
        """``clients`` is how many there can be; None for those that are there at the start."""
        self.clients, self._log = clients, log
        self.members: dict[int, Member] = {}
        self.schema: dict[str, Any] | None = None
        self.nodes: dict[int, int] = {}
        self._refused: dict[int, tuple[float, str]] = {}  # nodes: until when, by time.monotonic, and why

    def unknown(self, nodes: Sequence[int]) -> list[int]:
        """The nodes that are to introduce themselves; a refused one again after a while, or when it reconnects."""
        self._refused = {node: until for node, until in self._refused.items() if node in nodes}
        known, now = self.nodes.values(), time.monotonic()
        return [node for node in nodes if node not in known and self._refused.get(node, (now, ""))[0] <= now]

    def present(self, nodes: Sequence[int]) -> list[int]:
        """The numbers of the clients whose nodes these are."""
        return sorted(number for number, node in self.nodes.items() if node in nodes)

    def missing(self, nodes: Sequence[int]) -> list[str]:
        """The names of the known clients that are not among these nodes."""
        return [member.name for number, member in sorted(self.members.items()) if self.nodes.get(number) not in nodes]

    def refuse(self, node: int, why: str, name: str | None = None) -> None:
        """Notes and logs that a node cannot take part; it is asked again some minutes later."""
        if self._refused.get(node, (0.0, ""))[1] != why:
            self._log(f"{name or f'node {node}'} does not take part: {why}")
        self._refused[node] = (time.monotonic() + _PAUSE, why)

    def admit(self, said: Mapping[int, Mapping[str, Any]]) -> None:
        """Gives the clients at these nodes their numbers: the one it had, the one it asks for, or the next."""
        if self.schema is None:
            self._agree(list(said.values()))
        new: set[str] = set()
        for node in sorted(said, key=lambda each: (said[each]["number"] is None, str(said[each]["name"]), each)):
            facts = said[node]
            name = printable(facts["name"], 100)
            try:
                self._fits(facts)
                number = self._number(facts, name, new)
                self._name_columns(facts["features"])
            except SettingError as problem:
                self.refuse(node, str(problem), name)
                continue
            if number in self.nodes:
                self._log(f"{name} is back as another node")
                # The old node is gone, though Flower may not know yet.
                self._refused[self.nodes[number]] = (time.monotonic() + _PAUSE, "it is back as another node")
            new.add(facts["client"])
            self.members[number] = Member(facts["client"], name, facts["train"], facts["test"])
            self.nodes[number] = node

    def _number(self, facts: Mapping[str, Any], name: str, new: set[str]) -> int:
        wish = facts["number"]
        for number, member in self.members.items():
            if member.client == facts["client"]:
                if facts["client"] in new or wish not in (None, number) or name != member.name:
                    raise SettingError(f"it has the home of {member.name}: give each node its own home=")
                return number
        if wish is not None:
            if wish in self.members:
                raise SettingError(f"its partition-id {wish} is already that of {self.members[wish].name}")
            if wish >= (self.clients or _MOST_CLIENTS):
                most = self.clients or _MOST_CLIENTS
                raise SettingError(f"its partition-id {wish} is not below the number of clients, {most:,}")
            return wish
        free = next(number for number in range(len(self.members) + 1) if number not in self.members)
        if self.clients is not None and free >= self.clients:
            raise SettingError(f"the federation is complete with {self.clients} clients")
        return free

    def _name_columns(self, features: list[str] | None) -> None:
        """Arrays do not name their columns: the first table does."""
        assert self.schema is not None
        if self.schema["features"] is None:
            self.schema = {**self.schema, "features": features}

    def _agree(self, said: Sequence[Mapping[str, Any]]) -> None:
        """Takes the kind of data that most of the first clients have as the federation's."""
        schemas = [{name: facts[name] for name in SCHEMA} for facts in said if not _unusable(facts)]
        if schemas:
            self.schema = _most_common(schemas)
            named = [one for one in schemas if one["features"] is not None and _differs(one, self.schema) is None]
            if named:  # arrays fit any table, but tables must agree with each other
                self.schema = _most_common(named)

    def _fits(self, facts: Mapping[str, Any]) -> None:
        """Refuses a client that cannot take part, or whose data differ from the others'."""
        problem = _unusable(facts)
        if problem:
            raise SettingError(problem)
        assert self.schema is not None
        name = _differs(facts, self.schema)
        if name:
            remedy = _REMEDIES.get(name, "")
            found, expected = facts[name], self.schema[name]
            if name == "features":
                pairs = enumerate(zip_longest(found, expected))
                place, (found, expected) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
                name = f"column {place}"
            found, expected = str(found)[:200], str(expected)[:200]
            raise SettingError(f"its data differ from the others': {name} {found}, not {expected}{remedy}")

    def close(self) -> None:
        """Fixes the number of clients, if it was open."""
        if self.clients is None:
            self.clients = max(self.members, default=-1) + 1

    def sizes(self, part: str) -> np.ndarray:
        """Samples of all clients; 0 for one that has not come yet."""
        assert self.clients is not None
        return np.asarray([getattr(self.members.get(i), part, 0) for i in range(self.clients)], np.int32)

    def name(self, number: int) -> str:
        """A client's name, for people."""
        member = self.members.get(number)
        return member.name if member else f"client {number}"

    def description(self) -> Description:
        """What is known of the data."""
        assert self.clients is not None
        assert self.schema is not None
        schema = self.schema
        return Description(
            re.sub(r"[:<>]", "-", schema["dataset"]),  # an experiment would take it for an import path
            tuple(schema["shape"]),
            schema["classes"],
            None if schema["labels"] is None else tuple(schema["labels"]),
            None if schema["features"] is None else tuple(schema["features"]),
            schema["words"],
            self.clients,
            int(self.sizes("train").sum()),
            int(self.sizes("test").sum()),
            names=tuple(self.name(i) for i in range(self.clients)),
        )

    def facts(self) -> dict[str, Any]:
        """For a checkpoint."""
        members = {str(number): vars(member) for number, member in self.members.items()}
        return {"clients": self.clients, "members": members, "schema": self.schema}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """From a checkpoint. Nobody's node is known yet."""
        self.clients, self.schema = facts["clients"], facts["schema"]
        self.members = {int(number): Member(**member) for number, member in facts["members"].items()}
