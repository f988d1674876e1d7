"""FedRep: a shared body under personal heads, trained one after the other."""

from __future__ import annotations

from typing import Annotated

from pfedbred.algorithms.base import Algorithm, Client, Task, method
from pfedbred.algorithms.body_and_head import BodyAndHead, body_gradient, body_server, head_gradient, join
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import ClientData
from pfedbred.settings.values import Count, Epochs, InPlaceOf, NonNegative
from pfedbred.types import Tree


@method(
    paper="Collins et al., Exploiting Shared Representations for Personalized Federated Learning",
    year=2021,
    G="shared body, initial head",
    P="shared body, own head",
)
def fedrep(
    task: Task,
    *,
    alpha: NonNegative = 0.01,
    R_head: Count = 15,
    epochs_head: Annotated[Count | None, InPlaceOf("R_head")] = None,
    R: Count = 5,
    epochs: Epochs = None,
) -> Algorithm:
    r"""FedRep: min over one body b and heads h_i of E_i f_i(b, h_i), heads first.

        h_i <- h_i - alpha grad_h f_i(b, h_i),    R_head steps under the body received
        b_i <- b_i - alpha grad_b f_i(b_i, h_i),  R steps with that head, on the minibatches that follow
        b   <- E_I b_i

    Heads stay on their clients. P is (b, h_i), G is b under the initial head.

    Args:
      task: model and loss f.
      alpha: step size of both parts.
      R_head: steps of the head; the paper takes many, and few for the body.
      epochs_head: passes over the client's samples for the head, instead of R_head; ten in the paper.
      R: steps of the body.
      epochs: passes for the body, instead of R; one in the paper.

    References: Collins, Hassani, Mokhtari and Shakkottai, ICML 2021, Algorithm 1.
    """
    heads, bodies = Work(R_head, epochs_head), Work(R, epochs)

    def train(message: BodyAndHead, head: Tree, data: ClientData) -> tuple[Tree, Tree]:
        body, first = message.body, heads.steps_of(data)
        head = descend(head_gradient(task, body), head, data, alpha=alpha, steps=heads)
        body = descend(body_gradient(task, head), body, data, alpha=alpha, steps=bodies, first=first)
        return body, head

    def model(message: BodyAndHead, head: Tree, data: ClientData) -> Tree:
        return join(message.body, head)

    client = Client(
        init=lambda message: message.head,
        train=train,
        model=model,
        draws=draws(heads, bodies),
        unchanged=lambda message: message.body,
        uploaded=lambda message, body: join(body, message.head),
    )
    return Algorithm(client, body_server(task), task.model.apply)
