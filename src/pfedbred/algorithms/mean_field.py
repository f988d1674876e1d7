"""Mean-field Gaussians over params: every entry has its own mean and deviation, and all are independent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pfedbred.data.minibatches import Batch
from pfedbred.types import Array, Tree

_PURPOSE = 2**16  # folded into a minibatch's key, from which networks draw as well


class MeanField(NamedTuple):
    """q = N(mean, sigma^2) with sigma = softplus(rho), entry by entry."""

    mean: Tree
    rho: Tree

    @property
    def sigma(self) -> Tree:
        """The standard deviations."""
        return jax.tree.map(jax.nn.softplus, self.rho)


def around(mean: Tree, sigma: Any) -> MeanField:
    """The distribution around this mean whose deviations are all ``sigma``."""
    return MeanField(mean, jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.log(jnp.expm1(sigma))), mean))


def noise(batch: Batch, like: Tree, samples: int) -> Tree:
    """Standard normal numbers for this minibatch: ``samples`` trees like this one, along the first axis.

    A minibatch without a key gets the same numbers every time; the engine gives each minibatch its own key.
    """
    key = jax.random.fold_in(jax.random.key(0) if batch.key is None else batch.key, _PURPOSE)
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    drawn = [
        jax.random.normal(each, (samples, *leaf.shape), leaf.dtype) for each, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, drawn)


def expected(loss: Callable[[Tree], Array], q: MeanField, batch: Batch, samples: int) -> Array:
    r"""E_q loss, by the mean over samples: 1/K sum_k loss(mean + sigma e_k), e_k standard normal.

    It can be differentiated in q: this is the reparameterisation trick.

    References: Blundell, Cornebise, Kavukcuoglu and Wierstra, "Weight Uncertainty in Neural Networks", ICML 2015.
    """

    def of(drawn: Tree) -> Array:
        return loss(jax.tree.map(lambda mean, sigma, each: mean + sigma * each, q.mean, q.sigma, drawn))

    drawn = noise(batch, q.mean, samples)
    if samples == 1:  # without an axis that convolutions would have to carry along
        return of(jax.tree.map(lambda leaf: leaf[0], drawn))
    return jnp.mean(jax.vmap(of)(drawn))


def divergence(q: MeanField, mean: Tree, sigma: Tree) -> Array:
    r"""KL(q || N(mean, sigma^2)) = sum log(sigma / sigma_q) + (sigma_q^2 + (mean_q - mean)^2) / (2 sigma^2) - 1/2."""

    def of(mean_q: Array, sigma_q: Array, mean: Array, sigma: Array) -> Array:
        ratio, distance = sigma_q / sigma, (mean_q - mean) / sigma
        return jnp.sum((ratio**2 + distance**2 - 1) / 2 - jnp.log(ratio))

    return optax.tree.sum(jax.tree.map(of, q.mean, q.sigma, mean, sigma))
