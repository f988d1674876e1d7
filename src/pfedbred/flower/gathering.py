"""Registers new nodes and waits for the minimum number of clients."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pfedbred.errors import SettingError, printable
from pfedbred.flower import wire
from pfedbred.flower.introductions import INTRODUCTION
from pfedbred.flower.messaging import Grid, NodeRequest, Reply, exchange, facts_in, log, read_facts, sender_name
from pfedbred.flower.roster import Roster
from pfedbred.flower.run_config import ServerOptions

_INTRODUCTION_DEADLINE = 60.0  # seconds


class Gathering:
    """The clients that are connected, by number."""

    def __init__(
        self,
        grid: Grid,
        options: ServerOptions,
        roster: Roster,
        *,
        task: str | None = None,
        validation: float | None = None,
    ) -> None:
        """``task`` tells clients how to read their labels, ``validation`` what fraction of samples to hold out."""
        self._grid, self._options, self.roster = grid, options, roster
        self._task, self._validation = task, validation

    def present(self) -> list[int]:
        """The numbers of the known clients that are connected."""
        return self.roster.present(list(self._grid.get_node_ids()))

    def wait(self) -> list[int]:
        """Admits new nodes and waits until enough clients are connected; returns their numbers."""
        told, when = "", 0.0
        while True:
            connected = list(self._grid.get_node_ids())
            self.introduce(self.roster.unknown(connected))
            present, least = self.roster.present(connected), self._options.min_clients
            if len(present) >= least:
                return present
            progress = self.roster.progress(connected, least)
            if progress != told or time.monotonic() - when > 30:
                told, when = progress, time.monotonic()
                log(f"waiting for clients: {progress}")
            time.sleep(1)

    def introduce(self, nodes: Sequence[int]) -> None:
        """Asks these nodes to introduce themselves, and admits those that can take part."""
        facts = {
            "protocol": wire.PROTOCOL,
            "classes": self._options.classes,
            "labels": self._options.labels,
            "min_samples": self.roster.min_samples,
            "task": self._task,
            "validation": self._validation,
        }
        requests = dict.fromkeys(nodes, NodeRequest("query.meet", wire.content(facts)))
        deadline = min(self._options.deadline, _INTRODUCTION_DEADLINE)
        replies = exchange(self._grid, requests, group="meet", deadline=deadline)
        said = {}
        for node in nodes:
            if node not in replies:
                self.roster.refuse(node, f"no reply within {deadline:g} s")
                continue
            try:
                said[node] = read_facts(replies[node], INTRODUCTION, f"node {node}")
            except SettingError as problem:
                self.roster.refuse(node, str(problem), sender_name(replies[node]))
        self.roster.admit(said)

    def exchange(self, requests: Mapping[int, NodeRequest], round_: int) -> dict[int, Reply]:
        """Sends each client its request in this round; returns the replies until the deadline.

        Logs clients that are late, or failed for reasons of their own, such as a full disk.
        """
        roster, deadline = self.roster, self._options.deadline
        by_node = {roster.nodes[i]: request for i, request in requests.items()}
        numbers = {roster.nodes[i]: i for i in requests}
        replies = exchange(self._grid, by_node, group=str(round_), deadline=deadline)
        late = [roster.name(numbers[node]) for node in by_node if node not in replies]
        if late:
            log(f"round {round_}: no reply within {deadline:g} s from {', '.join(late)}")
        done = {}
        for node, reply in replies.items():
            facts, name = facts_in(reply), roster.name(numbers[node])
            if facts.get("unable"):  # it has no update to screen
                log(f"round {round_}: {name} could not take part: {printable(str(facts.get('problem')), 500)}")
            else:
                done[numbers[node]] = reply
        return done
