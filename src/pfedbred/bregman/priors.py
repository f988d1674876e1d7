r"""Exponential families as priors of a network's weights: g, its conjugate, and their divergences.

A family is given by its log-partition function ``g`` (Eq. equ_def_ef of the paper). With the conjugate
``g*(x) = sup_s <x, s> - g(s)``, the gradients ``grad g`` and ``grad g*`` are inverse to each other and carry the
natural parameter s to the mean parameter mu and back. The prior of a personal model theta with mean mu is
exp(-lam D_{g*}(theta, mu)), up to a factor that does not depend on mu (Eq. equ_def_sef).

**In which coordinates the weights live.** A Bernoulli mean lies in (0, 1) and a Poisson mean above 0; the weights of
a network lie anywhere. So the weights are *not* the mean parameters. They are **natural parameters**: with
theta = grad g(v) and mu = grad g(m),

    D_{g*}(theta, mu) = D_g(m, v),

and g is finite on all of R^d for the Gaussian, Bernoulli and Poisson families, so v and m are free. For the
exponential family s is negative, and the weight u is the logarithm of the mean, s = -exp(-u). Every family has that
map as ``to_natural`` (the identity for the others), and ``regulariser(v, m)`` is D_g(to_natural(m), to_natural(v)).
For the spherical Gaussian all these coordinates coincide, which is why the paper need not choose.

All functions take and return pytrees, and sum over every entry.

References: Shi et al., "Personalized Federated Learning with Hidden Information on Personalized Prior", Table
tbl_bd_ef (which mixes mean and natural arguments; here each entry is derived from g); Banerjee et al., "Clustering
with Bregman Divergences", JMLR 2005.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.scipy.special import xlogy

from pfedbred.bregman.newton import argmax, hessian_solve
from pfedbred.errors import SettingError, nearest
from pfedbred.io.npy import read_npy
from pfedbred.settings.values import LARGEST_FLOAT
from pfedbred.types import Array, Key, Tree

_REALS = (-math.inf, math.inf)


class Domain(NamedTuple):
    """Open intervals of each coordinate, and the set in which samples fall."""

    natural: tuple[float, float]
    mean: tuple[float, float]
    support: str


_UNKNOWN = Domain(_REALS, _REALS, "unknown")


def _identity(tree: Tree) -> Tree:
    return tree


@dataclass(frozen=True)
class Family:
    """An exponential family, seen as a prior of weights.

    Attributes:
      name: what it is called.
      g: log-partition function of the natural parameter s.
      grad_g: s to the mean parameter.
      conjugate: g*, of the mean parameter.
      grad_conjugate: mean parameter to s; inverse of ``grad_g``.
      divergence: D_g(a, b) of two natural parameters (Eq. equ_def_bd).
      conjugate_divergence: D_{g*}(x, y) of two mean parameters; equals D_g(grad_g*(y), grad_g*(x)).
      domain: where s, the mean and samples live.
      solve_hessian: ``solve_hessian(s, v)`` is Hess g(s)^{-1} v.
      sample: ``sample(key, s, lam)`` draws from the scaled family (Eq. equ_def_sef): mean grad g(s), variance
        Hess g(s) / lam.
      to_natural: from free weights in R^d to s.
      from_natural: its inverse.
      penalty: ``regulariser`` in closed form, where going through s would overflow.
      spherical: whether ``regulariser`` is a multiple of the squared distance.
    """

    name: str
    g: Callable[[Tree], Array]
    grad_g: Callable[[Tree], Tree]
    conjugate: Callable[[Tree], Array]
    grad_conjugate: Callable[[Tree], Tree]
    divergence: Callable[[Tree, Tree], Array]
    conjugate_divergence: Callable[[Tree, Tree], Array]
    domain: Domain
    solve_hessian: Callable[[Tree, Tree], Tree]
    sample: Callable[[Key, Tree, float], Tree]
    to_natural: Callable[[Tree], Tree] = _identity
    from_natural: Callable[[Tree], Tree] = _identity
    penalty: Callable[[Tree, Tree], Array] | None = None
    spherical: bool = False

    def regulariser(self, personal: Tree, mean: Tree) -> Array:
        """D_{g*}(theta, mu), both given as weights: the penalty that keeps ``personal`` near ``mean``."""
        if self.penalty is not None:
            return self.penalty(personal, mean)
        return self.divergence(self.to_natural(mean), self.to_natural(personal))


def _separable(
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

    The divergences are given entry by entry, in forms that cancel less than their definition: in float32,
    g(a) - g(b) - <grad g(b), a - b> over a network's weights is mostly rounding error when a is near b.
    """

    def divide(s: Array, v: Array) -> Array:
        return v / jax.jvp(grad_g, (s,), (jnp.ones_like(s),))[1]

    def total(f: Callable[..., Array]) -> Callable[..., Array]:
        return lambda *trees: optax.tree.sum(jax.tree.map(f, *trees))

    def each(f: Callable[..., Array] | None) -> Callable[..., Tree]:
        return _identity if f is None else lambda *trees: jax.tree.map(f, *trees)

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
    )


def gaussian(sigma: Any = None) -> Family:
    r"""Gaussian family: g(s) = 1/2 <s, Sigma^{-1} s>, g*(x) = 1/2 <x, Sigma x>.

    grad g(s) = Sigma^{-1} s, and D_{g*}(x, y) = 1/2 <x - y, Sigma (x - y)>. In weights, which are natural parameters,
    the penalty is 1/2 <m - v, Sigma^{-1} (m - v)>: the larger Sigma, the freer the personal model.

    Args:
      sigma: ``None`` for the identity (the spherical Gaussian of the paper's experiments); a positive number; a
        vector or a pytree shaped like the weights for a diagonal Sigma; a symmetric positive definite matrix for a
        full one. Vectors and matrices follow the order of ``jax.flatten_util.ravel_pytree(weights)``.
    """
    if sigma is None:
        return _diagonal_gaussian("gaussian", 1.0)
    try:
        values = np.asarray(ravel_pytree(sigma)[0] if isinstance(sigma, dict) else sigma)
    except (TypeError, ValueError):
        raise SettingError("sigma must be a number, a vector, a matrix, or a tree shaped like the weights") from None
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
    if np.ndim(sigma) == 0:  # the same for every entry: no need to flatten the tree
        scale = float(sigma)
        return _separable(
            name,
            g=lambda s: 0.5 * s**2 / scale,
            grad_g=lambda s: s / scale,
            conjugate=lambda x: 0.5 * scale * x**2,
            grad_conjugate=lambda x: scale * x,
            divergence=lambda a, b: 0.5 * (a - b) ** 2 / scale,
            conjugate_divergence=lambda x, y: 0.5 * scale * (x - y) ** 2,
            domain=Domain(_REALS, _REALS, "R"),
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
    except np.linalg.LinAlgError:  # as good as singular
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
            raise SettingError(f"sigma is for {size} weights, but the model has {vector.size}")
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
        domain=Domain(_REALS, _REALS, "R"),
        solve_hessian=lambda s, v: mapped(multiply)(v),
        sample=sample,
    )


def bernoulli() -> Family:
    r"""Bernoulli family: g(s) = ln(1 + e^s), g*(x) = x ln x + (1 - x) ln(1 - x).

    D_{g*}(x, y) = x ln(x / y) + (1 - x) ln((1 - x) / (1 - y)). The weights are logits. The scaled family exists for
    whole lam only: the mean of lam tosses.
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
            raise SettingError(f"a scaled Bernoulli exists for whole lam >= 1 only, not lam = {lam:g}")
        tosses = jax.random.bernoulli(key, jax.nn.sigmoid(s), (int(lam), *s.shape))
        return jnp.mean(tosses, axis=0, dtype=s.dtype)

    return _separable(
        "bernoulli",
        g=jax.nn.softplus,
        grad_g=jax.nn.sigmoid,
        conjugate=lambda x: xlogy(x, x) + xlogy(1 - x, 1 - x),
        grad_conjugate=lambda x: jnp.log(x) - jnp.log1p(-x),
        divergence=divergence,
        conjugate_divergence=conjugate_divergence,
        domain=Domain(_REALS, (0.0, 1.0), "{0, 1}"),
        sample=sample,
    )


def poisson() -> Family:
    r"""Poisson family: g(s) = e^s, g*(x) = x ln x - x.

    D_{g*}(x, y) = x ln(x / y) - x + y, and D_g(a, b) = e^b (e^{a-b} - 1 - (a - b)). The weights are log rates.
    """

    def divergence(a: Array, b: Array) -> Array:
        near = jnp.clip(a - b, -1, 1)
        close = jnp.exp(b) * (jnp.expm1(near) - near)
        far = jnp.exp(a) - jnp.exp(b) * (1 + a - b)  # e^{a - b} would overflow before e^a does
        return jnp.where(jnp.abs(a - b) < 1, close, far)

    def sample(key: Key, s: Array, lam: float) -> Array:
        return jax.random.poisson(key, lam * jnp.exp(s)).astype(s.dtype) / jnp.asarray(lam, s.dtype)

    return _separable(
        "poisson",
        g=jnp.exp,
        grad_g=jnp.exp,
        conjugate=lambda x: xlogy(x, x) - x,
        grad_conjugate=jnp.log,
        divergence=divergence,
        conjugate_divergence=lambda x, y: xlogy(x, x / y) - x + y,
        domain=Domain(_REALS, (0.0, math.inf), "{0, 1, 2, ...}"),
        sample=sample,
    )


def exponential() -> Family:
    r"""Exponential family: g(s) = -ln(-s) for s < 0, g*(x) = -ln x - 1.

    D_{g*}(x, y) = x / y - ln(x / y) - 1. The natural parameter is negative, so the weights are u = ln(mean),
    s = -e^{-u}, and the regulariser in weights is e^d - d - 1 with d = u_personal - u_mean.
    """

    def divergence(a: Array, b: Array) -> Array:
        log_ratio = jnp.log(a / b)
        return jnp.expm1(log_ratio) - log_ratio

    def sample(key: Key, s: Array, lam: float) -> Array:
        shape = jnp.asarray(lam, s.dtype)
        return jax.random.gamma(key, shape, s.shape, s.dtype) / (-s * shape)

    return _separable(
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


def from_log_partition(
    g: Callable[[Tree], Array],
    *,
    name: str = "custom",
    start: Tree = None,
    domain: Domain = _UNKNOWN,
    sample: Callable[[Key, Tree, float], Tree] | None = None,
    to_natural: Callable[[Tree], Tree] = _identity,
    from_natural: Callable[[Tree], Tree] = _identity,
) -> Family:
    r"""A family from its log-partition function alone.

    grad g comes from automatic differentiation. grad g*(x) = argmax_s <x, s> - g(s) is solved by damped Newton steps
    with conjugate gradients (Hessian-vector products, never a matrix), and differentiates by the implicit function
    theorem; it is NaN where x is not the gradient of g anywhere. Training needs g and grad g only.

    Args:
      g: smooth, strictly convex, from a pytree to a scalar; it may couple entries.
      start: where the Newton iteration begins, in the domain of g and shaped like the weights; ``to_natural`` of zero
        if not given.
      domain: for display.
      sample: draws ``sample(key, s, lam)``; g alone does not say how.
      to_natural: from R^d into the domain of g, where that is not R^d.
      from_natural: the inverse of ``to_natural``.

    Example:
      >>> import jax.numpy as jnp
      >>> from pfedbred import priors
      >>> family = priors.from_log_partition(lambda s: jnp.sum(jnp.cosh(s)), name="cosh")
      >>> round(float(family.grad_conjugate(jnp.sinh(jnp.array([1.5])))[0]), 4)
      1.5
    """
    grad_g = jax.grad(g)

    @jax.jit  # called outside of a compiled program, the Newton loop would be compiled anew each time
    def grad_conjugate(x: Tree) -> Tree:
        begin = to_natural(optax.tree.zeros_like(x)) if start is None else start
        return argmax(g, x, begin)

    def solve_hessian(s: Tree, v: Tree) -> Tree:
        flat_s, unravel = ravel_pytree(s)
        return unravel(hessian_solve(lambda u: ravel_pytree(grad_g(unravel(u)))[0], flat_s, ravel_pytree(v)[0]))

    def conjugate(x: Tree) -> Array:
        s = grad_conjugate(x)
        return optax.tree.vdot(x, s) - g(s)

    def divergence(a: Tree, b: Tree) -> Array:
        return g(a) - g(b) - optax.tree.vdot(grad_g(b), optax.tree.sub(a, b))

    def no_sample(key: Key, s: Tree, lam: float = 1.0) -> Tree:
        raise SettingError(
            f"the family {name!r} was built from g alone, which does not tell how to sample: pass sample="
        )

    return Family(
        name=name,
        g=g,
        grad_g=grad_g,
        conjugate=conjugate,
        grad_conjugate=grad_conjugate,
        divergence=divergence,
        conjugate_divergence=lambda x, y: divergence(grad_conjugate(y), grad_conjugate(x)),
        domain=domain,
        solve_hessian=solve_hessian,
        sample=sample or no_sample,
        to_natural=to_natural,
        from_natural=from_natural,
    )


PRIORS: dict[str, Callable[..., Family]] = {
    "gaussian": gaussian,
    "bernoulli": bernoulli,
    "poisson": poisson,
    "exponential": exponential,
}
"""Every named family. A new one is a function that returns a Family, and a line here."""


def get(prior: str | Family, sigma: Any = None) -> Family:
    """The family of that name; ``sigma`` is the Gaussian's."""
    if isinstance(prior, Family):
        return prior
    if prior not in PRIORS:
        raise SettingError(f"unknown prior {prior!r}{nearest(prior, PRIORS)}")
    if prior == "gaussian":
        return gaussian(_read_sigma(sigma))
    if sigma is not None:
        raise SettingError(f"sigma belongs to the gaussian prior, not to {prior}")
    return PRIORS[prior]()


def _read_sigma(sigma: Any) -> Any:
    """A path to a .npy file stands for the array in it."""
    if not isinstance(sigma, str):
        return sigma
    return read_npy(Path(sigma), "sigma")
