"""Evaluation on a federation: clients send each metric's statistics, and the server combines them.

They send the sums of :class:`pfedbred.engine.metrics.Metric`, checked like uploads: names, shapes and types.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from pfedbred.engine.scores import Evaluation, MetricsByPart, Tallies, combine, summarise
from pfedbred.errors import SettingError
from pfedbred.flower import wire
from pfedbred.flower.messaging import Reply, log, read_facts
from pfedbred.flower.roster import Member, Roster
from pfedbred.io import tensors
from pfedbred.types import Tree

NAME = "tallies"
"""The name of the statistics in a message."""


def evaluation_of(
    replies: Mapping[int, Reply], roster: Roster, like: Tallies, metrics: MetricsByPart, round_: int
) -> Evaluation | None:
    """G and P from the clients' statistics; None if nobody sent any. A client without statistics counts as one without
    samples.

    So does one whose statistics are not finite, unless no client's are: then the run has diverged.
    """
    found: dict[int, Tallies] = {}
    for i, reply in replies.items():
        name = roster.name(i)
        try:
            read_facts(reply, {}, name)
            assert reply.content is not None
            tallies = wire.tree(reply.content, NAME, like, name)
            _check(tallies, roster.members[i])
            found[i] = tallies
        except SettingError as problem:
            log(f"round {round_}: no evaluation from {name}: {problem}")
    finite = {i: tallies for i, tallies in found.items() if _is_finite(tallies)}
    for i in found if finite else ():
        if i not in finite:
            log(f"round {round_}: no evaluation from {roster.name(i)}: its losses are not finite")
    if not found:
        return None
    clients = wire.stacked(finite or found, like, range(roster.clients or 0))
    one_seed = jax.tree.map(lambda leaf: leaf[None], clients)
    return summarise(jax.device_get(combine(one_seed, metrics, axis=1)), metrics)


def _check(tallies: Tallies, member: Member) -> None:
    """Refuses impossible statistics. Whole numbers in any metric count samples, and ``samples`` counts all of them."""
    for name, array in tensors.named(tallies).items():
        if not np.issubdtype(array.dtype, np.integer) or not array.size:
            continue
        part = name.split(".")[0].rpartition("_")[2]
        samples, least, most = getattr(member, part), int(array.min()), int(array.max())
        if name.endswith(".samples") and (least, most) != (samples, samples):
            raise SettingError(f"it evaluated {most} {part} samples, but introduced itself with {samples}")
        if least < 0 or most > samples:
            raise SettingError(f"{name!r} cannot be {least if least < 0 else most}: it has {samples} {part} samples")


def _is_finite(tree: Tree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree) if np.issubdtype(leaf.dtype, np.inexact))
