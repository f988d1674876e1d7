"""The weighted mean, E_I in Algorithm 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pfedbred.aggregation.base import Gathered, Rule
from pfedbred.types import Array, Tree


def mean() -> Rule:
    """sum_i p_i u_i, with p_i the averaging weights."""
    return weighted_mean


def weighted_mean(gathered: Gathered) -> Tree:
    """The rule ``mean``."""
    return weighted_sum(gathered.uploads, gathered.weights)


def weighted_sum(uploads: Tree, weights: Array) -> Tree:
    """sum_i p_i u_i."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), uploads)
