r"""The Bregman proximal map and the Bregman-Moreau envelope (Eq. equ_def_pmbme), for any family.

With params v for theta and m for mu (see :mod:`pfedbred.bregman.priors` for the coordinates),

    prox(m) = argmin_v  f(v) + lam D_{g*}(theta(v), mu(m)),        env(m) = the minimum.

A solver approximates the argmin: the paper's K gradient steps, any optax optimizer, mirror descent, or steps that are
implicit in the regulariser.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import optax

from pfedbred.bregman import first_layer
from pfedbred.bregman.first_layer import FirstLayer
from pfedbred.bregman.priors import Family, Prior
from pfedbred.errors import SettingError, nearest
from pfedbred.types import Array, Tree

Loss = Callable[[Tree], Array]
_UNROLLED = 5  # up to this many steps are unrolled: a loop would copy the params at every step
_SHORT = 200  # equations of a loss that is unrolled: copies of a longer one take long to compile, and save little


class Problem(NamedTuple):
    """What one proximal map minimises: loss(v) + lam * family.regulariser(v, mean).

    ``first`` is set if the loss's network begins with a linear layer, which makes some solvers' steps cheaper.
    """

    loss: Loss
    mean: Tree
    family: Prior
    lam: Any
    first: FirstLayer | None = None

    def value(self, personal: Tree) -> Array:
        """The objective at ``personal``."""
        return self.loss(personal) + self.lam * self.family.regulariser(personal, self.mean)

    def gradient(self, personal: Tree, grad_loss: Tree) -> Tree:
        """The objective's gradient at ``personal``, where the loss has gradient ``grad_loss``."""
        pull = jax.grad(self.family.regulariser)(personal, self.mean)
        return optax.tree.add_scale(grad_loss, self.lam, pull)


class Solver(NamedTuple):
    """At most ``steps`` updates, fewer if the norm of the objective's gradient falls to ``tol``.

    ``update(problem, personal, grad_loss, gradient, state)`` returns the next point and state; ``gradient`` is that
    of the whole objective and ``grad_loss`` its part without the regulariser. ``linear`` means
    that the update is a linear combination of points and gradients.
    """

    init: Callable[[Tree], Tree]
    update: Callable[[Problem, Tree, Tree, Tree, Tree], tuple[Tree, Tree]]
    steps: int
    tol: float = 0.0
    linear: bool = False


class Solution(NamedTuple):
    """A proximal point and the number of steps taken."""

    personal: Tree
    steps: Array


def optimizer(transformation: optax.GradientTransformation, steps: int, tol: float = 0.0) -> Solver:
    """Any optax optimizer on the proximal objective."""

    def update(problem: Problem, personal: Tree, grad_loss: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        # Line searches and Polyak steps need the value; for other optimizers the compiler drops it.
        extra = {"value": problem.value(personal), "grad": gradient, "value_fn": problem.value}
        updates, state = full.update(gradient, state, personal, **extra)
        return optax.apply_updates(personal, updates), state

    full = optax.with_extra_args_support(transformation)
    return Solver(full.init, update, steps, tol)


def gradient_steps(alpha: Any, steps: int, tol: float = 0.0) -> Solver:
    """The paper's solver: v <- v - alpha (grad f(v) + lam grad_v D_{g*}(theta(v), mu))."""
    return optimizer(optax.sgd(alpha), steps, tol)._replace(linear=True)


def mirror_steps(alpha: Any, steps: int, tol: float = 0.0) -> Solver:
    r"""Mirror descent (Eq. equ_def_md) with mirror map g*, whose dual variable is the natural parameter s:

        s <- s - alpha (Hess g(s)^{-1} grad_s f + lam (s - s_mean)).

    If the family constrains s, the step is taken in the unconstrained params, where it cannot leave the domain. For
    the spherical Gaussian this is the gradient step.
    """

    def update(problem: Problem, personal: Tree, grad_loss: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        family = problem.family
        if not isinstance(family, Family):
            raise SettingError(f"the mirror solver needs an exponential family, which {family.name} is not")
        s = family.to_natural(personal)
        _, to_params_transposed = jax.vjp(family.from_natural, s)
        (grad_s,) = to_params_transposed(grad_loss)
        newton = family.solve_hessian(s, grad_s)
        pull = optax.tree.sub(s, family.to_natural(problem.mean))
        direction = optax.tree.add_scale(newton, problem.lam, pull)
        _, direction = jax.jvp(family.from_natural, (s,), (direction,))
        return optax.tree.add_scale(personal, -alpha, direction), state

    return Solver(lambda personal: (), update, steps, tol)


def implicit_steps(alpha: Any, steps: int, tol: float = 0.0) -> Solver:
    r"""Gradient steps, implicit in a Gaussian of diagonal precision C in place of the regulariser:

        v <- v - (1 + alpha lam C)^{-1} alpha (grad f(v) + lam grad_v D_{g*}(theta(v), mu)).

    C is the regulariser's curvature at the mean or, of a long-tailed prior, the weight at v of the Gaussian that it
    reweights, so that lam grad_v D = lam C (v - m). For these and for the Gaussian, where C = Sigma^{-1}, a step is the
    proximal gradient method, argmin_u <grad f(v), u> + ||u - v||^2 / (2 alpha) + lam/2 <u - m, C (u - m)>, which is
    stable for every lam. The prior must be separable.
    """

    def update(problem: Problem, personal: Tree, grad_loss: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        stiffness = optax.tree.scale(problem.lam, problem.family.stiffness(personal, problem.mean))

        def step(value: Array, slope: Array, stiff: Array) -> Array:
            return value - alpha * slope / (1 + alpha * stiff)

        return jax.tree.map(step, personal, gradient, stiffness), state

    return Solver(lambda personal: (), update, steps, tol, linear=True)


def solver(name: str | Solver | optax.GradientTransformation, alpha: Any, steps: int, tol: float = 0.0) -> Solver:
    """The solver of that name: ``gradient``, ``mirror``, ``implicit``, or an optax optimizer such as ``adam``."""
    if isinstance(name, Solver):
        return name
    if isinstance(name, optax.GradientTransformation):
        return optimizer(name, steps, tol)
    if name == "gradient":
        return gradient_steps(alpha, steps, tol)
    if name == "mirror":
        return mirror_steps(alpha, steps, tol)
    if name == "implicit":
        return implicit_steps(alpha, steps, tol)
    if name not in _OPTAX:
        raise SettingError(f"unknown solver {name!r}{nearest(name, ('gradient', 'mirror', 'implicit', *_OPTAX))}")
    return optimizer(getattr(optax, name)(alpha), steps, tol)


_OPTAX = (
    "adabelief",
    "adagrad",
    "adam",
    "adamw",
    "lion",
    "nadam",
    "radam",
    "rmsprop",
    "sgd",
    "yogi",
)
"""The optax optimizers that need only a learning rate, available by name; pass others as objects."""


def prox(problem: Problem, solve: Solver, start: Tree) -> Solution:
    """The proximal map (Eq. equ_def_pmbme), computed by ``solve`` from ``start``."""
    if problem.first and problem.family.spherical and solve.linear and solve.tol <= 0 and solve.steps > 1:
        reduced = first_layer.reduce(problem.first, start, problem.mean)
        solution = prox(Problem(reduced.loss, reduced.mean, problem.family, problem.lam), solve, reduced.start)
        return Solution(reduced.expand(solution.personal), solution.steps)

    grad_loss_at = jax.grad(problem.loss)

    def slopes(personal: Tree) -> tuple[Tree, Tree]:
        grad_loss = grad_loss_at(personal)
        return grad_loss, problem.gradient(personal, grad_loss)

    if solve.tol <= 0:

        def step(_: Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            personal, state = carry
            return solve.update(problem, personal, *slopes(personal), state)

        unroll = solve.steps if solve.steps <= _UNROLLED and _is_short(problem.loss, start) else 1
        personal, _ = jax.lax.fori_loop(0, solve.steps, step, (start, solve.init(start)), unroll=unroll)
        return Solution(personal, jnp.int32(solve.steps))

    Carry = tuple[Tree, Tree, tuple[Tree, Tree], Array]

    def unfinished(carry: Carry) -> Array:
        _, _, (_, gradient), taken = carry
        return (taken < solve.steps) & (optax.tree.norm(gradient) > solve.tol)

    def advance(carry: Carry) -> Carry:
        personal, state, here, taken = carry
        personal, state = solve.update(problem, personal, *here, state)
        return personal, state, slopes(personal), taken + 1

    begin = (start, solve.init(start), slopes(start), jnp.int32(0))
    personal, _, _, taken = jax.lax.while_loop(unfinished, advance, begin)
    return Solution(personal, taken)


def _is_short(loss: Loss, at: Tree) -> bool:
    """Whether the loss has few equations and no loop, as recurrent networks have."""

    def equations(program: Any) -> float:
        """Their number, infinite with a loop."""
        inner = (each for equation in program.eqns for each in jax.extend.core.jaxprs_in_params(equation.params))
        if any(each.primitive.name in ("scan", "while") for each in program.eqns):
            return math.inf
        return len(program.eqns) + sum(map(equations, inner))

    return equations(jax.make_jaxpr(loss)(at).jaxpr) <= _SHORT


def envelope(problem: Problem, solve: Solver, start: Tree) -> Array:
    """The Bregman-Moreau envelope's value at ``problem.mean``: the objective at the proximal point."""
    return problem.value(prox(problem, solve, start).personal)


def envelope_gradient(problem: Problem, personal: Tree, *, exact: bool = True) -> Tree:
    r"""Gradient of the envelope in the mean m, given the proximal point.

    Exact, by the envelope theorem: lam grad_m D_{g*}(theta, mu(m)), which in natural coordinates is
    lam (grad g(m) - grad g(v)) and in mean coordinates lam Hess g*(mu) (mu - theta) (Eq. equ_def_pmbme).
    First-order: lam (m - v), the paper's lam (mu - theta) with params instead of means. The two coincide for
    the spherical Gaussian, the prior of the paper's experiments.
    """
    if exact:
        pull = jax.grad(problem.family.regulariser, argnums=1)(personal, problem.mean)
    else:
        pull = optax.tree.sub(problem.mean, personal)
    return optax.tree.scale(problem.lam, pull)
