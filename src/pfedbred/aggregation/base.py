"""What an aggregation rule is: a pure function that combines a round's uploads into one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp

from pfedbred.types import Array, Key, Tree


class Gathered(NamedTuple):
    """What a rule sees of a round. All but ``center`` and ``key`` have one entry per selected client (first axis).

    Attributes:
      uploads: what the clients sent; zeros where an upload was rejected.
      weights: averaging weights, which sum to one; 0 for rejected uploads.
      valid: which uploads count.
      center: the server's current value of the result; None if the algorithm does not provide it.
      key: randomness for this round, for rules that add noise or permute the clients.
    """

    uploads: Tree
    weights: Array
    valid: Array
    center: Tree | None
    key: Key


Rule: TypeAlias = Callable[[Gathered], Tree]
"""``rule(gathered)`` is one tree, shaped like one upload."""


def outlier_count(fraction: float, valid: Array) -> Array:
    """floor(fraction n) of n valid uploads. Read from a table, since 0.29 * 100 is below 29 in binary."""
    return jnp.asarray([math.floor(fraction * n + 1e-9) for n in range(len(valid) + 1)])[jnp.sum(valid)]


def along_first(vector: Array, leaf: Array) -> Array:
    """``vector`` with as many axes as ``leaf``, along the first."""
    return vector.reshape(-1, *(1,) * (leaf.ndim - 1))


def flat_rows(leaf: Array) -> Array:
    """One row per client."""
    return leaf.reshape(leaf.shape[0], -1)
