"""APFL: a personal model mixed with the global one."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from pfedbred.algorithms.base import Algorithm, Client, Task, averaging_server, method, towards
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.settings.values import Count, Epochs, Fraction, NonNegative
from pfedbred.types import Array, Tree


class Mixed(NamedTuple):
    """A client's own model v_i and its weight a_i in the mixture."""

    v: Tree
    mixing: Array


@method(paper="Deng et al., Adaptive Personalized Federated Learning", year=2020, G="w", P="a_i v_i + (1 - a_i) w")
def apfl(
    task: Task,
    *,
    mixing: Fraction = 0.5,
    alpha: NonNegative = 0.01,
    eta_mixing: NonNegative = 0.01,
    R: Count = 20,
    epochs: Epochs = None,
) -> Algorithm:
    r"""APFL: min_{v_i} f_i(a_i v_i + (1 - a_i) w), with w learned as in FedAvg.

    Each round, a_i takes one gradient step, followed by the local steps, each on its own minibatch:

        a_i <- clip(a_i - eta_mixing <v_i - w_i, grad f_i(vbar_i)>, 0, 1)     once, on the round's first minibatch
        w_i <- w_i - alpha grad f_i(w_i)
        v_i <- v_i - alpha a_i grad f_i(vbar_i),   vbar_i = a_i v_i + (1 - a_i) w_i (before this step)

    The clip is from the authors' code; the paper leaves a_i unconstrained. w_i is averaged. G is w, P is
    a_i v_i + (1 - a_i) w with the global w. With eta_mixing = 0, a_i = 1 is local training and a_i = 0 is FedAvg.

    Args:
      task: model and loss f.
      mixing: the initial a_i.
      alpha: step size of both models.
      eta_mixing: step size of a_i; 0 keeps it fixed.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R.

    References: Deng, Kamani and Mahdavi, arXiv 2003.13461, Algorithm 1.
    """
    work = Work(R, epochs)

    def train(w_global: Tree, state: Mixed, data: ClientData) -> tuple[Tree, Mixed]:
        grad = jax.grad(task.loss)

        def mixed(v: Tree, w: Tree, share: Array) -> Tree:
            return towards(w, v, share)

        pull = grad(mixed(state.v, w_global, state.mixing), data.batch(0))
        slope = optax.tree.vdot(optax.tree.sub(state.v, w_global), pull)
        share = jnp.clip(state.mixing - eta_mixing * slope, 0, 1).astype(state.mixing.dtype)

        def gradients(models: tuple[Tree, Tree], batch: Batch) -> tuple[Tree, Tree]:
            w, v = models
            return grad(w, batch), optax.tree.scale(share, grad(mixed(v, w, share), batch))

        w, v = descend(gradients, (w_global, state.v), data, alpha=alpha, steps=work)
        return w, Mixed(v, share)

    def init(w: Tree) -> Mixed:
        return Mixed(w, jnp.asarray(mixing, optax.tree.dtype(w, "highest")))

    def model(w: Tree, state: Mixed, data: ClientData) -> Tree:
        return towards(w, state.v, state.mixing)

    return Algorithm(Client(init, train, model, draws=draws(work)), averaging_server(task), task.model.apply)
