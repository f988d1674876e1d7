r"""Screening: which clients' updates of a round are valid.

An update is rejected if it is not finite or far out of line with the others of the round. With the norms
m_i = ||upload - unchanged||, where ``unchanged`` is the upload of a client whose training changed nothing, the update
of client i is rejected if

    its upload or its new state is not finite,  or  m_i > 100 median_j m_j  and  m_i > ||unchanged||

with the median over the finite updates of the round; if that is 0, no norm is out of line. The second condition spares
a client that still learns while others have settled: to do harm, an update must be longer than the model it is added
to. Numbers whose squares overflow count as not finite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.aggregation.median import masked_median
from pfedbred.engine.evaluation import Evaluation
from pfedbred.types import Array, Tree

FAR = 100
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
    alike = _shapes(unchanged) == _shapes(upload)
    sent, start = _numbers(upload), _numbers(unchanged)
    update = _norm([new - old for new, old in zip(sent, start, strict=True)] if alike else sent)
    only_kept = [leaf for leaf in _numbers(state) if not any(leaf is each for each in sent)]  # the rest is in `update`
    finite = jnp.isfinite(_norm(only_kept))
    return Norms(jnp.where(finite, update, jnp.nan), _norm(start) if alike else jnp.zeros_like(update))


def valid(norms: Norms) -> Array:
    """Which updates are valid, from the norms of all clients along the first axis."""
    update, reference = norms
    finite = jnp.isfinite(update)
    middle = masked_median(update, finite)
    out_of_line = (update > FAR * middle) & (update > reference) & (middle > 0)
    return finite & ~out_of_line


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
