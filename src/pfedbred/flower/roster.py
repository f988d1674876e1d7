"""Who takes part in a federation: every client has a number, which it keeps, and a node, which may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pfedbred.data.federation import check_classes
from pfedbred.errors import SettingError, printable
from pfedbred.reading import COUNT, Maybe
from pfedbred.types import Words

INTRODUCTION = {
    "client": str,
    "name": str,
    "number": Maybe(COUNT),
    "dataset": str,
    "shape": [COUNT],
    "classes": COUNT,
    "labels": Maybe([str]),
    "words": Maybe(COUNT),
    "train": COUNT,
    "test": COUNT,
}
"""What a client says of itself when it is first asked."""

MEMBER = {name: INTRODUCTION[name] for name in ("client", "name", "train", "test")}
SCHEMA = {name: INTRODUCTION[name] for name in ("dataset", "shape", "classes", "labels", "words")}
_LARGEST = 2**24  # numbers in a sample, or words
_MOST_CLIENTS = 10**6


@dataclass
class Member:
    """A client of the federation.

    Attributes:
      client: its identity, which it made up itself.
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
    """What the server knows of the data: all that a Federation says but the samples, and how they are normalised."""

    name: str
    shape: tuple[int, ...]
    classes: int
    labels: tuple[str, ...] | None
    word_count: int | None
    clients: int
    train_samples: int = 0
    test_samples: int = 0
    text: None = None
    shift: None = None
    scale: None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> Words | None:
        """What a model has to know of word ids; None if the samples are numbers."""
        return None if self.word_count is None else Words(self.word_count)

    @property
    def facts(self) -> dict[str, Any]:
        """What it holds, in a few numbers."""
        return {
            "name": self.name,
            "clients": self.clients,
            "train_samples": self.train_samples,
            "test_samples": self.test_samples,
            "classes": self.classes,
        }


class Roster:
    """The clients that have been met, by number; and their nodes, by number as well."""

    def __init__(self, clients: int | None, say: Callable[[str], None]) -> None:
        """``clients`` is how many there can be; None if those that are there at the start are all."""
        self.clients, self._say = clients, say
        self.members: dict[int, Member] = {}
        self.schema: dict[str, Any] | None = None
        self.nodes: dict[int, int] = {}
        self._turned_away: set[int] = set()

    def unknown(self, nodes: Sequence[int]) -> list[int]:
        """The nodes that have not been met yet."""
        return [node for node in nodes if node not in self.nodes.values() and node not in self._turned_away]

    def present(self, nodes: Sequence[int]) -> list[int]:
        """The numbers of the clients whose nodes these are."""
        return sorted(number for number, node in self.nodes.items() if node in nodes)

    def turn_away(self, node: int, why: str, name: str | None = None) -> None:
        """A node that cannot take part is told of once, and left alone."""
        self._turned_away.add(node)
        self._say(f"{name or f'node {node}'} does not take part: {why}")

    def welcome(self, said: Mapping[int, Mapping[str, Any]]) -> None:
        """Gives the clients at these nodes their numbers: those that they had, or that they ask for, or the next."""
        for node in sorted(said, key=lambda each: (said[each]["number"] is None, str(said[each]["name"]), each)):
            facts = said[node]
            name = printable(facts["name"], 100)
            try:
                schema = self._schema(facts)
                number = self._number(facts)
            except SettingError as problem:
                self.turn_away(node, str(problem), name)
                continue
            if number in self.nodes:
                self._say(f"{name} is back, as another node")
                self._turned_away.add(self.nodes[number])  # dead, though Flower may not know yet; or a twin
            self.schema = schema
            self.members[number] = Member(facts["client"], name, facts["train"], facts["test"])
            self.nodes[number] = node

    def _number(self, facts: Mapping[str, Any]) -> int:
        if not facts["train"]:
            raise SettingError("it has no training samples")
        if len(facts["client"]) > 100:
            raise SettingError("its identity is too long to be one")
        had = [number for number, member in self.members.items() if member.client == facts["client"]]
        if had:
            return had[0]
        wish = facts["number"]
        if wish is not None:
            if wish in self.members:
                raise SettingError(f"its partition-id {wish} is that of {self.members[wish].name}")
            if wish >= (self.clients or _MOST_CLIENTS):
                most = self.clients or _MOST_CLIENTS
                raise SettingError(f"its partition-id {wish} is not below the number of clients, {most:,}")
            return wish
        free = next(number for number in range(len(self.members) + 1) if number not in self.members)
        if self.clients is not None and free >= self.clients:
            raise SettingError(f"the federation has its {self.clients} clients")
        return free

    def _schema(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What all clients' data are like; refuses a client whose are not."""
        schema = {name: facts[name] for name in SCHEMA}
        if not 0 < int(np.prod(schema["shape"], dtype=float)) <= _LARGEST or (schema["words"] or 0) > _LARGEST:
            raise SettingError(f"its samples are of shape {schema['shape']}, of {schema['words'] or 0} words")
        check_classes(schema["classes"])
        for name, value in schema.items():
            if self.schema is not None and name != "dataset" and value != self.schema[name]:
                raise SettingError(f"its data are not like the others': {name} {value}, not {self.schema[name]}")
        return self.schema or schema

    def close(self) -> None:
        """From now on there are as many clients as there are numbers."""
        if self.clients is None:
            self.clients = max(self.members, default=-1) + 1

    def sizes(self, part: str) -> np.ndarray:
        """Of all clients; 0 of one that has not come yet."""
        assert self.clients is not None
        return np.asarray([getattr(self.members.get(i), part, 0) for i in range(self.clients)], np.int32)

    def name(self, number: int) -> str:
        """What people call a client."""
        member = self.members.get(number)
        return member.name if member else f"client {number}"

    def description(self) -> Description:
        """What is known of the data."""
        assert self.clients is not None
        assert self.schema is not None
        schema = self.schema
        return Description(
            schema["dataset"],
            tuple(schema["shape"]),
            schema["classes"],
            None if schema["labels"] is None else tuple(schema["labels"]),
            schema["words"],
            self.clients,
            int(self.sizes("train").sum()),
            int(self.sizes("test").sum()),
        )

    def facts(self) -> dict[str, Any]:
        """For a checkpoint."""
        members = {str(number): vars(member) for number, member in self.members.items()}
        return {"clients": self.clients, "members": members, "schema": self.schema}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """From a checkpoint: who takes part, though nobody's node is known."""
        self.clients, self.schema = facts["clients"], facts["schema"]
        self.members = {int(number): Member(**member) for number, member in facts["members"].items()}
