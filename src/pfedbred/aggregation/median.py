"""The coordinate-wise median."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pfedbred.aggregation.base import Gathered, Rule, along_first
from pfedbred.types import Array, Tree


def median() -> Rule:
    """The median of every entry over the clients; averaging weights are ignored.

    References: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates", ICML 2018, Definition 1.
    """

    def rule(gathered: Gathered) -> Tree:
        return jax.tree.map(lambda leaf: masked_median(leaf, gathered.valid), gathered.uploads)

    return rule


def masked_median(values: Array, valid: Array) -> Array:
    """The median over the first axis of the valid entries: the middle one, or the mean of the middle two.

    NaN if none is valid.
    """
    ordered = jnp.sort(jnp.where(along_first(valid, values), values, jnp.inf), axis=0)  # invalid entries come last
    count = jnp.sum(valid)
    low, high = (ordered[jnp.maximum(place, 0)] for place in ((count - 1) // 2, count // 2))
    middle = low + (high - low) / 2  # their sum could overflow
    return jnp.where(count > 0, jnp.where(low == high, low, middle), jnp.nan)
