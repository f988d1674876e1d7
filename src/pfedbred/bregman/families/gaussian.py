"""The Gaussian family: spherical, diagonal or with a full Sigma."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from pfedbred.bregman.families.base import REALS, Domain, Family
from pfedbred.bregman.families.separable import separable
from pfedbred.errors import SettingError
from pfedbred.settings.values import LARGEST_FLOAT
from pfedbred.types import Array, Key, Tree


def gaussian(sigma: Any = None) -> Family:
    r"""Gaussian family: g(s) = 1/2 <s, Sigma^{-1} s>, g*(x) = 1/2 <x, Sigma x>.

    grad g(s) = Sigma^{-1} s, and D_{g*}(x, y) = 1/2 <x - y, Sigma (x - y)>. In params, which are natural parameters,
    the penalty is 1/2 <m - v, Sigma^{-1} (m - v)>: the larger Sigma, the freer the personal model.

    Args:
      sigma: ``None`` for the identity (the spherical Gaussian of the paper's experiments); a positive number; a
        vector or a pytree shaped like the params for a diagonal Sigma; a symmetric positive definite matrix for a
        full one. Vectors and matrices follow the order of ``jax.flatten_util.ravel_pytree(params)``.
    """
    if sigma is None:
        return _diagonal_gaussian("gaussian", 1.0)
    try:
        values = np.asarray(ravel_pytree(sigma)[0] if isinstance(sigma, dict) else sigma)
    except (TypeError, ValueError):
        raise SettingError("sigma must be a number, a vector, a matrix, or a tree shaped like the params") from None
    if values.dtype.kind not in "iuf" or not values.size or not np.all(np.abs(values) <= LARGEST_FLOAT):
        raise SettingError("sigma must hold finite real numbers that 32 bits can hold")
    if values.ndim < 2:
        if np.any(values <= 0):
            raise SettingError(f"sigma must be > 0, but its smallest entry is {values.min():g}")
        return _diagonal_gaussian("gaussian-scaled" if values.ndim == 0 else "gaussian-diagonal", values)
    return _full_gaussian(values)


def _gaussian_sample(key: Key, mean: Array, spread: Array) -> Array:
    return mean + spread * jax.random.normal(key, mean.shape, mean.dtype)


def _diagonal_gaussian(name: str, sigma: float | np.ndarray) -> Family:
    if np.ndim(sigma) == 0:  # the same for every entry, so the tree need not be flattened
        scale = float(sigma)
        return separable(
            name,
            g=lambda s: 0.5 * s**2 / scale,
            grad_g=lambda s: s / scale,
            conjugate=lambda x: 0.5 * scale * x**2,
            grad_conjugate=lambda x: scale * x,
            divergence=lambda a, b: 0.5 * (a - b) ** 2 / scale,
            conjugate_divergence=lambda x, y: 0.5 * scale * (x - y) ** 2,
            domain=Domain(REALS, REALS, "R"),
            sample=lambda key, s, lam: _gaussian_sample(key, s / scale, jnp.asarray((scale * lam) ** -0.5, s.dtype)),
            spherical=True,
        )
    return _linear_gaussian(
        name, len(np.asarray(sigma)), lambda v: v * sigma, lambda v: v / sigma, lambda v: v / np.sqrt(sigma)
    )


def _full_gaussian(sigma: np.ndarray) -> Family:
    if sigma.ndim != 2 or sigma.shape[0] != sigma.shape[1]:
        raise SettingError(f"a full sigma must be a square matrix, not of shape {sigma.shape}")
    if not np.allclose(sigma, sigma.T, rtol=1e-6):
        raise SettingError("a full sigma must be symmetric")
    try:
        definite = np.linalg.eigvalsh(sigma)[0] > 0
        inverse = np.linalg.inv(sigma)
    except np.linalg.LinAlgError:  # numerically singular
        definite = False
    if not definite:
        raise SettingError("a full sigma must be positive definite")
    root = np.linalg.cholesky(inverse)  # root root^T = Sigma^{-1}, the covariance of a draw
    return _linear_gaussian(
        "gaussian-full",
        len(sigma),
        lambda v: jnp.asarray(sigma, v.dtype) @ v,
        lambda v: jnp.asarray(inverse, v.dtype) @ v,
        lambda v: jnp.asarray(root, v.dtype) @ v,
    )


def _linear_gaussian(
    name: str,
    size: int,
    multiply: Callable[[Array], Array],
    solve: Callable[[Array], Array],
    root: Callable[[Array], Array],
) -> Family:
    """A Gaussian from v -> Sigma v, v -> Sigma^{-1} v and v -> Sigma^{-1/2} v on flat vectors."""

    def flat(tree: Tree) -> tuple[Array, Callable[[Array], Tree]]:
        vector, unravel = ravel_pytree(tree)
        if vector.size != size:
            raise SettingError(f"sigma is for {size} params, but the model has {vector.size}")
        return vector, unravel

    def half_square(apply: Callable[[Array], Array]) -> Callable[[Tree], Array]:
        def value(tree: Tree) -> Array:
            vector, _ = flat(tree)
            return 0.5 * jnp.vdot(vector, apply(vector).astype(vector.dtype))

        return value

    def mapped(apply: Callable[[Array], Array]) -> Callable[[Tree], Tree]:
        def value(tree: Tree) -> Tree:
            vector, unravel = flat(tree)
            return unravel(apply(vector).astype(vector.dtype))

        return value

    def sample(key: Key, s: Tree, lam: float = 1.0) -> Tree:
        vector, unravel = flat(s)
        noise = root(jax.random.normal(key, vector.shape, vector.dtype)) / jnp.sqrt(lam)
        return unravel((solve(vector) + noise).astype(vector.dtype))

    g, conjugate = half_square(solve), half_square(multiply)
    return Family(
        name=name,
        g=g,
        grad_g=mapped(solve),
        conjugate=conjugate,
        grad_conjugate=mapped(multiply),
        divergence=lambda a, b: g(optax.tree.sub(a, b)),
        conjugate_divergence=lambda x, y: conjugate(optax.tree.sub(x, y)),
        domain=Domain(REALS, REALS, "R"),
        solve_hessian=lambda s, v: mapped(multiply)(v),
        sample=sample,
    )
