"""A prior whose strength differs between the parts of the params."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from pfedbred.bregman.families.base import Penalised, Prior
from pfedbred.types import Array, Tree


def weighted(prior: Prior, weights: Tree) -> Prior:
    """A separable prior times one number per array of the params or, if it is spherical, one per entry."""

    def part(personal: Array, mean: Array, weight: Array) -> Array:
        if jnp.ndim(weight) == 0:
            return weight * prior.regulariser(personal, mean)
        return jnp.sum(weight * prior.curvature(mean) * (personal - mean) ** 2) / 2

    def penalty(personal: Tree, mean: Tree) -> Array:
        return optax.tree.sum(jax.tree.map(part, personal, mean, weights))

    return Penalised(f"{prior.name}-weighted", penalty)
