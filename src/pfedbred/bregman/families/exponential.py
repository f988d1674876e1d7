"""The exponential family."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pfedbred.bregman.families.base import Domain, Family
from pfedbred.bregman.families.separable import separable
from pfedbred.types import Array, Key


def exponential() -> Family:
    r"""Exponential family: g(s) = -ln(-s) for s < 0, g*(x) = -ln x - 1.

    D_{g*}(x, y) = x / y - ln(x / y) - 1. The natural parameter is negative, so the params are u = ln(mean),
    s = -e^{-u}, and the regulariser in params is e^d - d - 1 with d = u_personal - u_mean.
    """

    def divergence(a: Array, b: Array) -> Array:
        log_ratio = jnp.log(a / b)
        return jnp.expm1(log_ratio) - log_ratio

    def sample(key: Key, s: Array, lam: float) -> Array:
        shape = jnp.asarray(lam, s.dtype)
        return jax.random.gamma(key, shape, s.shape, s.dtype) / (-s * shape)

    return separable(
        "exponential",
        g=lambda s: -jnp.log(-s),
        grad_g=lambda s: -1 / s,
        conjugate=lambda x: -jnp.log(x) - 1,
        grad_conjugate=lambda x: -1 / x,
        divergence=divergence,
        conjugate_divergence=lambda x, y: divergence(x, y),
        domain=Domain((-math.inf, 0.0), (0.0, math.inf), "positive reals"),
        sample=sample,
        to_natural=lambda u: -jnp.exp(-u),
        from_natural=lambda s: -jnp.log(-s),
        penalty=lambda personal, mean: jnp.expm1(personal - mean) - (personal - mean),
    )
