r"""Screening: which clients' updates of a round are valid.

An update is rejected if its upload or its new state is not finite, or if it is plainly out of line with the others of
the round. Let m_i = ||upload - unchanged||, where ``unchanged`` is the upload of a client whose training changed
nothing. Of updates that a server averages, one is out of line if

- it is too long: m_i > exp(max(log 5, 5 s)) median_j m_j and m_i > ||unchanged|| / 10, with s the spread of the log m_j
  (1.4826 times the median deviation from their median). The second condition spares a client that still learns while
  the others have settled;
- it repeats another one: the cosine with it is above 0.99999, and their norms differ by less than 0.001 %. Of two such
  the first counts, of three or more none: colluding clients may send identical updates;
- it is opposed to the others: its cosine c_ij with at least one of them is below -0.8, and its score, sum_j c_ij^3 /
  sum_j |c_ij|^3, is below 0 and 0.3 below the median score. With few labels per client honest updates point in all
  directions, but a reversed one is nearly opposite to those of similar data, and cubes let these decide. The worst goes
  first, then the scores are computed without it, until no update is opposed or half of them are gone;
- it is reversed: where all clients train in every round, see :mod:`pfedbred.engine.responses`.

Fewer than six updates have no majority to compare with: of them only norms and responses are looked at. Only norms
count for a method whose updates have no common direction (``comparable``), and in a run whose screening is by ``norms``
alone: where there are two labels and clients hold one of them, honest updates are opposed as well. A model with one
output has only two ways to go, and honest clients pull it both ways: there no update counts as opposed.
If the server does not
average, clients can hardly harm each other, and an update is out of line only if m_i > 100 median_j m_j and
m_i > ||unchanged||. Numbers whose squares overflow count as not finite.

What it catches, and what not, is measured by ``benchmarks/attacks.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.aggregation.base import along_first, flat_rows
from pfedbred.aggregation.median import masked_median
from pfedbred.engine import responses
from pfedbred.engine.evaluation import Evaluation
from pfedbred.engine.responses import Responses
from pfedbred.types import Array, Tree

FAR, LONG = 100, 5  # times the median norm, without and with an average
_DEVIATIONS, _LARGE = 5, 0.1
_SIGMA = 1.4826  # the standard deviation of a Gaussian is its median deviation times this
_SAME = 0.99999
_OPPOSITE, _APART = -0.8, 0.3
_FEWEST = 6  # updates that can be compared
_COMPARED = 64  # of a large cohort, all are compared with so many
STALLED = 10  # rounds skipped in a row after which a run is given up


class Norms(NamedTuple):
    """Of one client's round.

    Attributes:
      update: the norm of its update; NaN if its new state is not finite.
      reference: the norm of an unchanged upload; 0 if that is not known.
    """

    update: Array
    reference: Array


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
    finite = jnp.isfinite(update)
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
      heard: the responses with those of this round; None if none are kept.
      updates: by array; None if they have no direction.
    """

    valid: Array
    heard: Responses | None
    updates: list[Array] | None


def compare(
    unchanged: Tree,
    uploads: Tree,
    norms: Array,
    numbers: Array,
    counted: Array,
    before: Responses | None,
    directions: bool = True,
) -> Compared:
    """Which of the ``counted`` updates are in line with the others, and with how others respond to the server.

    Args:
      unchanged: uploads of clients whose training changed nothing, the clients along the first axis.
      uploads: those they sent.
      norms: of the updates.
      numbers: of the clients.
      counted: whose update is valid so far.
      before: the responses up to the last round, if they are kept.
      directions: whether one opposed to the others is out of line.
    """
    updates = differences(unchanged, uploads)
    if updates is None:
        return Compared(counted, before, None)
    heard, valid = before, counted
    if before is not None:
        heard = responses.heard(before, updates, norms, numbers, counted)
        valid = counted & ~responses.reversed_(heard.averages, heard.times)[numbers]
    return Compared(in_line(updates, norms, valid, directions), heard, updates)


def remember(found: Compared, before: Tree, after: Tree, numbers: Array, counted: Array) -> Responses | None:
    """The responses for the next round; an unchanged client uploads ``before`` and ``after`` the server's step."""
    step = differences(before, after)
    if found.heard is None or found.updates is None or step is None:
        return found.heard
    return responses.stepped(found.heard, step, found.updates, numbers, counted)


def no_responses(unchanged: Tree, clients: int) -> Responses | None:
    """Before the first round, of so many clients that upload ``unchanged`` if their training changes nothing.

    None if that is nothing at all: a linear model has no body to share under personal heads.
    """
    numbers = _numbers(unchanged)
    return responses.unknown(numbers, clients) if numbers else None


def in_line(updates: Sequence[Array], norms: Array, counted: Array, directions: bool = True) -> Array:
    """Which of the ``counted`` updates, given with their norms, are no copies of others and not opposed to them.

    With ``directions`` false, they may be opposed.
    """
    if len(norms) < _FEWEST:
        return counted
    columns = np.unique(np.linspace(0, len(norms) - 1, min(len(norms), _COMPARED)).round().astype(int))
    cosines = _cosines(updates, jnp.where(counted & (norms > 0), norms, jnp.inf), columns)
    found = _not_copied(cosines, columns, norms, counted)
    found = _not_opposed(cosines, columns, found) if directions else found
    return jnp.where(jnp.sum(counted) < _FEWEST, counted, found)


def _cosines(updates: Sequence[Array], norms: Array, columns: np.ndarray) -> Array:
    """Of each client's update (rows) with those of some (columns); 0 with itself, and where the norm is infinite."""
    found = jnp.zeros((len(norms), len(columns)), norms.dtype)
    for update in updates:
        # An update that does not count may be NaN, and NaN / inf is NaN.
        each = jnp.where(along_first(jnp.isfinite(norms), update), update / along_first(norms, update), 0)
        flat = flat_rows(each).astype(norms.dtype)
        some = flat if len(columns) == len(flat) else flat[columns]
        found += jnp.matmul(flat, some.T, precision=jax.lax.Precision.HIGHEST)
    return found.at[columns, np.arange(len(columns))].set(0)


def _not_copied(cosines: Array, columns: np.ndarray, norms: Array, counted: Array) -> Array:
    """Of two equal updates the first counts, of more none, unless most updates are equal."""
    alike = (cosines > _SAME) & (jnp.abs(norms[:, None] / norms[columns] - 1) < 1 - _SAME) & counted[columns]
    second = jnp.any(alike & (columns < np.arange(len(norms))[:, None]), axis=1)
    copies = counted & (second | (jnp.sum(alike, axis=1) > 1))
    return counted & ~(copies & (2 * jnp.sum(copies) < jnp.sum(counted)))


def _not_opposed(cosines: Array, columns: np.ndarray, counted: Array) -> Array:
    """Leaves out one opposed update after another, the worst first, while more than half of all count."""
    cubes, opposite = cosines**3, cosines < _OPPOSITE

    def worst(counted: Array) -> tuple[Array, Array]:
        """The update with the lowest score of those opposite to another, and whether it is opposed to all."""
        among = counted[columns].astype(cubes.dtype)
        scores = cubes @ among / jnp.maximum(jnp.abs(cubes) @ among, jnp.finfo(cubes.dtype).tiny)
        suspect = counted & jnp.any(opposite & counted[columns], axis=1)
        lowest = jnp.argmin(jnp.where(suspect, scores, jnp.inf))
        apart = masked_median(scores, counted) - scores[lowest]
        return lowest, suspect[lowest] & (scores[lowest] < 0) & (apart > _APART)

    def more(counted: Array) -> Array:
        return worst(counted)[1] & (2 * jnp.sum(counted) > len(counted))

    def without(counted: Array) -> Array:
        return jax.lax.while_loop(more, lambda counted: counted.at[worst(counted)[0]].set(False), counted)

    return jax.lax.cond(jnp.any(opposite), without, lambda counted: counted, counted)  # hardly ever needed


def finite(trees: Tree) -> Array:
    """Of each entry along the first axis: whether it is finite."""
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
        """What has been added since then."""
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
    """Of each seed: whether its last ten rounds (all ``rounds``, if fewer) were skipped.

    By then every client has been rejected on several different minibatches, and the run makes no progress.
    """
    return np.asarray(skipped_in_row) >= min(STALLED, rounds)


def diverged(scores: Evaluation, skipped_in_row: Sequence[int], rounds: int) -> np.ndarray:
    """Of each seed: whether it has diverged, that is, a training loss is not finite, or the run has stalled."""
    lost = ~(np.isfinite(scores.global_.train.loss) & np.isfinite(scores.personal.train.loss))
    return lost | stalled(skipped_in_row, rounds)
