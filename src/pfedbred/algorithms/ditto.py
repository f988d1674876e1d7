"""Ditto: FedAvg, plus a personal model held near the global one."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
import optax

from pfedbred.algorithms.base import Algorithm, Client, Task, averaging_server, method
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.settings.values import Count, Epochs, InPlaceOf, NonNegative
from pfedbred.types import Tree


@method(paper="Li et al., Ditto: Fair and Robust Federated Learning Through Personalization", year=2021, G="w", P="v_i")
def ditto(
    task: Task,
    *,
    lam: NonNegative = 1.0,
    alpha: NonNegative = 0.01,
    R: Count = 20,
    epochs: Epochs = None,
    R_personal: Count = 20,
    epochs_personal: Annotated[Count | None, InPlaceOf("R_personal")] = None,
) -> Algorithm:
    r"""Ditto: min_{v_i} f_i(v_i) + lam/2 ||v_i - w*||^2, with w* the solution of FedAvg.

    In a round, from the same message w, on the round's first R and next R_personal minibatches:

        u   <- u - alpha grad f_i(u),                       R steps from w: uploaded, averaged as in FedAvg
        v_i <- v_i - alpha (grad f_i(v_i) + lam (v_i - w)), R_personal steps: kept

    G is w, P is v_i. With lam = 0, v_i is trained locally.

    Args:
      task: model and loss f.
      lam: lambda, how strongly v_i is held at w; in the paper each client chooses 0.1, 1 or 2 by validation, or uses 1.
      alpha: step size of both models.
      R: steps for the global model.
      epochs: passes over the client's samples, instead of R.
      R_personal: steps for the personal model, the paper's s.
      epochs_personal: passes, instead of R_personal.

    References: Li, Hu, Beirami and Smith, ICML 2021, Algorithm 1.
    """
    shared, own = Work(R, epochs), Work(R_personal, epochs_personal)

    def train(w: Tree, v: Tree, data: ClientData) -> tuple[Tree, Tree]:
        def personal_gradient(v: Tree, batch: Batch) -> Tree:
            return optax.tree.add_scale(jax.grad(task.loss)(v, batch), lam, optax.tree.sub(v, w))

        upload = descend(jax.grad(task.loss), w, data, alpha=alpha, steps=shared)
        first = shared.steps_of(data)
        return upload, descend(personal_gradient, v, data, alpha=alpha, steps=own, first=first)

    def precision(w: Tree, v: Tree, data: ClientData) -> Tree:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, lam * data.size), v)

    client = Client(
        init=lambda w: w,
        train=train,
        model=lambda w, v, data: v,
        draws=draws(shared, own),
        precision=precision,
    )
    return Algorithm(client, averaging_server(task), task.model.apply)
