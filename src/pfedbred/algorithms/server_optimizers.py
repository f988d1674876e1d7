"""Server optimizers: the server treats a round's change of its model as a gradient for its own step."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pfedbred.algorithms.base import Algorithm, Server, ServerState, Task, Uploads, method
from pfedbred.algorithms.fedavg import fedavg
from pfedbred.errors import SettingError
from pfedbred.settings.signatures import declared, same_settings
from pfedbred.settings.values import Fraction, Positive
from pfedbred.types import Array, Key, Tree

_PAPER = "Reddi et al., Adaptive Federated Optimization"


class Moments(NamedTuple):
    """The server's averages of the updates (m) and of their squares (v)."""

    m: Tree
    v: Tree


class Extra(NamedTuple):
    """What the server keeps beside its model: the algorithm's extra state, and the optimizer's."""

    own: Tree
    moments: Moments


def server(
    algorithm: Algorithm,
    task: Task,
    *,
    server_optimizer: Literal["adam", "adagrad", "momentum", "yogi"] = "adam",
    server_alpha: Positive = 0.01,
    beta_1: Fraction = 0.9,
    beta_2: Fraction = 0.99,
    tau: Positive = 0.001,
) -> Algorithm:
    r"""A server optimizer over any algorithm whose server averages: Delta is how far its model moves in a round.

        m <- beta_1 m + (1 - beta_1) Delta
        v <- v + Delta^2                                              adagrad
             v - (1 - beta_2) Delta^2 sign(v - Delta^2)               yogi
             beta_2 v + (1 - beta_2) Delta^2                          adam
        w <- w + server_alpha m / (sqrt(v) + tau),    v = tau^2 at the start

    and for ``momentum`` (FedAvgM): m <- beta_1 m + Delta; w <- w + server_alpha m. It applies to what the server learns
    (``ServerState.model``). optax's optimizers of these names correct the bias of m and v, which the paper does not, or
    start from other values.

    Args:
      algorithm: the one to wrap.
      task: model and loss f.
      server_optimizer: which optimizer.
      server_alpha: the server's step size, the paper's eta.
      beta_1: how slowly m follows.
      beta_2: how slowly v follows.
      tau: keeps the step finite where v is small; the paper's 0.001.

    References: Reddi et al., ICLR 2021, Algorithms 1 and 2; Hsu, Qi and Brown, arXiv 1909.06335 (FedAvgM).
    """
    inner = algorithm.server
    if not inner.averages:
        raise SettingError("a server optimizer needs a server that averages uploads, which this algorithm's does not")

    def unwrapped(state: ServerState) -> ServerState:
        return ServerState(state.model, state.extra.own)

    def init(key: Key, clients: int) -> ServerState:
        state = inner.init(key, clients)
        v = () if server_optimizer == "momentum" else optax.tree.full_like(state.model, tau**2)
        return ServerState(state.model, Extra(state.extra, Moments(optax.tree.zeros_like(state.model), v)))

    def prepare(state: ServerState, uploads: Uploads) -> ServerState:
        assert inner.prepare is not None
        after = inner.prepare(unwrapped(state), uploads)
        return ServerState(after.model, state.extra._replace(own=after.extra))

    def aggregate(state: ServerState, uploads: Uploads) -> ServerState:
        after = inner.aggregate(unwrapped(state), uploads)
        delta = optax.tree.sub(after.model, state.model)
        model, moments = _step(state.model, delta, state.extra.moments)
        return ServerState(model, Extra(after.extra, moments))

    def _step(model: Tree, delta: Tree, before: Moments) -> tuple[Tree, Moments]:
        if server_optimizer == "momentum":
            m = optax.tree.add_scale(delta, beta_1, before.m)
            return optax.tree.add_scale(model, server_alpha, m), Moments(m, ())
        m = jax.tree.map(lambda old, new: beta_1 * old + (1 - beta_1) * new, before.m, delta)
        v = jax.tree.map(_second_moment, before.v, delta)
        return jax.tree.map(lambda w, m, v: w + server_alpha * m / (jnp.sqrt(v) + tau), model, m, v), Moments(m, v)

    def _second_moment(v: Array, delta: Array) -> Array:
        squared = delta**2
        if server_optimizer == "adagrad":
            return v + squared
        if server_optimizer == "yogi":
            return v - (1 - beta_2) * squared * jnp.sign(v - squared)
        return beta_2 * v + (1 - beta_2) * squared

    welcome = inner.welcome
    wrapped = Server(
        init=init,
        send=lambda state, client: inner.send(unwrapped(state), client),
        aggregate=aggregate,
        model=lambda state: inner.model(unwrapped(state)),
        prepare=prepare if inner.prepare else None,
        welcome=(lambda state: welcome(unwrapped(state))) if welcome else None,
    )
    return algorithm._replace(server=wrapped)


def _fedavg_with(task: Task, optimizer: Any, settings: dict[str, Any]) -> Algorithm:
    own = {name: settings.pop(name) for name in declared(server) if name in settings}
    return server(fedavg(task, **settings), task, server_optimizer=optimizer, **own)


@method(paper="Hsu et al., Measuring the Effects of Non-Identical Data Distribution", year=2019, G="w", P="w")
@same_settings(fedavg, server, without=("server_optimizer", "beta_2", "tau"))
def fedavgm(task: Task, **settings: Any) -> Algorithm:
    r"""FedAvgM: FedAvg with momentum on the server, m <- beta_1 m + Delta; w <- w + server_alpha m.

    Delta is how far FedAvg's average is from w. No personal model: G and P are w. With beta_1 = 0 and server_alpha = 1
    it is FedAvg. Settings as in :func:`~pfedbred.algorithms.server_optimizers.server`.

    References: Hsu, Qi and Brown, arXiv 1909.06335.
    """
    return _fedavg_with(task, "momentum", settings)


@method(paper=_PAPER, year=2021, G="w", P="w")
@same_settings(fedavg, server, without=("server_optimizer", "beta_2"))
def fedadagrad(task: Task, **settings: Any) -> Algorithm:
    r"""FedAdagrad: w <- w + server_alpha m / (sqrt(v) + tau), with v the sum of Delta^2 over the rounds.

    No personal model: G and P are w. Settings as in :func:`~pfedbred.algorithms.server_optimizers.server`.

    References: Reddi et al., ICLR 2021, Algorithm 2.
    """
    return _fedavg_with(task, "adagrad", settings)


@method(paper=_PAPER, year=2021, G="w", P="w")
@same_settings(fedavg, server, without=("server_optimizer",))
def fedadam(task: Task, **settings: Any) -> Algorithm:
    r"""FedAdam: w <- w + server_alpha m / (sqrt(v) + tau), with m and v averages of Delta and Delta^2.

    No personal model: G and P are w. Settings as in :func:`~pfedbred.algorithms.server_optimizers.server`.

    References: Reddi et al., ICLR 2021, Algorithm 2.
    """
    return _fedavg_with(task, "adam", settings)


@method(paper=_PAPER, year=2021, G="w", P="w")
@same_settings(fedavg, server, without=("server_optimizer",))
def fedyogi(task: Task, **settings: Any) -> Algorithm:
    r"""FedYogi: FedAdam, but v moves towards Delta^2 by steps of (1 - beta_2) Delta^2.

    No personal model: G and P are w. Settings as in :func:`~pfedbred.algorithms.server_optimizers.server`.

    References: Reddi et al., ICLR 2021, Algorithm 2.
    """
    return _fedavg_with(task, "yogi", settings)
