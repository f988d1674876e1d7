"""A run between two rounds, and its checkpoints: killed at any moment, a server goes on after its last whole round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.engine import screening
from pfedbred.experiment.loop import Point
from pfedbred.flower.roster import MEMBER, SCHEMA
from pfedbred.io import tensors
from pfedbred.io.shapes import COUNT, NUMBER, expect
from pfedbred.runs import checkpoints
from pfedbred.runs.metrics_file import read_points, size_of
from pfedbred.types import Tree

_PLAIN = ("run", "seconds", "round_seconds", "client_seconds", "skipped", "in_row")  # in a checkpoint as they are
_FACTS = {
    "run": str,
    "experiment": dict,
    "given": dict,
    "roster": {"clients": COUNT, "members": dict, "schema": SCHEMA},
    "metrics": COUNT,
    "seconds": NUMBER,
    "round_seconds": [NUMBER],
    "client_seconds": [NUMBER],
    "left_out": dict,
    "skipped": COUNT,
    "in_row": COUNT,
    "verdicts": dict,
}


@dataclass
class Progress:
    """All that has to be known to go on with a run after its last whole round.

    Attributes:
      run: its number, which it has for ever.
      round: how many are done.
      state: of the algorithm's server.
      points: its evaluations.
      seconds: that it has taken.
      round_seconds: of each round, clients and all.
      client_seconds: of each round, what the slowest client took for its own work.
      left_out: clients by name, and in how many rounds they were left out.
      skipped: rounds without enough sound clients.
      in_row: how many of those are the last ones.
      verdicts: by client's number, the last round it was asked to train in, and whether its work stands.
    """

    run: str
    round: int
    state: Tree
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    round_seconds: list[float] = field(default_factory=list)
    client_seconds: list[float] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    in_row: int = 0
    verdicts: dict[int, tuple[int, bool]] = field(default_factory=dict)

    def health(self) -> screening.Health:
        """As the simulation tells it."""
        return screening.Health([dict(self.left_out)], [self.skipped], [self.in_row])

    def save(
        self,
        folder: Path,
        experiment: dict[str, Any],
        given: dict[str, Any],
        roster: dict[str, Any],
        metrics: int,
    ) -> None:
        """Writes a checkpoint; ``metrics`` is how many bytes of metrics.jsonl belong to it.

        ``given`` is what the run config says of the clients.
        """
        facts = {
            **{name: getattr(self, name) for name in _PLAIN},
            "experiment": experiment,
            "given": given,
            "roster": roster,
            "metrics": metrics,
            "left_out": dict(self.left_out),
            "verdicts": {str(number): list(said) for number, said in self.verdicts.items()},
        }
        arrays = {name: np.asarray(leaf) for name, leaf in tensors.named(self.state).items()}
        checkpoints.write(folder, self.round, facts, arrays)


def latest(folder: Path, warn: Callable[[str], None]) -> checkpoints.Checkpoint | None:
    """The newest sound checkpoint in a run folder, if there is one."""

    def fits(found: checkpoints.Checkpoint) -> None:
        expect(found.facts, {"roster": {"schema": dict}}, found.path)
        found.facts["roster"]["schema"].setdefault("features", None)  # runs of before did not name them
        expect(found.facts, _FACTS, found.path)
        expect(list(found.facts["roster"]["members"].values()), [MEMBER], found.path)
        if found.facts["metrics"] > size_of(folder):
            raise tensors.Damaged(f"metrics.jsonl is shorter than when {found.path} was written")

    return checkpoints.latest(folder, warn, fits)


def restored(folder: Path, found: checkpoints.Checkpoint, like: Tree) -> Progress:
    """The run as it was; ``like`` is the shapes and types of the server's state."""
    facts = found.facts
    state = tensors.refill(like, found.arrays, str(found.path))
    return Progress(
        round=found.round,
        state=state,
        points=read_points(folder, facts["metrics"]),
        left_out=Counter(facts["left_out"]),
        verdicts={int(number): (said[0], said[1]) for number, said in facts["verdicts"].items()},
        **{name: facts[name] for name in _PLAIN},
    )
