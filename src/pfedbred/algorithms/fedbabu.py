"""FedBABU: a shared body trained under a fixed head; heads are fine-tuned at the end."""

from __future__ import annotations

from typing import Annotated

import jax

from pfedbred.algorithms.base import Algorithm, Client, Task, method
from pfedbred.algorithms.body_and_head import BodyAndHead, body_gradient, body_server, join
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import ClientData
from pfedbred.settings.values import Count, Epochs, InPlaceOf, NonNegative
from pfedbred.types import Tree


@method(
    paper="Oh et al., FedBABU: Towards Enhanced Representation for Federated Image Classification",
    year=2022,
    G="shared body, initial head",
    P="G after local fine-tuning",
)
def fedbabu(
    task: Task,
    *,
    alpha: NonNegative = 0.01,
    R: Count = 20,
    epochs: Epochs = None,
    tune_steps: Count = 20,
    tune_epochs: Annotated[Count | None, InPlaceOf("tune_steps")] = None,
) -> Algorithm:
    r"""FedBABU: min_b E_i f_i(b, h_0) with the initial head h_0 fixed.

        b_i <- b_i - alpha grad_b f_i(b_i, h_0),  R steps from b;     b <- E_I b_i

    G is (b, h_0). P is G after ``tune_steps`` steps of body and head on local training minibatches. Clients keep no
    state.

    Args:
      task: model and loss f.
      alpha: step size.
      R: local steps of the body.
      epochs: passes over the client's samples, instead of R.
      tune_steps: steps from G to P.
      tune_epochs: passes from G to P, instead of tune_steps; five in the paper.

    References: Oh, Kim and Yun, ICLR 2022, Algorithm 1.
    """
    work, tuning = Work(R, epochs), Work(tune_steps, tune_epochs)

    def train(message: BodyAndHead, state: Tree, data: ClientData) -> tuple[Tree, Tree]:
        gradient = body_gradient(task, message.head)
        return descend(gradient, message.body, data, alpha=alpha, steps=work), state

    def model(message: BodyAndHead, state: Tree, data: ClientData) -> Tree:
        start = join(message.body, message.head)
        return descend(jax.grad(task.loss), start, data, alpha=alpha, steps=tuning)

    client = Client(
        init=lambda message: (),
        train=train,
        model=model,
        draws=draws(work),
        model_draws=draws(tuning),
        unchanged=lambda message: message.body,
        uploaded=lambda message, body: join(body, message.head),
    )
    return Algorithm(client, body_server(task), task.model.apply)
