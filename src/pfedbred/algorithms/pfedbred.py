r"""Algorithm 1 of the paper, with every part replaceable.

    min_w  E_i  F_i(w),    F_i(w) = min_theta f_i(theta) + lam D_{g*}(theta, mu_i(w))        (equ_main_problem_global)

References: Shi, Zhou, Ye and Lv, "Personalized Federated Learning with Hidden Information on Personalized Prior".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import optax

from pfedbred.algorithms import learned_strength
from pfedbred.algorithms.base import Algorithm, Client, Info, Task, averaging_server, method
from pfedbred.algorithms.local_steps import Step, Work, draws, local_steps
from pfedbred.algorithms.strength import Ended, Strength, prior_precision
from pfedbred.bregman import means, priors
from pfedbred.bregman.proximal import Problem, Solver, prox
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.settings.values import Count, Epochs, NonNegative, Positive, Tolerance
from pfedbred.types import Tree


class PersonalState(NamedTuple):
    """What a client keeps from round to round; a part that is never read is None.

    Attributes:
      theta: the personal model theta_{i,R}.
      memory: the local model w_{i,R}.
      strength: the evidence on the strength of the client's own prior, if that is learned.
      seen: the global model of the client's last round.
    """

    theta: Tree
    memory: Tree
    strength: Tree = None
    seen: Tree = None


PAPER = "Shi et al., Personalized Federated Learning with Hidden Information on Personalized Prior"

ChooseStart = Callable[[Tree, PersonalState], Tree]
"""``start(w, state)``: where w_i or theta_i starts a round, given the global model and the client's state."""

STARTS: dict[str, ChooseStart] = {
    "global": lambda w, state: w,
    "theta": lambda w, state: state.theta,
    "memory": lambda w, state: state.memory,
}

THETA_STARTS: dict[str, ChooseStart] = {
    **STARTS,
    "shifted": lambda w, state: optax.tree.add(state.theta, optax.tree.sub(w, state.seen)),
}
"""Those of theta_i. ``shifted`` is theta_i moved as far as the global model has moved since the client's last round."""


ProxStart = Literal["local", "theta", "mean"]
"""Where the proximal steps start: at the local model, at theta_i or at the mean mu_i."""


@method(paper=PAPER, year=2022, G="w", P="theta_i")
def pfedbred(
    task: Task,
    *,
    mean: str | means.Mean | Callable[..., means.Mean] = "mg-meta",
    prior: str | priors.Prior | Callable[..., priors.Prior] = "gaussian",
    sigma: Any = None,
    lam: Strength = 15.0,
    alpha: Positive = 0.01,
    alpha_m: Positive = 0.01,
    eta_a: NonNegative = 0.01,
    eta: NonNegative = 0.05,
    K: Count = 5,
    R: Count = 20,
    epochs: Epochs = None,
    beta: Positive = 1.0,
    w_init: Literal["global", "theta", "memory"] | ChooseStart = "global",
    theta_init: Literal["global", "theta", "memory", "shifted"] | ChooseStart = "theta",
    prox_start: ProxStart = "local",
    prox_solver: str | Solver | optax.GradientTransformation = "gradient",
    tol: Tolerance = 0.0,
    envelope: Literal["exact", "first-order"] = "exact",
    jacobian: Literal["identity", "exact"] = "identity",
    personal: Literal["theta", "global"] = "theta",
) -> Algorithm:
    r"""Algorithm 1: a personal prior, its mean, a proximal map, an averaging server.

    A local step r of client i, on one minibatch (two for ``mg-meta``):

        mu      <- mu_i(w; context)                                        line 8
        theta   <- K solver steps on f_i + lam D_{g*}(., mu)               line 9
        w       <- w - alpha_m Dmu^T lam grad_m D_{g*}(theta, mu)          line 10, Eq. (equ_gdmp) with erratum 1:
                                                                           (mu - theta) where it prints (w - theta)

    and the server: w <- (1 - beta) w + beta E_I w_i (line 14). G is w, P is theta_i. Its diagnostics are the loss of
    w before and of theta after local training, and ||theta - mu|| and the proximal steps, averaged over local steps.

    Args:
      task: model and loss f.
      mean: mu_i, by name, a :class:`~pfedbred.means.Mean`, or a function that builds one from eta_a and eta.
      prior: g, by name, a :class:`~pfedbred.priors.Prior`, or a function that builds one.
      sigma: the Gaussian's Sigma: a number or an array; in an experiment also the path of a .npy file. ``learned``
        learns a diagonal one.
      lam: lambda, the strength of the prior; or ``learned``, ``learned(client)``, ``learned(layer)`` or
        ``learned(client x layer)``, starting from 15 or from a given number as in ``learned(layer, 5)``: see
        :mod:`pfedbred.algorithms.learned_strength`.
      alpha: step size of the proximal solver.
      alpha_m: step size of the main problem.
      eta_a: eta_alpha, the mean's step along grad f.
      eta: the mean's step along (memory - theta).
      K: proximal steps.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R.
      beta: coefficient of the new average; 2 is the paper's aggregation momentum.
      w_init: where w_i starts a round (line 5); the paper: the global model.
      theta_init: where theta_i starts a round (line 6); the paper: where it ended the previous one. ``shifted`` adds
        the global model's move since then.
      prox_start: where the proximal steps start; the experiments: at the local model, but for ``fo`` at the mean.
      prox_solver: ``gradient`` (implicit in a prior that has long tails or a learned strength), ``mirror``,
        ``implicit``, an optax optimizer by name or as object, or a Solver.
      tol: stop the proximal steps when the gradient norm falls to it; 0 takes all K.
      envelope: the envelope's gradient in mu: exact, or lam (mu - theta) in params; equal for the spherical Gaussian.
      jacobian: Dmu as the identity (paper), or exact by one vector-Jacobian product.
      personal: whether P is theta_i, or the global model for methods without a personal one.

    References: Shi et al., Algorithm 1 (alg_pFedBreD).
    """
    strength = learned_strength.get(task, prior, lam, sigma)
    strategy = means.get(mean, eta_a, eta)
    solve = strength.solver(prox_solver, alpha, K, tol)
    work = Work(R, epochs, strategy.batches)
    start_w = STARTS[w_init] if isinstance(w_init, str) else w_init
    start_theta = THETA_STARTS[theta_init] if isinstance(theta_init, str) else theta_init
    starts = (
        {"theta", "memory", "shifted"} if callable(w_init) or callable(theta_init) else {w_init, theta_init, prox_start}
    )
    keeps_theta = personal == "theta" or strategy.uses_memory or bool({"theta", "shifted"} & starts)
    keeps_memory = strategy.uses_memory or "memory" in starts
    keeps_seen = "shifted" in starts

    def kept(theta: Tree, w: Tree, about_strength: Tree, seen: Tree) -> PersonalState:
        return PersonalState(
            theta if keeps_theta else None, w if keeps_memory else None, about_strength, seen if keeps_seen else None
        )

    def train(message: Tree, state: PersonalState, data: ClientData) -> tuple[Tree, PersonalState, Info]:
        w_global, held = strength.received(message, state.strength, data)

        def local_step(w: Tree, carry: tuple[Tree, Tree], batches: list[Batch]) -> Step:
            theta, _ = carry
            context = means.Context(lambda v, j: task.loss(v, batches[j]), theta, state.memory)

            def choose(w: Tree) -> tuple[Tree, means.Chosen]:
                chosen = strategy.choose(w, context)
                return chosen.mean, chosen

            if jacobian == "exact":
                mu, pull_back, chosen = jax.vjp(choose, w, has_aux=True)
            else:
                mu, chosen = choose(w)

            batch = batches[-1]
            # A learned strength needs theta's distance from the model that all clients share in the round.
            anchor = strategy.choose(w_global, context).mean if strength.learns else mu
            problem = Problem(lambda v: task.loss(v, batch), anchor, held.prior, held.lam, task.first_layer(batch))
            start = {"local": chosen.local, "theta": theta, "mean": mu}[prox_start]
            theta, steps = prox(problem, solve, start)

            gradient = strength.main_gradient(problem._replace(mean=mu), theta, envelope == "exact")
            if jacobian == "exact":
                (gradient,) = pull_back(gradient)
            info = {"distance_to_mean": optax.tree.norm(optax.tree.sub(theta, problem.mean)), "prox_steps": steps}
            return Step(gradient, start=chosen.local, carry=(theta, anchor if strength.learns else None), info=info)

        begin, start = start_w(w_global, state), start_theta(w_global, state) if keeps_theta else w_global
        carry = (start, begin if strength.learns else None)
        w, (theta, mu), seen = local_steps(local_step, begin, data, alpha=alpha_m, work=work, carry=carry)
        upload, about_strength, learned = strength.reply(Ended(w, theta, mu), held, state.strength, data)
        info = {
            "loss_before": task.loss(begin, data.batch(0)),
            "loss_after": task.loss(theta, data.batch(strategy.batches * work.steps_of(data) - 1)),
            **seen,
            **learned,
        }
        return upload, kept(theta, w, about_strength, w_global), info

    def model(message: Tree, state: PersonalState, data: ClientData) -> Tree:
        return state.theta if personal == "theta" else strength.received(message, state.strength, data)[0]

    def precision(message: Tree, state: PersonalState, data: ClientData) -> Tree:
        w, held = strength.received(message, state.strength, data)
        return prior_precision(held, state.theta, w, data)

    def described(message: Tree, state: PersonalState, data: ClientData) -> Info:
        return strength.described(strength.received(message, state.strength, data)[1])

    client = Client(
        lambda w: kept(w, w, strength.fresh(w), w),
        train,
        model,
        draws=draws(work),
        precision=precision if personal == "theta" else None,
        described=described if strength.learns else None,
    )
    server = averaging_server(task, beta)
    return Algorithm(strength.of_client(client), strength.of_server(server), task.model.apply)
