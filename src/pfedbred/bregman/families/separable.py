"""Families whose log-partition function is a sum over entries."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from pfedbred.bregman.families.base import Domain, Family, identity
from pfedbred.types import Array, Key, Tree


def separable(
    name: str,
    *,
    g: Callable[[Array], Array],
    grad_g: Callable[[Array], Array],
    conjugate: Callable[[Array], Array],
    grad_conjugate: Callable[[Array], Array],
    divergence: Callable[[Array, Array], Array],
    conjugate_divergence: Callable[[Array, Array], Array],
    domain: Domain,
    sample: Callable[[Key, Array, float], Array],
    to_natural: Callable[[Array], Array] | None = None,
    from_natural: Callable[[Array], Array] | None = None,
    penalty: Callable[[Array, Array], Array] | None = None,
    spherical: bool = False,
) -> Family:
    """A family whose g is a sum over entries, from functions of one entry.

    The divergences are given per entry, in forms that suffer less cancellation than their definition: in float32,
    g(a) - g(b) - <grad g(b), a - b> over a network's params is mostly rounding error when a is near b.
    """

    def divide(s: Array, v: Array) -> Array:
        return v / jax.jvp(grad_g, (s,), (jnp.ones_like(s),))[1]

    def total(f: Callable[..., Array]) -> Callable[..., Array]:
        return lambda *trees: optax.tree.sum(jax.tree.map(f, *trees))

    def each(f: Callable[..., Array] | None) -> Callable[..., Tree]:
        return identity if f is None else lambda *trees: jax.tree.map(f, *trees)

    def draw(key: Key, s: Tree, lam: float = 1.0) -> Tree:
        return jax.tree.map(lambda k, leaf: sample(k, leaf, lam), optax.tree.split_key_like(key, s), s)

    return Family(
        name=name,
        g=total(g),
        grad_g=each(grad_g),
        conjugate=total(conjugate),
        grad_conjugate=each(grad_conjugate),
        divergence=total(divergence),
        conjugate_divergence=total(conjugate_divergence),
        domain=domain,
        solve_hessian=each(divide),
        sample=draw,
        to_natural=each(to_natural),
        from_natural=each(from_natural),
        penalty=None if penalty is None else total(penalty),
        spherical=spherical,
        separable=True,
    )
