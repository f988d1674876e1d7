"""The Poisson family."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

from pfedbred.bregman.families.base import REALS, Domain, Family
from pfedbred.bregman.families.separable import separable
from pfedbred.types import Array, Key, Tree


def poisson() -> Family:
    r"""Poisson family: g(s) = e^s, g*(x) = x ln x - x.

    D_{g*}(x, y) = x ln(x / y) - x + y, and D_g(a, b) = e^b (e^{a-b} - 1 - (a - b)). The params are log rates. A
    divergence or a slope that overflows its type of number is capped at the largest of that type.
    """

    def sample(key: Key, s: Array, lam: float) -> Array:
        return jax.random.poisson(key, lam * jnp.exp(s)).astype(s.dtype) / jnp.asarray(lam, s.dtype)

    family = separable(
        "poisson",
        g=jnp.exp,
        grad_g=jnp.exp,
        conjugate=lambda x: xlogy(x, x) - x,
        grad_conjugate=jnp.log,
        divergence=_divergence,
        conjugate_divergence=lambda x, y: xlogy(x, x / y) - x + y,
        domain=Domain(REALS, (0.0, math.inf), "{0, 1, 2, ...}"),
        sample=sample,
    )

    def divergence(a: Tree, b: Tree) -> Array:
        return _capped(family.divergence(a, b))

    return dataclasses.replace(family, divergence=divergence)


@jax.custom_jvp
def _capped(total: Array) -> Array:
    """A sum of finite numbers, capped at the largest number; its slopes are those of the sum all the same."""
    return jnp.minimum(total, jnp.finfo(total.dtype).max)


@_capped.defjvp
def _slope_of_capped(at: tuple[Array], towards: tuple[Array]) -> tuple[Array, Array]:
    return _capped(*at), towards[0]


@jax.custom_jvp
def _divergence(a: Array, b: Array) -> Array:
    """Each entry's divergence, in forms that neither cancel nor overflow before the divergence does, with d = a - b:

    d < 0: e^b (e^d - 1 - d);   d > 1: e^a (1 - (1 + d) e^{-d}).
    """
    d = a - b
    near = jnp.minimum(d, 1)
    below = _times(_exp(b), jnp.expm1(near) - near)
    far = jnp.clip(d, 1, 1_000)  # beyond, the factor is 1
    return jnp.where(d < 1, below, _exp(a) * (1 - (1 + far) * jnp.exp(-far)))


@_divergence.defjvp
def _slope(at: tuple[Array, Array], towards: tuple[Array, Array]) -> tuple[Array, Array]:
    """dD/da = e^a - e^b, dD/db = -e^b d: by hand, because those of the branch not taken may be infinite."""
    a, b = at
    d = a - b
    by_a = jnp.where(d < 0, _exp(b) * jnp.expm1(jnp.minimum(d, 0)), -_exp(a) * jnp.expm1(-jnp.maximum(d, 0)))
    by_b = -_times(_exp(b), d)
    return _divergence(a, b), by_a * towards[0] + by_b * towards[1]


def _exp(s: Array) -> Array:
    """e^s, capped just below the largest number."""
    kind = jnp.finfo(s.dtype)
    return jnp.exp(jnp.minimum(s, math.log(float(kind.max)) * (1 - 2 * float(kind.eps))))


def _times(positive: Array, other: Array) -> Array:
    """The product, capped just below the largest number in magnitude."""
    most = jax.lax.stop_gradient(_largest(positive) / jnp.maximum(positive, 1))  # its slope overflows
    return positive * jnp.clip(other, -most, most)


def _largest(like: Array) -> Array:
    """The largest number of a type, with a margin for rounding."""
    kind = jnp.finfo(like.dtype)
    return jnp.asarray((1 - 8 * float(kind.eps)) * float(kind.max), like.dtype)
