r"""Screening: which clients' updates of a round are valid.

An update is rejected if its upload or its new state is not finite, or if it is plainly out of line with the others of
the round. Let m_i = ||upload - unchanged||, where ``unchanged`` is the upload of a client whose training changed
nothing. If the server averages the updates, one is out of line if

- it is too long: m_i > exp(max(log 5, 5 s)) median_j m_j and m_i > ||unchanged|| / 10, with s the spread of the log m_j
  (1.4826 times the median deviation from their median). The second condition spares a client that still learns while
  the others have settled;
- it repeats another one: the cosine with it is above 0.99999, and their norms differ by less than 0.001 %. Of two
  such updates the first counts, of three or more none: colluding clients may send identical updates;
- it is opposed to the others: its cosine c_ij with at least one of them is below -0.8, and its score, sum_j c_ij^3 /
  sum_j |c_ij|^3, is below 0 and 0.3 below the median score. With few labels per client honest updates point in all
  directions, but a reversed one is nearly opposite to those of similar data, and cubes let these decide. The worst goes
  first, then the scores are computed without it, until no update is opposed or half of them are gone;
- it is reversed: where all clients train in every round, see :mod:`pfedbred.engine.responses`.

Fewer than six updates have no majority to compare with: only their norms and responses are checked. Only norms count
for a method whose updates have no common direction (``comparable``), and in a run whose screening is by ``norms``
alone. A model with one output or two labels can only move in two directions, and honest clients pull it in both: no
update counts as opposed then. If the server does not average, clients can hardly harm each other, and an update is out
of line only if m_i > 100 median_j m_j and m_i > ||unchanged||. Numbers whose squares overflow count as not finite.

What it catches and what it misses is measured by ``benchmarks/attacks.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.aggregation.base import flat_rows
from pfedbred.aggregation.median import masked_median
from pfedbred.engine import directions, responses
from pfedbred.engine.responses import Responses
from pfedbred.engine.scores import Evaluation
from pfedbred.types import Array, Tree

FAR, LONG = 100, 5  # times the median norm, without and with an average
_DEVIATIONS, _LARGE = 5, 0.1
_SIGMA = 1.4826  # the standard deviation of a Gaussian is its median deviation times this
STALLED = 10  # rounds skipped in a row after which a run is given up


class Norms(NamedTuple):
    """The norms of one client's round.

    Attributes:
      update: the norm of its update; NaN if its new state is not finite.
      reference: the norm of an unchanged upload; 0 if unknown.
    """

    update: Array
    reference: Array

    @property
    def finite(self) -> Array:
        """Whether the upload and the new state are."""
        return jnp.isfinite(self.update)


def measure(unchanged: Tree, upload: Tree, state: Tree) -> Norms:
    """The norms of a client's update. If ``unchanged`` has another structure, the upload itself is measured."""
    changes = differences(unchanged, upload)
    sent, start = _numbers(upload), _numbers(unchanged)
    update = _norm(sent if changes is None else changes)
    only_kept = [leaf for leaf in _numbers(state) if not any(leaf is each for each in sent)]  # the rest is in `update`
    finite = jnp.isfinite(_norm(only_kept))
    return Norms(jnp.where(finite, update, jnp.nan), jnp.zeros_like(update) if changes is None else _norm(start))


def valid(norms: Norms, averaged: bool) -> Array:
    """Which updates are finite and not too long, from the norms of all clients along the first axis."""
    update, reference = norms
    finite = norms.finite
    middle = masked_median(update, finite)
    if averaged:
        spread = _SIGMA * masked_median(jnp.abs(jnp.log(update / middle)), finite)
        limit, large = middle * jnp.maximum(LONG, jnp.exp(_DEVIATIONS * spread)), _LARGE * reference
    else:
        limit, large = FAR * middle, reference
    return finite & ~((update > limit) & (update > large) & (middle > 0))


def differences(unchanged: Tree, uploads: Tree) -> list[Array] | None:
    """The updates, new - old, by array; None if uploads have another structure, and so no direction to compare."""
    if _shapes(unchanged) != _shapes(uploads):
        return None
    return [new - old for new, old in zip(_numbers(uploads), _numbers(unchanged), strict=True)]


class Compared(NamedTuple):
    """What a comparison of updates finds.

    Attributes:
      valid: which of them are in line.
      reversed, copied: which of the others are rejected for that; those left are opposed. None if none can be.
    """

    valid: Array
    reversed: Array | None = None
    copied: Array | None = None

    def reason(self, place: int) -> str:
        """Why the update at that place, which is not valid, was rejected."""
        if self.reversed is not None and self.reversed[place]:
            return "it goes against the server's steps as a reversed update does"
        if self.copied is not None and self.copied[place]:
            return "it is a copy of another client's"
        return "it points against the other updates"


class Related(NamedTuple):
    """How the updates of a round's selected clients are related.

    Attributes:
      cosines: with each other, see :func:`pfedbred.engine.directions.products`.
      sketches: of the updates and of where they start, if responses are kept.
      responses: how they respond to the server's steps, NaN where that is not known, if responses are kept.
    """

    cosines: Array
    sketches: tuple[Array, Array] | None = None
    responses: Array | None = None


def related(
    unchanged: Tree, uploads: Tree, norms: Array, before: Responses | None, numbers: Array | None = None
) -> Related | None:
    """How updates are related to each other and to the server's steps; None if they have no direction.

    Args:
      unchanged: uploads of clients whose training changed nothing, the clients along the first axis.
      uploads: what these clients sent.
      norms: of the updates.
      before: the responses up to the last round, if they are kept.
      numbers: of the clients, if responses are kept.
    """
    updates = differences(unchanged, uploads)
    if updates is None or not updates:
        return None
    units = directions.units(updates, norms)
    cosines = directions.products(units)
    if before is None or numbers is None:
        return Related(cosines)
    start = [leaf[:1] for leaf in _numbers(unchanged)]  # they are alike where a server averages
    rows = jnp.concatenate([flat_rows(leaf).astype(units.dtype) for leaf in start], axis=1)
    sketches = responses.sketches(before, units) * norms[:, None], responses.sketches(before, rows)[0]
    return Related(cosines, sketches, responses.measured(before, *sketches, numbers))


def remember(before: Responses | None, found: Related | None, norms: Array, numbers: Array) -> Responses | None:
    """The responses with those of a round's updates, however long these are; None if they are not kept.

    Args:
      before: up to the last round.
      found: how the updates are related; None if they have no direction.
      norms: of the updates.
      numbers: of the clients.
    """
    if before is None or found is None or found.sketches is None or found.responses is None:
        return before
    finite_ = jnp.isfinite(norms)
    after = responses.observe(before, found.responses, numbers, finite_)
    return responses.record(after, *found.sketches, numbers, finite_)


def compare(
    found: Related | None,
    *,
    norms: Array,
    numbers: Array,
    counted: Array,
    known: Responses | None,
    opposed: bool = True,
) -> Compared:
    """Which of the ``counted`` updates are in line with the others, and with how others respond to the server.

    Args:
      found: how the updates are related; None if they have no direction.
      norms: of the updates.
      numbers: of the clients.
      counted: whose update is valid so far.
      known: the responses with those of this round, if they are kept.
      opposed: whether one opposed to the others is out of line.
    """
    if found is None:
        return Compared(counted)
    against = jnp.zeros_like(counted)
    if known is not None:
        against = responses.are_reversed(known.averages, known.times)[numbers]
    unique, in_line = directions.in_line(found.cosines, norms, counted & ~against, opposed)
    return Compared(in_line, counted & against, counted & ~against & ~unique)


def screen(
    norms: Norms,
    found: Related | None,
    *,
    among: Any,
    answered: Array | None,
    numbers: Array,
    known: Responses | None,
    opposed: bool,
) -> Array:
    """:func:`valid`, then :func:`compare`, of updates that a server averages: those of all clients that trained.

    In nearly every round a few counts show that no update is out of line. The sorts and loops that would find which
    are only run in the others: on a GPU they would take longer than the training of a small model.

    Args:
      norms: of all clients that trained.
      found: how the selected clients' updates are related; None if they have no direction.
      among: the places of the selected.
      answered: of the selected, whose replies before training were finite; None if there were none.
      numbers: of the selected.
      known: the responses with those of this round, if they are kept.
      opposed: whether an update opposed to the others is out of line.
    """

    def thorough() -> Array:
        all_ = valid(norms, averaged=True)
        counted = all_[among] if answered is None else all_[among] & answered
        verdict = compare(
            found, norms=norms.update[among], numbers=numbers, counted=counted, known=known, opposed=opposed
        )
        return all_.at[among].set(verdict.valid)

    calm = _similar(norms.update)
    if answered is not None:
        calm &= jnp.all(answered)
    if found is not None:
        calm &= directions.distinct(found.cosines, opposed)
        if known is not None:
            calm &= responses.unopposed(known.averages, known.times)
    return jax.lax.cond(calm, lambda: jnp.ones(norms.update.shape, bool), thorough)


def _similar(norms: Array) -> Array:
    """Whether all are finite, and more than half at least a fifth of the largest: then none is above 5 medians."""
    finite = jnp.all(jnp.isfinite(norms))  # the maximum is not enough: across devices, it ignores NaN
    return finite & (2 * jnp.sum(LONG * norms >= jnp.max(norms)) > len(norms))


def no_responses(unchanged: Tree, clients: int) -> Responses | None:
    """The responses before the first round, of clients that upload ``unchanged`` if their training changes nothing.

    None if they would not be compared: there are too few clients, or the upload is empty (a linear model has no body
    to share under personal heads).
    """
    numbers = _numbers(unchanged)
    return responses.unknown(numbers, clients) if numbers and clients >= responses.FEWEST else None


def finite(trees: Tree) -> Array:
    """Whether each entry along the first axis is finite."""
    return jnp.isfinite(jax.vmap(_norm)(trees))


def _shapes(tree: Tree) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _norm(tree: Tree) -> Array:
    def squared(leaf: Array) -> Array:  # not in half precision, in which 256 squared is infinite
        return jnp.vdot(leaf, leaf, preferred_element_type=jnp.promote_types(leaf.dtype, jnp.float32))

    return jnp.sqrt(sum(map(squared, _numbers(tree)), jnp.float32(0)))


def _numbers(tree: Tree) -> list[Array]:
    """Its floating-point arrays, without keys, flags and counters."""
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


class Rejections(NamedTuple):
    """What screening did, by seed.

    Attributes:
      rejected: clients by name, and in how many rounds their update was rejected.
      skipped: rounds without enough valid updates, which changed nothing on the server.
      skipped_in_row: how many of the most recent rounds were skipped, one after another.
    """

    rejected: list[dict[str, int]]
    skipped: list[int]
    skipped_in_row: list[int]

    def since(self, before: Rejections) -> Rejections:
        """What was added since ``before``."""
        new = [
            {name: times - then.get(name, 0) for name, times in now.items() if times > then.get(name, 0)}
            for now, then in zip(self.rejected, before.rejected, strict=True)
        ]
        skipped = [now - then for now, then in zip(self.skipped, before.skipped, strict=True)]
        return Rejections(new, skipped, self.skipped_in_row)


def total(parts: Sequence[Rejections], seeds: int) -> Rejections:
    """The sum over consecutive stretches of a run."""
    rejected: list[Counter[str]] = [Counter() for _ in range(seeds)]
    skipped = [0] * seeds
    for part in parts:
        for seed in range(seeds):
            rejected[seed].update(part.rejected[seed])
            skipped[seed] += part.skipped[seed]
    return Rejections([dict(each) for each in rejected], skipped, parts[-1].skipped_in_row if parts else [0] * seeds)


def by_name(times: Iterable[tuple[int, int]], names: Sequence[str] | None) -> dict[str, int]:
    """Counts by client number as counts by name, without zeros; a client without a name goes by its number."""
    found: Counter[str] = Counter()  # two clients may share a name
    for i, count in times:
        if count:
            found[names[i] if names else str(i)] += int(count)
    return dict(found)


def stalled(skipped_in_row: Sequence[int], rounds: int) -> np.ndarray:
    """For each seed, whether its last ten rounds (all ``rounds``, if fewer) were skipped.

    By then every client has been rejected on several different minibatches, and the run makes no progress.
    """
    return np.asarray(skipped_in_row) >= min(STALLED, rounds)


def diverged(scores: Evaluation, skipped_in_row: Sequence[int], rounds: int) -> np.ndarray:
    """For each seed, whether it has diverged: a training loss is not finite, or the run has stalled."""
    lost = ~(np.isfinite(scores.global_.train.loss) & np.isfinite(scores.personal.train.loss))
    return lost | stalled(skipped_in_row, rounds)
