"""FedPer: a shared body under personal heads, trained together."""

from __future__ import annotations

import jax

from pfedbred.algorithms.base import Algorithm, Client, Task, method
from pfedbred.algorithms.body_and_head import BodyAndHead, body_server, join, split
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import ClientData
from pfedbred.settings.values import Count, Epochs, NonNegative
from pfedbred.types import Tree


@method(
    paper="Arivazhagan et al., Federated Learning with Personalization Layers",
    year=2019,
    G="shared body, initial head",
    P="shared body, own head",
)
def fedper(task: Task, *, alpha: NonNegative = 0.01, R: Count = 20, epochs: Epochs = None) -> Algorithm:
    r"""FedPer: min over one body b and heads h_i of E_i f_i(b, h_i).

        (b_i, h_i) <- (b_i, h_i) - alpha grad f_i(b_i, h_i),  R steps from (b, h_i);     b <- E_I b_i

    Heads stay on their clients; here all start from the same head, in the paper each starts at random. P is (b, h_i),
    G is b under the initial head. The head is the model's (``Model.head``); a model that is all head is trained
    locally.

    Args:
      task: model and loss f.
      alpha: step size of both parts.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R.

    References: Arivazhagan, Aggarwal, Singh and Choudhary, arXiv 1912.00818, Algorithms 1 and 2.
    """
    work = Work(R, epochs)

    def train(message: BodyAndHead, head: Tree, data: ClientData) -> tuple[Tree, Tree]:
        start = join(message.body, head)
        return split(task, descend(jax.grad(task.loss), start, data, alpha=alpha, steps=work))

    def model(message: BodyAndHead, head: Tree, data: ClientData) -> Tree:
        return join(message.body, head)

    client = Client(
        init=lambda message: message.head,
        train=train,
        model=model,
        draws=draws(work),
        unchanged=lambda message: message.body,
        uploaded=lambda message, body: join(body, message.head),
    )
    return Algorithm(client, body_server(task), task.model.apply)
