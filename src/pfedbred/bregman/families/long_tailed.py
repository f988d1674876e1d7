r"""Priors with long tails: most params stay near the mean, a few may be far from it.

Neither is an exponential family in its location: no g has them as D_{g*}, so there is no conjugate, no mirror map and
no Bregman-Moreau envelope. They enter Algorithm 1 only as its regulariser (lines 9 and 10), which needs just a penalty
and its slopes. With x = v - m, entry by entry,

    Student's t    df/2 ln(1 + x^2 / (df s^2)),     a Gaussian whose precision is drawn anew for each entry
    Huber          x^2 / (2 s^2) for |x| <= c s,    c |x| / s - c^2 / 2 beyond: a Laplace prior far from the mean

Both are 1/2 (x / s)^2 near the mean, so that lam means the same as for the Gaussian with Sigma = s^2. A step on either
is a step on a reweighted Gaussian, with the weight s^2 slope(x) / x: 1 / (1 + x^2 / (df s^2)) for Student's t, where it
follows from the scale mixture, and min(1, c s / |x|) for Huber's. Priors with long tails are usually narrow, and
lam / s^2 large: gradient steps are therefore implicit in that Gaussian, which is stable for every s. The Gaussian lies
above the penalty and touches it where the step starts, so that a step does not increase f + lam D if alpha is at most
1 / L for a loss with an L-Lipschitz gradient; without f these are the expectation-maximisation steps of Lange et al.

References: Lange, Little and Taylor, "Robust Statistical Modeling Using the t Distribution", JASA 1989; Huber, "Robust
Estimation of a Location Parameter", 1964.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from pfedbred.bregman.families.base import Penalised, Prior
from pfedbred.errors import SettingError
from pfedbred.settings.values import Positive
from pfedbred.types import Array, Tree


def student_t(sigma: Any = None, *, df: Positive = 4.0) -> Prior:
    """Student's t: the fewer degrees of freedom, the longer the tails.

    Args:
      sigma: s^2, a number; 1 by default.
      df: degrees of freedom.
    """
    return _summed("student-t", lambda x: df / 2 * jnp.log1p(x**2 / df), sigma)


def huber(sigma: Any = None, *, c: Positive = 1.0) -> Prior:
    """Huber's penalty: quadratic within c standard deviations of the mean, and linear beyond.

    Args:
      sigma: s^2, a number; 1 by default.
      c: where it becomes linear.
    """
    return _summed("huber", lambda x: optax.huber_loss(x, delta=c), sigma)


def _summed(name: str, penalty: Callable[[Array], Array], sigma: Any) -> Prior:
    """The sum over entries of a penalty on (v - m) / s."""
    try:
        scale = 1.0 if sigma is None else float(sigma) ** 0.5
    except (TypeError, ValueError):
        scale = 0.0
    if isinstance(scale, complex) or not 0 < scale < float("inf"):
        raise SettingError(f"the sigma of the {name} prior must be a number > 0, not {sigma!r}")

    def total(personal: Tree, mean: Tree) -> Array:
        return optax.tree.sum(jax.tree.map(lambda v, m: penalty((v - m) / scale), personal, mean))

    return _LongTailed(name, total)


class _LongTailed(Penalised):
    """Not convex or not curved far from the mean, where its second derivative holds nothing."""

    gradient_solver = "implicit"

    def stiffness(self, personal: Tree, mean: Tree) -> Tree:
        """The reweighted Gaussian's: with that at the mean, a step would hold back the few that are far from it."""
        return self.precision(personal, mean)

    def precision(self, personal: Tree, mean: Tree) -> Tree:
        """That of the Gaussian which a step reweights: slope(x) / x; at the mean, the limit."""

        def weight(slope: Array, limit: Array, x: Array) -> Array:
            return jnp.where(x == 0, limit, slope / jnp.where(x == 0, 1, x))

        away = optax.tree.sub(personal, mean)
        slopes = jax.grad(self.regulariser)(personal, mean)
        return jax.tree.map(weight, slopes, super().precision(mean, mean), away)
