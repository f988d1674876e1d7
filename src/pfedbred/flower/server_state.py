"""A federation's run between two rounds, as stored in the server's checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pfedbred.engine.backend import Saved
from pfedbred.engine.responses import Responses
from pfedbred.engine.screening import Rejections
from pfedbred.flower.introductions import SCHEMA
from pfedbred.flower.roster import MEMBER, fingerprint
from pfedbred.flower.wire import TARGET
from pfedbred.io import tensors
from pfedbred.io.shapes import COUNT, NUMBER, Each, Maybe, expect
from pfedbred.io.strict import finite_or_none
from pfedbred.runs.checkpoints import Checkpoint
from pfedbred.types import Tree

_RESPONSES = "screening."  # prefix of the names of their arrays
_FACTS = {
    "run": str,
    "given": dict,
    "roster": {"clients": COUNT, "members": Each(MEMBER), "schema": SCHEMA, "target": TARGET},
    "client_seconds": [NUMBER],
    "rejected": Each(COUNT),
    "skipped": COUNT,
    "in_row": COUNT,
    "verdicts": dict,
}


@dataclass
class DeployedState:
    """What the server remembers of a run.

    Attributes:
      run: its id, by which clients find what they keep for it.
      round: number of rounds done.
      server: the state of the algorithm's server half.
      client_seconds: by round, how long the slowest client worked.
      rejected: by name of a client, in how many rounds its update was rejected.
      skipped: rounds without enough valid updates.
      skipped_in_row: how many of the latest rounds were skipped in a row.
      verdicts: by client number, the last round it trained in, and whether its update was accepted.
      info: the last round's diagnostics.
      chosen: the round whose personal models are best so far on validation samples; None without such samples.
      responses: the record of how clients respond to the server's steps; None if none is kept.
    """

    run: str
    round: int
    server: Tree
    client_seconds: list[float] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    skipped_in_row: int = 0
    verdicts: dict[int, tuple[int, bool]] = field(default_factory=dict)
    info: dict[str, float] = field(default_factory=dict)
    chosen: int | None = None
    responses: Responses | None = None

    def rejections(self) -> Rejections:
        """The rejections as other backends count them, for one seed."""
        return Rejections([dict(self.rejected)], [self.skipped], [self.skipped_in_row])

    def save(self, given: dict[str, Any], roster: dict[str, Any]) -> Saved:
        """The state for a checkpoint."""
        arrays = {name: np.asarray(leaf) for name, leaf in tensors.named(self.server).items()}
        kept = tensors.named(self.responses)
        arrays |= {f"{_RESPONSES}{name}": np.asarray(leaf) for name, leaf in kept.items()}
        facts = {
            "run": self.run,
            "given": given,
            "roster": roster,
            "client_seconds": self.client_seconds,
            "rejected": dict(self.rejected),
            "skipped": self.skipped,
            "in_row": self.skipped_in_row,
            "verdicts": {str(number): list(verdict) for number, verdict in self.verdicts.items()},
            "info": {name: finite_or_none(value) for name, value in self.info.items()},
            "chosen": self.chosen,
        }
        return Saved(arrays, facts)


def _current(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts by their current names: earlier versions had another one for ``rejected``."""
    return {"rejected" if name == "left_out" else name: value for name, value in facts.items()}


def check_facts(found: Checkpoint) -> None:
    """Refuses a checkpoint that does not belong to a federation's run."""
    roster = {"schema": dict, "members": Each(dict)}
    expect(found.facts, {"roster": roster}, found.path)
    found.facts["roster"].setdefault("target", None)
    schema: dict[str, Any] = found.facts["roster"]["schema"]
    schema.setdefault("features", None)  # earlier versions did not name columns
    schema.setdefault("task", "classification")  # nor tasks
    for member in found.facts["roster"]["members"].values():
        if isinstance(member.get("client"), str):  # earlier versions kept the identity itself
            member["fingerprint"] = fingerprint(member.pop("client"))
        member.setdefault("target", None)
    expect(_current(found.facts), _FACTS, found.path)


def load(saved: Saved, like: Tree, no_responses: Callable[[Tree], Responses | None]) -> DeployedState:
    """The run from a checkpoint.

    Args:
      saved: the checkpoint's content.
      like: shapes and types of the server's state.
      no_responses: the record of responses before the first round, given the server's state.
    """
    facts, arrays, kept = _current(saved.facts), dict[str, Any](), dict[str, Any]()
    for name, array in saved.arrays.items():
        (kept if name.startswith(_RESPONSES) else arrays)[name.removeprefix(_RESPONSES)] = array
    server = tensors.refill(like, arrays, "the checkpoint")
    responses = no_responses(server)
    if responses is not None and "origins" in kept:  # earlier versions kept none, or others
        responses = tensors.refill(responses, kept, "the checkpoint")
    info = facts.get("info", {})
    expect(info, Each(Maybe(NUMBER)), "the checkpoint", "'info'")
    expect(facts.get("chosen"), Maybe(COUNT), "the checkpoint", "'chosen'")
    return DeployedState(
        facts["run"],
        facts["round"],
        server,
        list(facts["client_seconds"]),
        Counter(facts["rejected"]),
        facts["skipped"],
        facts["in_row"],
        {int(number): (round_, stands) for number, (round_, stands) in facts["verdicts"].items()},
        {name: np.nan if value is None else value for name, value in info.items()},
        facts.get("chosen"),
        responses,
    )
