"""The Bernoulli family."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

from pfedbred.bregman.families.base import REALS, Domain, Family
from pfedbred.bregman.families.separable import separable
from pfedbred.errors import SettingError
from pfedbred.types import Array, Key


def bernoulli() -> Family:
    r"""Bernoulli family: g(s) = ln(1 + e^s), g*(x) = x ln x + (1 - x) ln(1 - x).

    D_{g*}(x, y) = x ln(x / y) + (1 - x) ln((1 - x) / (1 - y)). The params are logits. The scaled family
    exists for integer lam only: it is the mean of lam tosses.
    """

    def divergence(a: Array, b: Array) -> Array:
        near = jnp.clip(a - b, -1, 1)
        close = jnp.log1p(jax.nn.sigmoid(b) * jnp.expm1(near)) - jax.nn.sigmoid(b) * near
        far = jax.nn.softplus(a) - jax.nn.softplus(b) - jax.nn.sigmoid(b) * (a - b)
        return jnp.where(jnp.abs(a - b) < 1, close, far)

    def conjugate_divergence(x: Array, y: Array) -> Array:
        return xlogy(x, x / y) + xlogy(1 - x, (1 - x) / (1 - y))

    def sample(key: Key, s: Array, lam: float) -> Array:
        if lam < 1 or lam != int(lam):
            raise SettingError(f"a scaled Bernoulli needs an integer lam >= 1, not {lam:g}")
        tosses = jax.random.bernoulli(key, jax.nn.sigmoid(s), (int(lam), *s.shape))
        return jnp.mean(tosses, axis=0, dtype=s.dtype)

    return separable(
        "bernoulli",
        g=jax.nn.softplus,
        grad_g=jax.nn.sigmoid,
        conjugate=lambda x: xlogy(x, x) + xlogy(1 - x, 1 - x),
        grad_conjugate=lambda x: jnp.log(x) - jnp.log1p(-x),
        divergence=divergence,
        conjugate_divergence=conjugate_divergence,
        domain=Domain(REALS, (0.0, 1.0), "{0, 1}"),
        sample=sample,
    )
