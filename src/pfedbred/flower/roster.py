"""The clients of a federation: each has a number, which it keeps, and a node, which may change."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pfedbred.errors import SettingError, printable
from pfedbred.flower.introductions import NodeFacts, difference, majority, unusable
from pfedbred.flower.wire import TARGET
from pfedbred.io.shapes import COUNT
from pfedbred.tasks import Target
from pfedbred.types import Words

MEMBER = {"fingerprint": str, "name": str, "train": COUNT, "test": COUNT, "target": TARGET}
"""The shape of a client in a checkpoint."""

_PAUSE = 300.0  # seconds until a node is asked to introduce itself again
_MOST_CLIENTS = 10**6


def fingerprint(identity: str) -> str:
    """SHA-256 of the identity; a checkpoint cannot be used to impersonate the client."""
    return hashlib.sha256(identity.encode()).hexdigest()


@dataclass
class Member:
    """A client of the federation.

    Attributes:
      fingerprint: SHA-256 of its identity, which the client drew itself.
      name: its display name.
      train: number of training samples.
      test: number of test samples.
      target: mean and standard deviation of its training labels, if they are numbers.
      validation: number of validation samples.
    """

    fingerprint: str
    name: str
    train: int
    test: int
    target: Mapping[str, float] | None = None
    validation: int = 0


@dataclass(frozen=True)
class Description:
    """What the server knows about the data: a Federation without samples and their normalisation."""

    name: str
    shape: tuple[int, ...]
    classes: int
    labels: tuple[str, ...] | None
    features: tuple[str, ...] | None
    words: Words | None
    clients: int
    train_samples: int = 0
    test_samples: int = 0
    validation_samples: int = 0
    text: None = None
    shift: None = None
    scale: None = None
    names: tuple[str, ...] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    task: str = "classification"
    target: Target | None = None
    encoding: None = None

    @property
    def facts(self) -> dict[str, Any]:
        """What the data holds, in a few numbers."""
        held = ("validation_samples",) if self.validation_samples else ()
        told = ("name", "clients", "train_samples", *held, "test_samples", "classes")
        return {name: getattr(self, name) for name in told}


class Roster:
    """The known clients and their nodes, by number."""

    def __init__(
        self, clients: int | None, log: Callable[[str], None], agreeing: int = 1, min_samples: int = 1
    ) -> None:
        """``clients`` is the largest number of clients; None for those present at the start.

        ``agreeing`` is how many must have data of one kind before it becomes the federation's.
        """
        self.clients, self._log, self._agreeing, self.min_samples = clients, log, agreeing, min_samples
        self.members: dict[int, Member] = {}
        self.schema: dict[str, Any] | None = None
        self.target: Target | None = None
        self.nodes: dict[int, int] = {}
        self._introduced: dict[int, NodeFacts] = {}  # nodes waiting for the schema
        self._asked: dict[int, tuple[float, str]] = {}  # by node: until when, by time.monotonic, and why it was refused

    def unknown(self, nodes: Sequence[int]) -> list[int]:
        """The nodes to ask for an introduction; nodes without a number are asked again later, or on reconnecting."""
        self._asked = {node: until for node, until in self._asked.items() if node in nodes}
        self._introduced = {node: facts for node, facts in self._introduced.items() if node in nodes}
        known, now = self.nodes.values(), time.monotonic()
        return [node for node in nodes if node not in known and self._asked.get(node, (now, ""))[0] <= now]

    def present(self, nodes: Sequence[int]) -> list[int]:
        """The numbers of the clients at these nodes."""
        return sorted(number for number, node in self.nodes.items() if node in nodes)

    def progress(self, nodes: Sequence[int], least: int) -> str:
        """How many clients are connected of the ``least`` needed, and what the server waits for; for its log."""
        here = len(self.present(nodes))
        if self.schema is None:
            here, least = len(self._introduced), max(least, self._agreeing)
            remarks = self._disagreements() or (["a federation of one needs clients=1"] if here == 1 else [])
        else:
            members = sorted(self.members.items())
            missing = [member.name for number, member in members if self.nodes.get(number) not in nodes]
            remarks = [f"missing: {', '.join(missing[:5])}"] if missing else []
        return "; ".join([f"{here} of at least {least} are connected", *remarks])

    def _disagreements(self) -> list[str]:
        """How the data of waiting clients differ from the first one's."""
        if not self._introduced:
            return []
        first, *others = self._introduced.values()
        found = [(_name(facts), difference(facts, first)) for facts in others]
        return [
            f"the data of {name} does not match that of {_name(first)}: {differs}" for name, differs in found if differs
        ][:5]

    def refuse(self, node: int, why: str, name: str | None = None) -> None:
        """Records and logs that a node cannot take part; it is asked again some minutes later."""
        if self._asked.get(node, (0.0, ""))[1] != why:
            self._log(f"{name or f'node {node}'} was refused: {why}")
        self._asked[node] = (time.monotonic() + _PAUSE, why)

    def admit(self, said: Mapping[int, NodeFacts]) -> None:
        """Numbers the clients at these nodes: each gets the number it had, the one it asks for, or the next free one.

        The first clients wait until enough of them have data of one kind. A client that introduces itself again, as
        another node, counts only once.
        """
        again = {facts["client"] for facts in said.values()}
        waiting = {node: facts for node, facts in self._introduced.items() if facts["client"] not in again} | dict(said)
        self._introduced = {}
        if self.schema is None:
            clients = {facts["client"]: facts for facts in waiting.values() if not unusable(facts, self.min_samples)}
            self.schema = majority(list(clients.values()), self._agreeing)
        new: set[int] = set()
        for node, facts in sorted(waiting.items(), key=_by_number_and_name):
            name = _name(facts)
            try:
                self._check(facts)
                if self.schema is None:
                    self._introduced[node] = facts
                    if node in said:
                        self._asked[node] = (time.monotonic() + _PAUSE, "")
                    continue
                number = self._number(facts, name, new)
            except SettingError as problem:
                self.refuse(node, str(problem), name)
                continue
            if self.schema["features"] is None:  # arrays do not name their columns; the first table does
                self.schema = {**self.schema, "features": facts["features"]}
            if number in self.nodes:
                self._log(f"{name} reconnected under a different node ID")
                # The old node is gone, though Flower may not know it yet.
                self._asked[self.nodes[number]] = (time.monotonic() + _PAUSE, "it reconnected under another node ID")
            new.add(number)
            sizes = {part: facts.get(part, 0) for part in ("train", "test", "validation")}
            self.members[number] = Member(fingerprint(facts["client"]), name, **sizes, target=facts["target"])
            self.nodes[number] = node

    def _check(self, facts: NodeFacts) -> None:
        """Refuses a client that cannot take part, or whose data differ from the others'."""
        problem = unusable(facts, self.min_samples)
        if problem:
            raise SettingError(problem)
        differs = difference(facts, self.schema) if self.schema else None
        if differs:
            raise SettingError(f"its data differ from the others': {differs}")

    def _number(self, facts: NodeFacts, name: str, new: set[int]) -> int:
        wish, own = facts["number"], fingerprint(facts["client"])
        for number, member in self.members.items():
            if member.fingerprint == own:
                if number in new or wish not in (None, number) or name != member.name:
                    raise SettingError(f"it uses the same home folder as {member.name}; give each node its own home=")
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

    def close(self) -> None:
        """Fixes the number of clients, if open, and how labels that are numbers are standardised."""
        if self.clients is None:
            self.clients = max(self.members, default=-1) + 1
        if self.target is None:
            self.target = _pooled([each for each in self.members.values() if each.target is not None])

    def sizes(self, part: str) -> np.ndarray:
        """The number of samples of each client; 0 for those that have not connected yet."""
        assert self.clients is not None
        return np.asarray([getattr(self.members.get(i), part, 0) for i in range(self.clients)], np.int32)

    def name(self, number: int) -> str:
        """A client's display name."""
        member = self.members.get(number)
        return member.name if member else f"client {number}"

    def description(self) -> Description:
        """What is known about the data."""
        assert self.clients is not None
        assert self.schema is not None
        schema = self.schema
        return Description(
            re.sub(r"[:<>]", "-", schema["dataset"]),  # an experiment would read them as an import path
            tuple(schema["shape"]),
            schema["classes"],
            None if schema["labels"] is None else tuple(schema["labels"]),
            None if schema["features"] is None else tuple(schema["features"]),
            None if schema["words"] is None else Words(schema["words"]),
            self.clients,
            int(self.sizes("train").sum()),
            int(self.sizes("test").sum()),
            int(self.sizes("validation").sum()),
            names=tuple(self.name(i) for i in range(self.clients)),
            task=schema["task"],
            target=self.target,
        )

    def facts(self) -> dict[str, Any]:
        """The roster as plain values, for a checkpoint."""
        members = {str(number): asdict(member) for number, member in self.members.items()}
        target = self.target and self.target._asdict()
        return {"clients": self.clients, "members": members, "schema": self.schema, "target": target}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restores the roster from a checkpoint. No client's node is known yet."""
        self.clients, self.schema = facts["clients"], facts["schema"]
        self.target = None if facts["target"] is None else Target(**facts["target"])
        self.members = {int(number): Member(**member) for number, member in facts["members"].items()}
        # Existing members stay, even if the run began with a lower limit or none.
        self.min_samples = min([self.min_samples, *(member.train for member in self.members.values())])


def _pooled(members: Sequence[Member]) -> Target | None:
    """Mean and standard deviation of the pooled training labels; None if they are not numbers."""
    if not members:
        return None
    told = [Target(**member.target) for member in members if member.target is not None]
    sizes, means, stds = (np.asarray(each, float) for each in ([m.train for m in members], *zip(*told, strict=True)))
    mean = float(np.average(means, weights=sizes))
    spread = float(np.sqrt(np.average(stds**2 + (means - mean) ** 2, weights=sizes)))
    return Target(mean, spread)


def _by_number_and_name(entry: tuple[int, NodeFacts]) -> tuple[bool, str, int]:
    """Sorts clients that ask for a number first, then by name."""
    node, facts = entry
    return facts["number"] is None, str(facts["name"]), node


def _name(facts: NodeFacts) -> str:
    return printable(facts["name"], 100)
