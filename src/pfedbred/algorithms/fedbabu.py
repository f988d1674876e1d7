"""FedBABU: a shared body trained under a fixed head; heads are fine-tuned at the end."""

from __future__ import annotations

from pfedbred.algorithms.base import Algorithm, Client, Task, descend, method
from pfedbred.algorithms.body_and_head import Parts, body_server, gradient_in, join
from pfedbred.data.minibatches import ClientData
from pfedbred.settings.values import Count, NonNegative
from pfedbred.types import Tree


@method(
    paper="Oh et al., FedBABU: Towards Enhanced Representation for Federated Image Classification",
    year=2022,
    G="shared body, initial head",
    P="G after local fine-tuning",
)
def fedbabu(task: Task, *, alpha: NonNegative = 0.01, R: Count = 20, tune_steps: Count = 20) -> Algorithm:
    r"""FedBABU: min_b E_i f_i(b, h_0) with the initial head h_0 fixed.

        b_i <- b_i - alpha grad_b f_i(b_i, h_0),  R steps from b;     b <- E_I b_i

    G is (b, h_0). P is G after ``tune_steps`` steps of body and head on local training minibatches. Clients keep
    nothing.

    Args:
      task: model and loss f.
      alpha: step size.
      R: local steps of the body.
      tune_steps: steps from G to P; the paper fine-tunes for five passes.

    References: Oh, Kim and Yun, ICLR 2022, Algorithm 1.
    """

    def train(message: Parts, state: Tree, data: ClientData) -> tuple[Tree, Tree]:
        return descend(gradient_in(task, ("body",)), message, data, alpha=alpha, steps=R).body, state

    def model(message: Parts, state: Tree, data: ClientData) -> Tree:
        tuned = descend(gradient_in(task, ("body", "head")), message, data, alpha=alpha, steps=tune_steps)
        return join(tuned.body, tuned.head)

    client = Client(
        init=lambda message: (),
        train=train,
        model=model,
        draws=R,
        model_draws=tune_steps,
        unchanged=lambda message: message.body,
    )
    return Algorithm(client, body_server(task), task.model.apply)
