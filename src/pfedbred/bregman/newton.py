"""Matrix-free Newton's method: inverts a gradient, for families given by g alone.

Optimistix's Newton solver takes full steps, at most clipped to a box; this one shortens steps that would leave the
domain of g. Its minimisers with a line search are first-order or quasi-Newton, though exact products with the Hessian
are cheap here. JAXopt has no Newton solver and is no longer maintained.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from pfedbred.types import Array, Tree


def hessian_solve(gradient: Callable[[Array], Array], s: Array, b: Array) -> Array:
    """The solution x of Hess(s) x = b by conjugate gradients, where Hess is the Jacobian of ``gradient``."""

    def by_conjugate_gradients(product: Callable[[Array], Array], b: Array) -> Array:
        return jax.scipy.sparse.linalg.cg(product, b, tol=float(jnp.finfo(b.dtype).eps), maxiter=10 * b.size)[0]

    # cg alone cannot be transposed inside jit (jax 0.10); wrapped like this it can.
    product = jax.linearize(gradient, s)[1]
    return jax.lax.custom_linear_solve(product, b, by_conjugate_gradients, symmetric=True)


def argmax(g: Callable[[Tree], Array], x: Tree, start: Tree, newton_steps: int = 100) -> Tree:
    """argmax_s <x, s> - g(s) by damped Newton, differentiable in x through the optimality condition."""
    target, unravel = ravel_pytree(x)
    begin = ravel_pytree(start)[0].astype(target.dtype)
    eps = jnp.finfo(target.dtype).eps

    def gradient(s: Array) -> Array:
        return ravel_pytree(jax.grad(g)(unravel(s)))[0]

    def newton(target: Array, begin: Array) -> Array:
        def objective(s: Array) -> Array:
            return g(unravel(s)) - jnp.vdot(target, s)

        def unfinished(carry: tuple[Array, Array, Array]) -> Array:
            step, _, moved = carry
            return (step < newton_steps) & moved

        def improve(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            step, s, _ = carry
            here, slope = jax.value_and_grad(objective)(s)
            direction = hessian_solve(gradient, s, -slope)

            def too_long(length: Array) -> Array:
                # A step outside the domain of g gives inf or nan, which is not "<=".
                # The slack accepts the last steps, whose gain is below rounding.
                gain = 1e-4 * length * jnp.vdot(slope, direction)
                slack = 8 * eps * (1 + jnp.abs(here))
                return ~(objective(s + length * direction) <= here + gain + slack) & (length > 1e-10)

            length = jax.lax.while_loop(too_long, lambda t: t / 2, jnp.ones((), s.dtype))
            change = length * direction
            moved = jnp.linalg.norm(change) > 4 * eps * (1 + jnp.linalg.norm(s))
            return step + 1, s + change, moved

        solution = jax.lax.while_loop(unfinished, improve, (jnp.int32(0), begin, jnp.array(True)))[1]
        miss = jnp.linalg.norm(gradient(solution) - target)
        return jnp.where(miss <= jnp.sqrt(eps) * (1 + jnp.linalg.norm(target)), solution, jnp.nan)

    solve = jax.custom_jvp(newton)

    @solve.defjvp
    def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
        solution = solve(*primals)
        return solution, hessian_solve(gradient, solution, tangents[0])  # grad g(s) = x, so Hess g(s) ds = dx

    return unravel(solve(target, begin))
