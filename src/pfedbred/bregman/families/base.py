"""What a prior family is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

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


@dataclass(frozen=True)
class Family:
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

    def regulariser(self, personal: Tree, mean: Tree) -> Array:
        """D_{g*}(theta, mu), both given as params: the penalty that keeps ``personal`` near ``mean``."""
        if self.penalty is not None:
            return self.penalty(personal, mean)
        return self.divergence(self.to_natural(mean), self.to_natural(personal))
