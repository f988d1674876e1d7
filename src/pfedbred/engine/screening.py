r"""Who is sick: clients whose update is not finite, or far out of line with the others of the round.

A client's update has the length m_i = ||upload - unmoved||, where ``unmoved`` is what it would have sent had it learnt
nothing. Of the clients that train in a round, i is sick if

    its upload or its new state is not finite,  or  m_i > 100 median_j m_j  and  m_i > ||unmoved||

with the median over those that are finite; if that is 0, none is out of line. The second condition spares a client
that still learns while others have settled: to do harm, an update must be longer than the model it is added to.
Numbers whose squares overflow count as not finite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.aggregation.rules import masked_median
from pfedbred.engine.evaluation import Evaluation
from pfedbred.types import Array, Tree

FAR = 100
STALLED = 10  # rounds skipped in a row: the run goes nowhere


class Vitals(NamedTuple):
    """Of one client in one round.

    Attributes:
      moved: the length of its update; NaN if its new state is not finite.
      size: of what it would have sent had it learnt nothing; 0 if that is not known.
    """

    moved: Array
    size: Array


def examine(unmoved: Tree, upload: Tree, state: Tree) -> Vitals:
    """Takes a client's vitals. If ``unmoved`` is not like the upload, the upload itself is measured."""
    like = _shapes(unmoved) == _shapes(upload)
    sent, start = _numbers(upload), _numbers(unmoved)
    moved = _norm([new - old for new, old in zip(sent, start, strict=True)] if like else sent)
    only_kept = [leaf for leaf in _numbers(state) if not any(leaf is each for each in sent)]  # the others are seen to
    finite = jnp.isfinite(_norm(only_kept))
    return Vitals(jnp.where(finite, moved, jnp.nan), _norm(start) if like else jnp.zeros_like(moved))


def sound(vitals: Vitals) -> Array:
    """Which clients are not sick; vitals are along the first axis."""
    moved, size = vitals
    finite = jnp.isfinite(moved)
    middle = masked_median(moved, finite)
    out_of_line = (moved > FAR * middle) & (moved > size) & (middle > 0)
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
    """Its arrays of numbers; keys, flags and counters are none."""
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


class Health(NamedTuple):
    """Of each seed.

    Attributes:
      left_out: clients that were sick, by name, and in how many rounds.
      skipped: rounds without enough sound clients, which changed nothing on the server.
      in_row: how many of those are the last ones.
    """

    left_out: list[dict[str, int]]
    skipped: list[int]
    in_row: list[int]

    def since(self, before: Health) -> Health:
        """What has happened since."""
        new = [
            {name: times - then.get(name, 0) for name, times in now.items() if times > then.get(name, 0)}
            for now, then in zip(self.left_out, before.left_out, strict=True)
        ]
        return Health(new, [now - then for now, then in zip(self.skipped, before.skipped, strict=True)], self.in_row)


def total(parts: Sequence[Health], seeds: int) -> Health:
    """All that has happened in several stretches, one after another, of so many seeds."""
    left_out: list[Counter[str]] = [Counter() for _ in range(seeds)]
    skipped = [0] * seeds
    for part in parts:
        for seed in range(seeds):
            left_out[seed].update(part.left_out[seed])
            skipped[seed] += part.skipped[seed]
    return Health([dict(each) for each in left_out], skipped, parts[-1].in_row if parts else [0] * seeds)


def by_name(times: Iterable[tuple[int, int]], names: Sequence[str] | None) -> dict[str, int]:
    """Counts by number as counts by name, those that are not 0; a client without a name goes by its number."""
    found: Counter[str] = Counter()  # two clients may have one name
    for i, count in times:
        if count:
            found[names[i] if names else str(i)] += int(count)
    return dict(found)


def stalled(in_row: Sequence[int], rounds: int) -> np.ndarray:
    """Of each seed: whether its last ten rounds were skipped (all ``rounds``, if they are fewer).

    Its clients are sick with whatever minibatches: it goes nowhere.
    """
    return np.asarray(in_row) >= min(STALLED, rounds)


def astray(scores: Evaluation, in_row: Sequence[int], rounds: int) -> np.ndarray:
    """Of each seed: whether it has diverged, that is, a training loss is not finite, or it has stalled."""
    lost = ~(np.isfinite(scores.global_.train.loss) & np.isfinite(scores.personal.train.loss))
    return lost | stalled(in_row, rounds)
