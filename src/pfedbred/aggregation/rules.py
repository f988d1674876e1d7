r"""How a server makes one of many uploads: the weighted mean, or a rule that some bad uploads cannot lead astray.

Every rule is a pure function of uploads along the first axis, their weights (of those taken they sum to one), and which
of them are taken; what is not taken must be finite and counts for nothing. With n uploads taken, of which a part
``outliers`` may be bad, f = floor(outliers n):

    mean      sum_i p_i u_i
    median    of each entry, over clients; weights do not count            Yin et al. 2018, Definition 1
    trimmed   of each entry, without the f lowest and the f highest, by weight      Yin et al. 2018, Definition 2
    clipped   c + sum_i p_i d_i min(1, tau / ||d_i||),  d_i = u_i - c,  tau = median_i ||d_i||
              about the server's present model c                           Karimireddy et al. 2021, one step of Eq. (CC)
    krum      by weight, of the n - f uploads with the least sum of squared distances to their n - f - 2 nearest
                                                                           Blanchard et al. 2017, multi-Krum

References: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018. Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent", NeurIPS 2017. Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization",
ICML 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError
from pfedbred.types import Array, Tree

Name = Literal["mean", "median", "trimmed", "clipped", "krum"]
NAMES: tuple[str, ...] = get_args(Name)


@jax.tree_util.register_static
@dataclass(frozen=True)
class Rule:
    """How uploads are averaged: by which rule, and which part of them it may leave out."""

    name: Name = "mean"
    outliers: float = 0.2

    def suits(self, averages: bool, algorithm: str) -> None:
        """Refuses a rule where a server has no average to make by it."""
        if self.name != "mean" and not averages:
            raise SettingError(
                f"aggregate must be mean for {algorithm}, not {self.name}: its server does not average uploads"
            )

    def average(self, uploads: Tree, weights: Array, taken: Array, centre: Tree | None) -> Tree:
        """One of many."""
        if self.name == "mean":
            return mean(uploads, weights)
        if self.name == "median":
            return jax.tree.map(lambda leaf: masked_median(leaf, taken), uploads)
        if self.name == "trimmed":
            return trimmed(uploads, weights, taken, self.outliers)
        if self.name == "krum":
            return krum(uploads, weights, taken, self.outliers)
        if centre is None:
            raise SettingError(
                "aggregate cannot be clipped here: the algorithm's server does not say about which model "
                "(uploads.average(around=...))"
            )
        return clipped(uploads, weights, taken, centre)


def mean(uploads: Tree, weights: Array) -> Tree:
    """sum_i p_i u_i."""
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), uploads)


def masked_median(values: Array, taken: Array) -> Array:
    """The median over the first axis, of those taken: the middle one, or the mean of the middle two. NaN of none."""
    ordered = jnp.sort(jnp.where(_along(taken, values), values, jnp.inf), axis=0)  # the others come last
    count = jnp.sum(taken)
    low, high = (ordered[jnp.maximum(place, 0)] for place in ((count - 1) // 2, count // 2))
    middle = low + (high - low) / 2  # their sum could overflow
    return jnp.where(count > 0, jnp.where(low == high, low, middle), jnp.nan)


def trimmed(uploads: Tree, weights: Array, taken: Array, outliers: float) -> Tree:
    """Of each entry the weighted mean, without the f lowest and the f highest. Of equals the first count as lower."""
    count = jnp.sum(taken)
    left_out = _part(outliers, taken)

    def entry(leaf: Array) -> Array:
        values = jnp.where(_along(taken, leaf), leaf, jnp.inf)
        shares = jnp.broadcast_to(_along(weights.astype(leaf.dtype), leaf), leaf.shape)
        values, shares = jax.lax.sort((values, shares), dimension=0, num_keys=1)
        rank = _along(jnp.arange(len(leaf)), leaf)
        kept = (rank >= left_out) & (rank < count - left_out)
        shares = jnp.where(kept, shares, 0)
        return jnp.sum(shares * jnp.where(kept, values, 0), axis=0) / jnp.sum(shares, axis=0)

    return jax.tree.map(entry, uploads)


def clipped(uploads: Tree, weights: Array, taken: Array, centre: Tree) -> Tree:
    """The weighted mean of updates from the centre, none longer than the median one."""
    updates = jax.tree.map(lambda leaf, middle: leaf - middle, uploads, centre)
    lengths = jnp.sqrt(sum(jnp.sum(_rows(leaf) ** 2, axis=1) for leaf in jax.tree.leaves(updates)))
    limit = masked_median(lengths, taken)
    shorter = jnp.where(lengths > limit, limit / jnp.where(lengths > 0, lengths, 1), 1)
    return jax.tree.map(jnp.add, centre, mean(updates, weights * shorter))


def krum(uploads: Tree, weights: Array, taken: Array, outliers: float) -> Tree:
    """The weighted mean of the n - f uploads that have their n - f - 2 nearest (at least one) nearest by.

    Of two that are equally near, the first is taken.
    """
    count = jnp.sum(taken)
    kept = count - _part(outliers, taken)
    neighbours = jnp.minimum(jnp.maximum(kept - 2, 1), count - 1)
    pairs = taken[:, None] & taken[None, :] & ~jnp.eye(len(taken), dtype=bool)
    distances = jnp.sort(jnp.where(pairs, squared_distances(uploads), jnp.inf), axis=1)
    near = jnp.arange(len(taken)) < neighbours
    scores = jnp.where(taken, jnp.sum(jnp.where(near, distances, 0), axis=1), jnp.inf)
    ranks = jnp.argsort(jnp.argsort(scores, stable=True), stable=True)
    chosen = jnp.where(taken & (ranks < kept), weights, 0)
    return mean(uploads, chosen / jnp.sum(chosen))


def inner_products(models: Tree) -> Array:
    """<w_i, w_j> for all pairs."""
    flat = [_rows(leaf) for leaf in jax.tree.leaves(models)]
    return sum((leaf @ leaf.T for leaf in flat[1:]), flat[0] @ flat[0].T)


def squared_distances(models: Tree) -> Array:
    """||w_i - w_j||^2 for all pairs, without an array of pairs times weights.

    From inner products, of models moved to have mean zero: near each other and far from the origin, their inner
    products would cancel to noise.
    """
    products = inner_products(jax.tree.map(lambda leaf: leaf - jnp.mean(leaf, axis=0), models))
    squares = jnp.diagonal(products)
    return jnp.maximum(squares[:, None] + squares[None, :] - 2 * products, 0)


def _part(outliers: float, taken: Array) -> Array:
    """floor(outliers n), n being how many are taken. From a table: 0.29 * 100 is below 29 in binary."""
    return jnp.asarray([math.floor(outliers * n + 1e-9) for n in range(len(taken) + 1)])[jnp.sum(taken)]


def _rows(leaf: Array) -> Array:
    return leaf.reshape(leaf.shape[0], -1)


def _along(vector: Array, leaf: Array) -> Array:
    """The vector with as many axes as the leaf, along the first."""
    return vector.reshape(-1, *(1,) * (leaf.ndim - 1))
