"""FedAvg: local SGD, averaged."""

from __future__ import annotations

import jax

from pfedbred.algorithms.base import Algorithm, Client, Info, Task, averaging_server, method
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import ClientData
from pfedbred.settings.values import Count, Epochs, Positive
from pfedbred.types import Tree


@method(
    paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data",
    year=2017,
    G="w",
    P="w",
)
def fedavg(
    task: Task, *, alpha: Positive = 0.01, R: Count = 20, epochs: Epochs = None, beta: Positive = 1.0
) -> Algorithm:
    r"""FedAvg: min_w E_i f_i(w), by R local steps w <- w - alpha grad f_i(w) and averaging.

    It is Algorithm 1 with mu = w, a single proximal step and alpha_m lam = 1: the proximal step from mu gives
    theta = w - alpha grad f(w), and w - alpha_m lam (mu - theta) = theta. There is no personal model:
    G and P are both the global model, and evaluated on the same test samples they agree. Its diagnostics are the loss
    before and after local training, on the round's first minibatch.

    Args:
      task: model and loss f.
      alpha: local step size.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R.
      beta: coefficient of the new average; 2 is the paper's aggregation momentum.

    References: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017.
    """
    work = Work(R, epochs)

    def train(w: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, Info]:
        trained, batch = descend(jax.grad(task.loss), w, data, alpha=alpha, steps=work), data.batch(0)
        return trained, state, {"loss_before": task.loss(w, batch), "loss_after": task.loss(trained, batch)}

    client = Client(init=lambda w: (), train=train, model=lambda w, state, data: w, draws=draws(work))
    return Algorithm(client, averaging_server(task, beta), task.model.apply)
