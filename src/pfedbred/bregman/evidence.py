r"""Empirical Bayes: the strength of a prior from the spread of personal models around their means.

The objective f_i + lam D_{g*}(theta, mu), with f_i the mean loss of n_i samples, is -1/n_i times the log of a posterior
whose prior is the scaled exponential family (Eq. equ_def_sef),

    p(theta | mu) = Z(tau)^-1 exp(-tau D_{g*}(theta, mu)),        lam = tau / n_i.

Z depends on tau, so tau has a likelihood. For the Gaussian, Z is proportional to tau^{-d/2}, and with the posterior of
theta_i approximated by a Gaussian (Laplace) the marginal likelihood of all clients is largest where

    tau = sum_i gamma_i / sum_i 2 D_{g*}(theta_i, mu_i),        gamma_i = sum_j (1 - tau V_i,jj),

MacKay's evidence update: V_i = (H_i + tau I)^-1 is the posterior's covariance, H_i the curvature of n_i f_i, and
gamma_i the effective number of parameters, those that the client's data determine. It is the fixed point of
expectation-maximisation, which reaches it more slowly. Any part of the params can have its own tau, by sums over that
part: a layer, or every single entry, which is a diagonal Sigma = 1 / tau.

For other families D_{g*}(theta, mu) is replaced by its second-order expansion at the mean, 1/2 (v - m)^T C (v - m):
then the same update holds with V_i = (H_i + tau C)^-1 and gamma_i = sum_j (1 - tau C_jj V_i,jj).

A loss whose scale is not that of a log-likelihood, such as the squared error of a standardised number, has a dispersion
s, for a Gaussian its variance: the likelihood is exp(-n f / s), and

    s = 2 sum_i n_i f_i / sum_i (n_i - gamma_i),        lam = s tau / n_i.

With H_i the curvature of n_i f_i, all formulas above then hold for s tau instead of tau, if D is divided by s.

References: MacKay, "Bayesian Interpolation", Neural Computation 1992; Tipping, "Sparse Bayesian Learning", JMLR 2001.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from pfedbred.bregman.dense import inverse
from pfedbred.types import Array, Tree

_SMALLEST, _LARGEST = 1e-30, 1e30


class Evidence(NamedTuple):
    """What clients know about the strength of their prior; summed or averaged over clients, since only ratios count.

    Attributes:
      effective: gamma, by part of the params.
      spread: 2 D_{g*}(theta, mu), likewise.
      loss: n f(theta), the loss summed over samples.
      free: n - gamma, with gamma summed over all params; at least 1.
    """

    effective: Tree
    spread: Tree
    loss: Array
    free: Array


def strength(evidence: Evidence, *, dispersed: bool) -> Tree:
    """s tau of each part, n_i lam: 1e30 where personal models do not differ from their means, 0 if nothing is known.

    Args:
      evidence: the clients' evidence.
      dispersed: whether the loss has a dispersion s to be estimated; else it is 1.
    """
    scale = 2 * evidence.loss / jnp.where(evidence.free > 0, evidence.free, 1) if dispersed else 1.0

    def each(effective: Array, spread: Array) -> Array:
        there = spread > _SMALLEST
        known = jnp.minimum(scale * effective / jnp.where(there, spread, 1), _LARGEST)
        return jnp.where(there, known, jnp.where(effective > 0, _LARGEST, 0.0)).astype(spread.dtype)

    return jax.tree.map(each, evidence.effective, evidence.spread)


def blended(old: Evidence, new: Evidence, part: float) -> Evidence:
    """A moving average, in which new evidence has weight ``part``. Ratios are right even if it starts from zeros."""
    return optax.tree.add_scale(old, part, optax.tree.sub(new, old))


class Curvature(NamedTuple):
    """The curvature H of n f, as far as it is kept: in full for the params of ``block``, its diagonal for the others.

    Attributes:
      diagonal: shaped like the params.
      block: a matrix over part of the params, in the order of ``ravel_pytree``; None if there is none.
    """

    diagonal: Tree
    block: Array | None = None


def effective_numbers(diagonal: Tree, precision: Tree) -> Tree:
    """gamma of each param, 1 - p V = h / (h + p), for curvatures h and prior precisions p = tau C."""
    return jax.tree.map(lambda h, p: h / (h + p), diagonal, precision)


def effective_in_block(block: Array, precision: Array) -> Array:
    """gamma of each param of a block in full: 1 - p_j [(H + diag p)^-1]_jj."""
    root = jnp.sqrt(precision)
    # H + diag p = root (root^-1 H root^-1 + I) root, whose inner matrix is well conditioned however p is scaled.
    scaled = block / root / root[:, None]
    inverted = inverse(scaled + jnp.eye(len(root), dtype=block.dtype))
    return jnp.clip(1 - jnp.diagonal(inverted), 0, 1)
