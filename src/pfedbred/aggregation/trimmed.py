"""The trimmed mean."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pfedbred.aggregation.base import Gathered, Rule, along_first, outlier_count
from pfedbred.settings.values import Minority
from pfedbred.types import Array, Tree


def trimmed(*, outliers: Minority = 0.2) -> Rule:
    """The weighted mean of every entry without its f lowest and f highest values, f = floor(outliers n).

    Among equal values, those of earlier clients count as lower.

    Args:
      outliers: the fraction of the uploads to drop at each end.

    References: Yin et al., ICML 2018, Definition 2.
    """

    def rule(gathered: Gathered) -> Tree:
        valid, weights = gathered.valid, gathered.weights
        count, dropped = jnp.sum(valid), outlier_count(outliers, valid)

        def entry(leaf: Array) -> Array:
            values = jnp.where(along_first(valid, leaf), leaf, jnp.inf)
            shares = jnp.broadcast_to(along_first(weights.astype(leaf.dtype), leaf), leaf.shape)
            values, shares = jax.lax.sort((values, shares), dimension=0, num_keys=1)
            rank = along_first(jnp.arange(len(leaf)), leaf)
            kept = (rank >= dropped) & (rank < count - dropped)
            shares = jnp.where(kept, shares, 0)
            return jnp.sum(shares * jnp.where(kept, values, 0), axis=0) / jnp.sum(shares, axis=0)

        return jax.tree.map(entry, gathered.uploads)

    return rule
