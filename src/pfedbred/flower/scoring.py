"""How good the models are, as the clients count it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pfedbred.engine.evaluation import Counts, Evaluation, Tally, summarise
from pfedbred.errors import SettingError
from pfedbred.flower.messaging import Answer, facts_of, say
from pfedbred.flower.roster import Member, Roster
from pfedbred.io.shapes import COUNT, NUMBER, Maybe

_TALLY = {"correct": COUNT, "loss": Maybe(NUMBER)}
_KINDS = Counts._fields
_SCORES = {**dict.fromkeys(_KINDS, _TALLY), "train": COUNT, "test": COUNT}


def scores_of(replies: Mapping[int, Answer], roster: Roster, round_: int) -> Evaluation | None:
    """G and P, as the clients count them; one that does not answer counts as one without samples.

    So does one whose losses are not finite, unless they all are so: then the run has diverged.
    """
    said: dict[int, Any] = {}
    for i, answer in replies.items():
        name = roster.name(i)
        try:
            said[i] = facts_of(answer, {"scores": _SCORES}, name)["scores"]
            _believe(said[i], roster.members[i])
        except SettingError as problem:
            said.pop(i, None)
            say(f"round {round_}: no scores of {name}: {problem}")
    finite = {i: facts for i, facts in said.items() if all(facts[each]["loss"] is not None for each in _KINDS)}
    for i in said if finite else ():
        if i not in finite:
            say(f"round {round_}: no scores of {roster.name(i)}: its losses are not finite")
    return _summarised(finite or said, roster.clients or 0) if said else None


def _summarised(said: Mapping[int, Any], count: int) -> Evaluation:
    sizes = {part: np.zeros(count, np.int64) for part in ("train", "test")}
    tallies = {name: (np.zeros((1, count)), np.zeros((1, count))) for name in _KINDS}
    for i, facts in said.items():
        for part, size in sizes.items():
            size[i] = facts[part]
        for name, (correct, loss) in tallies.items():
            correct[0, i] = facts[name]["correct"]
            loss[0, i] = np.nan if facts[name]["loss"] is None else facts[name]["loss"]
    counts: Any = {name: Tally(*arrays) for name, arrays in tallies.items()}  # type: ignore[arg-type]
    return summarise(Counts(**counts), sizes)


def _believe(facts: Mapping[str, Any], member: Member) -> None:
    """Refuses counts that cannot be."""
    if (facts["train"], facts["test"]) != (member.train, member.test):
        raise SettingError("it has another number of samples than it said")
    for name in _KINDS:
        if facts[name]["correct"] > facts[name.rsplit("_", 1)[1]]:
            raise SettingError("more of its predictions are right than it has samples")
