"""A family built from its log-partition function g alone."""

from __future__ import annotations

from collections.abc import Callable

import jax
import optax
from jax.flatten_util import ravel_pytree

from pfedbred.bregman.families.base import REALS, Domain, Family, identity
from pfedbred.bregman.newton import argmax, hessian_solve
from pfedbred.errors import SettingError
from pfedbred.types import Array, Key, Tree

_UNKNOWN = Domain(REALS, REALS, "unknown")


def from_log_partition(
    g: Callable[[Tree], Array],
    *,
    name: str = "custom",
    start: Tree = None,
    domain: Domain = _UNKNOWN,
    sample: Callable[[Key, Tree, float], Tree] | None = None,
    to_natural: Callable[[Tree], Tree] = identity,
    from_natural: Callable[[Tree], Tree] = identity,
) -> Family:
    r"""A family from its log-partition function alone.

    grad g comes from automatic differentiation. grad g*(x) = argmax_s <x, s> - g(s) is solved by damped Newton steps
    with conjugate gradients (Hessian-vector products, never a matrix), and differentiates by the implicit function
    theorem; it is NaN if x is not the gradient of g at any point. Training needs only g and grad g.

    Args:
      g: smooth, strictly convex, from a pytree to a scalar; it may couple entries.
      start: where the Newton iteration begins, in the domain of g and shaped like the params; by default
        ``to_natural`` of zero.
      domain: for display.
      sample: ``sample(key, s, lam)`` draws from the family; g alone does not determine how.
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

    @jax.jit  # outside a compiled program, the Newton loop would otherwise be recompiled at every call
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
        raise SettingError(f"the family {name!r} was built from g alone and cannot be sampled: pass sample=")

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
