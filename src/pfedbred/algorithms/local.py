"""Local training, without a federation."""

from __future__ import annotations

import jax

from pfedbred.algorithms.base import Algorithm, Client, Server, ServerState, Task, Uploads, method
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import ClientData
from pfedbred.settings.values import Count, Epochs, NonNegative
from pfedbred.types import Tree


@method(paper="no federation: a baseline", year=None, G="the start model, untrained", P="w_i")
def local(task: Task, *, alpha: NonNegative = 0.01, R: Count = 20, epochs: Epochs = None) -> Algorithm:
    r"""Every client trains alone: min_{w_i} f_i(w_i), by w_i <- w_i - alpha grad f_i(w_i), R steps a round.

    Nothing is uploaded. P is w_i; G is the initial model, which is never trained.

    Args:
      task: model and loss f.
      alpha: step size.
      R: steps per round, each on one minibatch.
      epochs: passes over the client's samples per round, instead of R.
    """
    work = Work(R, epochs)

    def train(start: Tree, w: Tree, data: ClientData) -> tuple[Tree, Tree]:
        return (), descend(jax.grad(task.loss), w, data, alpha=alpha, steps=work)

    def aggregate(state: ServerState, uploads: Uploads) -> ServerState:
        return state

    client = Client(
        init=lambda start: start,
        train=train,
        model=lambda start, w, data: w,
        draws=draws(work),
        uploaded=lambda start, nothing: start,
    )
    server = Server(
        init=lambda key, clients: ServerState(task.model.init(key)),
        send=lambda state, client: state.model,
        aggregate=aggregate,
        model=lambda state: state.model,
        averages=False,
    )
    return Algorithm(client, server, task.model.apply)
