"""What a prior is: a penalty on the distance from its mean; and what an exponential family is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.types import Array, Key, Tree

REALS = (-math.inf, math.inf)


class Domain(NamedTuple):
    """The open interval of each coordinate, and the set of values a sample can take."""

    natural: tuple[float, float]
    mean: tuple[float, float]
    support: str


def identity(tree: Tree) -> Tree:
    """The tree itself."""
    return tree


class Prior(ABC):
    """What Algorithm 1 needs of a prior: -log p(theta | mu) / lam up to a constant, as a function of params.

    ``gradient_solver`` is the solver that takes gradient steps under this prior.
    """

    name: str
    spherical: bool
    separable: bool
    gradient_solver: ClassVar[str] = "gradient"

    @abstractmethod
    def regulariser(self, personal: Tree, mean: Tree) -> Array:
        """The penalty that keeps ``personal`` near ``mean``."""

    def curvature(self, mean: Tree) -> Tree:
        """The second derivative of a separable ``regulariser`` in each entry of ``personal``, at the mean."""
        return self.precision(mean, mean)

    def stiffness(self, personal: Tree, mean: Tree) -> Tree:
        """The precision of the Gaussian that implicit steps put in place of a separable ``regulariser``."""
        return self.curvature(mean)

    def precision(self, personal: Tree, mean: Tree) -> Tree:
        """How strongly a separable ``regulariser`` holds each entry where it is: by its second derivative there."""

        def slope(personal: Tree) -> Tree:
            return jax.grad(self.regulariser)(personal, mean)

        return jax.jvp(slope, (personal,), (jax.tree.map(jnp.ones_like, personal),))[1]


@dataclass(frozen=True)
class Penalised(Prior):
    """A prior given by its penalty alone, a sum over entries or arrays of the params."""

    name: str
    penalty: Callable[[Tree, Tree], Array]
    spherical: bool = False
    separable: bool = True

    def regulariser(self, personal: Tree, mean: Tree) -> Array:
        """The penalty."""
        return self.penalty(personal, mean)


@dataclass(frozen=True)
class Family(Prior):
    """An exponential family, used as a prior of a model's params.

    Attributes:
      name: the family's name.
      g: log-partition function of the natural parameter s.
      grad_g: s to the mean parameter.
      conjugate: g*, of the mean parameter.
      grad_conjugate: mean parameter to s; inverse of ``grad_g``.
      divergence: D_g(a, b) of two natural parameters (Eq. equ_def_bd).
      conjugate_divergence: D_{g*}(x, y) of two mean parameters; equals D_g(grad_g*(y), grad_g*(x)).
      domain: the domains of s and of the mean, and the support of samples.
      solve_hessian: ``solve_hessian(s, v)`` is Hess g(s)^{-1} v.
      sample: ``sample(key, s, lam)`` draws from the scaled family (Eq. equ_def_sef): mean grad g(s), variance
        Hess g(s) / lam.
      to_natural: from unconstrained params in R^d to s.
      from_natural: its inverse.
      penalty: ``regulariser`` in closed form, for families where computing it through s would overflow.
      spherical: whether ``regulariser`` is a multiple of the squared distance.
      separable: whether ``regulariser`` is a sum over entries, so that it applies to any part of the params.
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
    to_natural: Callable[[Tree], Tree] = identity
    from_natural: Callable[[Tree], Tree] = identity
    penalty: Callable[[Tree, Tree], Array] | None = None
    spherical: bool = False
    separable: bool = False

    def regulariser(self, personal: Tree, mean: Tree) -> Array:
        """D_{g*}(theta, mu), both given as params: the penalty that keeps ``personal`` near ``mean``."""
        if self.penalty is not None:
            return self.penalty(personal, mean)
        return self.divergence(self.to_natural(mean), self.to_natural(personal))
