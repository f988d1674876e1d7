"""Multi-Krum."""

from __future__ import annotations

import jax.numpy as jnp

from pfedbred.aggregation.base import Gathered, Rule, outlier_count
from pfedbred.aggregation.mean import weighted_sum
from pfedbred.aggregation.pairwise import squared_distances
from pfedbred.settings.values import Minority
from pfedbred.types import Tree


def krum(*, outliers: Minority = 0.2) -> Rule:
    """The weighted mean of the n - f uploads with the least sum of squared distances to their n - f - 2 nearest.

    f = floor(outliers n); at least one neighbour counts. Ties go to earlier clients.

    Args:
      outliers: the fraction of the uploads to drop.

    References: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent", NeurIPS 2017 (multi-Krum).
    """

    def rule(gathered: Gathered) -> Tree:
        valid = gathered.valid
        count = jnp.sum(valid)
        kept = count - outlier_count(outliers, valid)
        neighbours = jnp.minimum(jnp.maximum(kept - 2, 1), count - 1)
        pairs = valid[:, None] & valid[None, :] & ~jnp.eye(len(valid), dtype=bool)
        distances = jnp.sort(jnp.where(pairs, squared_distances(gathered.uploads), jnp.inf), axis=1)
        near = jnp.arange(len(valid)) < neighbours
        scores = jnp.where(valid, jnp.sum(jnp.where(near, distances, 0), axis=1), jnp.inf)
        ranks = jnp.argsort(jnp.argsort(scores, stable=True), stable=True)
        chosen = jnp.where(valid & (ranks < kept), gathered.weights, 0)
        return weighted_sum(gathered.uploads, chosen / jnp.sum(chosen))

    return rule
