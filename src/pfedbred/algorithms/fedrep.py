"""FedRep: a shared body under personal heads, trained one after the other."""

from __future__ import annotations

from pfedbred.algorithms.base import Algorithm, Client, Task, descend, method
from pfedbred.algorithms.body_and_head import Parts, body_server, gradient_in, join
from pfedbred.data.minibatches import ClientData
from pfedbred.settings.values import Count, NonNegative
from pfedbred.types import Tree


@method(
    paper="Collins et al., Exploiting Shared Representations for Personalized Federated Learning",
    year=2021,
    G="shared body, initial head",
    P="shared body, own head",
)
def fedrep(task: Task, *, alpha: NonNegative = 0.01, R_head: Count = 15, R: Count = 5) -> Algorithm:
    r"""FedRep: min over one body b and heads h_i of E_i f_i(b, h_i), heads first.

        h_i <- h_i - alpha grad_h f_i(b, h_i),    R_head steps under the body received
        b_i <- b_i - alpha grad_b f_i(b_i, h_i),  R steps with that head, on the minibatches that follow
        b   <- E_I b_i

    Heads stay on their clients. P is (b, h_i), G is b under the initial head.

    Args:
      task: model and loss f.
      alpha: step size of both parts.
      R_head: steps of the head; the paper takes many (10 passes), and few for the body.
      R: steps of the body.

    References: Collins, Hassani, Mokhtari and Shakkottai, ICML 2021, Algorithm 1.
    """

    def train(message: Parts, head: Tree, data: ClientData) -> tuple[Tree, Tree]:
        parts = descend(gradient_in(task, ("head",)), Parts(message.body, head), data, alpha=alpha, steps=R_head)
        parts = descend(gradient_in(task, ("body",)), parts, data, alpha=alpha, steps=R, first=R_head)
        return parts.body, parts.head

    def model(message: Parts, head: Tree, data: ClientData) -> Tree:
        return join(message.body, head)

    client = Client(
        init=lambda message: message.head,
        train=train,
        model=model,
        draws=R_head + R,
        unchanged=lambda message: message.body,
    )
    return Algorithm(client, body_server(task), task.model.apply)
