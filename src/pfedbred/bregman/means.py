r"""Mean strategies: how a client chooses the mean of its personal prior, mu_i(w) = w - eta grad Phi_i(w).

A strategy maps the local model w and the client's context C_{i,r} to the prior's mean (Eq. equ_ime_ms). All of them
work on params, that is, in natural coordinates (see :mod:`pfedbred.bregman.priors`).

| name     | mean                                                                   | Phi       |
|----------|------------------------------------------------------------------------|-----------|
| identity | w                                                                      | 0: pFedMe |
| fo       | w - eta_a grad f(w)                                                    | f         |
| mfo      | w - eta (memory - theta)                                               | F         |
| mg       | w - eta_a grad f(w) - eta (memory - theta)                             | f + F     |
| mg-meta  | w' - eta (memory - theta), w' = w - eta_a grad f(w - eta_a grad f(w))  | appendix  |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from pfedbred.errors import SettingError, nearest
from pfedbred.settings.signatures import build_part
from pfedbred.types import Array, Tree


class Context(NamedTuple):
    """C_{i,r}: the information client i has in local step r.

    Attributes:
      loss: ``loss(w, j)`` is f_i at w on the j-th minibatch of this step; the proximal map uses the last one.
      theta: the personal model theta_{i,r-1}.
      memory: w_{i,R}^{(t-1)}, the client's local model at the end of the previous round.
    """

    loss: Callable[[Tree, int], Array]
    theta: Tree
    memory: Tree

    def grad(self, w: Tree, batch: int) -> Tree:
        """Gradient of the loss at w on the given minibatch of this step."""
        return jax.grad(self.loss)(w, batch)


class Chosen(NamedTuple):
    """The prior's mean, and the local model from which the step continues (w itself, except in ``mg-meta``)."""

    mean: Tree
    local: Tree


class Mean(NamedTuple):
    """A strategy: ``choose(w, context)``, and the number of minibatches in a local step (proximal map included)."""

    choose: Callable[[Tree, Context], Chosen]
    batches: int = 1
    uses_memory: bool = False


def identity() -> Mean:
    """mu = w: with the spherical Gaussian this is pFedMe."""
    return Mean(lambda w, context: Chosen(w, w))


def fo(eta_a: Any) -> Mean:
    """First order: mu = w - eta_a grad f(w) (Eq. equ_ime_ms, line 1)."""
    return Mean(lambda w, context: Chosen(optax.tree.add_scale(w, -eta_a, context.grad(w, 0)), w))


def mfo(eta: Any) -> Mean:
    """Memorised first order: mu = w - eta (memory - theta) (Eq. equ_ime_ms, line 2)."""
    return Mean(lambda w, context: Chosen(_towards_theta(w, eta, context), w), uses_memory=True)


def mg(eta_a: Any, eta: Any) -> Mean:
    """Memorised gradients: mu = w - eta_a grad f(w) - eta (memory - theta) (Eq. equ_ime_ms, line 3)."""

    def choose(w: Tree, context: Context) -> Chosen:
        stepped = optax.tree.add_scale(w, -eta_a, context.grad(w, 0))
        return Chosen(_towards_theta(stepped, eta, context), w)

    return Mean(choose, uses_memory=True)


def mg_meta(eta_a: Any, eta: Any) -> Mean:
    """Behind the paper's table: mu = w' - eta (memory - theta) with w' = w - eta_a grad f(w - eta_a grad f(w)).

    The appendix variant of mg (Eq. appdx_equ_v_mg), with its two gradients on two minibatches. The local model becomes
    w' as well, which the experiments did but no equation states.
    """

    def choose(w: Tree, context: Context) -> Chosen:
        stepped = _meta_step(w, eta_a, context)
        return Chosen(_towards_theta(stepped, eta, context), stepped)

    return Mean(choose, batches=2, uses_memory=True)


def mg_meta_literal(eta_a: Any, eta: Any) -> Mean:
    """mg-meta exactly as in Eq. appdx_equ_v_mg: the same mean, but the local model stays unchanged."""

    def choose(w: Tree, context: Context) -> Chosen:
        return Chosen(_towards_theta(_meta_step(w, eta_a, context), eta, context), w)

    return Mean(choose, batches=2, uses_memory=True)


def from_phi(phi: Callable[[Tree, Context], Array], eta: Any, *, batches: int = 1, uses_memory: bool = True) -> Mean:
    """A strategy from a custom Phi: mu = w - eta grad Phi(w), by automatic differentiation.

    Example:
      >>> from pfedbred import means
      >>> fo = means.from_phi(lambda w, context: context.loss(w, 0), eta=0.25)
      >>> float(fo.choose(3.0, means.Context(lambda w, batch: w**2, 0.0, 0.0)).mean)
      1.5
    """

    def choose(w: Tree, context: Context) -> Chosen:
        return Chosen(optax.tree.add_scale(w, -eta, jax.grad(phi)(w, context)), w)

    return Mean(choose, batches, uses_memory)


def _meta_step(w: Tree, eta_a: Any, context: Context) -> Tree:
    ahead = optax.tree.add_scale(w, -eta_a, context.grad(w, 0))
    return optax.tree.add_scale(w, -eta_a, context.grad(ahead, 1))


def _towards_theta(w: Tree, eta: Any, context: Context) -> Tree:
    return optax.tree.add_scale(w, -eta, optax.tree.sub(context.memory, context.theta))


MEANS: dict[str, Callable[..., Mean]] = {
    "identity": identity,
    "fo": fo,
    "mfo": mfo,
    "mg": mg,
    "mg-meta": mg_meta,
    "mg-meta-literal": mg_meta_literal,
}
"""Every named strategy. To add one, write a function of eta_a, eta, both or neither that returns a Mean, and a line
here.
"""


def get(mean: str | Mean | Callable[..., Mean], eta_a: Any, eta: Any) -> Mean:
    """The strategy of that name, or the one that a function builds, given the step sizes it uses."""
    if isinstance(mean, Mean):
        return mean
    if not callable(mean) and mean not in MEANS:
        raise SettingError(f"unknown mean strategy {mean!r}{nearest(mean, MEANS)}")
    made = build_part("mean", mean if callable(mean) else MEANS[mean], {"eta_a": eta_a, "eta": eta})
    if not isinstance(made, Mean):
        raise SettingError(f"a function given as mean must return a Mean, not a {type(made).__name__}")
    return made
