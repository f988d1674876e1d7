"""The Poisson family."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

from pfedbred.bregman.families.base import REALS, Domain, Family
from pfedbred.bregman.families.separable import separable
from pfedbred.types import Array, Key


def poisson() -> Family:
    r"""Poisson family: g(s) = e^s, g*(x) = x ln x - x.

    D_{g*}(x, y) = x ln(x / y) - x + y, and D_g(a, b) = e^b (e^{a-b} - 1 - (a - b)). The params are log rates.
    """

    def divergence(a: Array, b: Array) -> Array:
        near = jnp.clip(a - b, -1, 1)
        close = jnp.exp(b) * (jnp.expm1(near) - near)
        far = jnp.exp(a) - jnp.exp(b) * (1 + a - b)  # e^{a - b} would overflow before e^a does
        return jnp.where(jnp.abs(a - b) < 1, close, far)

    def sample(key: Key, s: Array, lam: float) -> Array:
        return jax.random.poisson(key, lam * jnp.exp(s)).astype(s.dtype) / jnp.asarray(lam, s.dtype)

    return separable(
        "poisson",
        g=jnp.exp,
        grad_g=jnp.exp,
        conjugate=lambda x: xlogy(x, x) - x,
        grad_conjugate=jnp.log,
        divergence=divergence,
        conjugate_divergence=lambda x, y: xlogy(x, x / y) - x + y,
        domain=Domain(REALS, (0.0, math.inf), "{0, 1, 2, ...}"),
        sample=sample,
    )
