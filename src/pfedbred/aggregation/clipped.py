"""Centered clipping."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pfedbred.aggregation.base import Gathered, Rule, flat_rows
from pfedbred.aggregation.mean import weighted_sum
from pfedbred.aggregation.median import masked_median
from pfedbred.errors import SettingError
from pfedbred.types import Tree


def clipped() -> Rule:
    """c + sum_i p_i d_i min(1, tau / ||d_i||) with d_i = u_i - c and tau = median_i ||d_i||, with c the current model.

    References: Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization", ICML 2021, one
    step of Eq. (CC).
    """

    def rule(gathered: Gathered) -> Tree:
        center = gathered.center
        if center is None:
            raise SettingError(
                "the rule 'clipped' needs the model to clip around, which this algorithm's server does not provide "
                "(uploads.average(around=...))"
            )
        updates = jax.tree.map(lambda leaf, middle: leaf - middle, gathered.uploads, center)
        norms = jnp.sqrt(sum(jnp.sum(flat_rows(leaf) ** 2, axis=1) for leaf in jax.tree.leaves(updates)))
        limit = masked_median(norms, gathered.valid)
        shrink = jnp.where(norms > limit, limit / jnp.where(norms > 0, norms, 1), 1)
        return jax.tree.map(jnp.add, center, weighted_sum(updates, gathered.weights * shrink))

    return rule
