"""Inner products and distances between all pairs of models."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pfedbred.aggregation.base import flat_rows
from pfedbred.types import Array, Tree


def inner_products(models: Tree) -> Array:
    """<w_i, w_j> for all pairs."""
    flat = [flat_rows(leaf) for leaf in jax.tree.leaves(models)]
    return sum((leaf @ leaf.T for leaf in flat[1:]), flat[0] @ flat[0].T)


def squared_distances(models: Tree) -> Array:
    """||w_i - w_j||^2 for all pairs, without an array of pairs times parameters.

    Computed from inner products of models shifted to mean zero: for models close to each other and far from the
    origin, unshifted inner products would cancel to noise.
    """
    products = inner_products(jax.tree.map(lambda leaf: leaf - jnp.mean(leaf, axis=0), models))
    squares = jnp.diagonal(products)
    return jnp.maximum(squares[:, None] + squares[None, :] - 2 * products, 0)
