"""FedProx: FedAvg with local models held near the global one."""

from __future__ import annotations

import jax
import optax

from pfedbred.algorithms.base import Algorithm, Client, Task, averaging_server, method
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.settings.values import Count, Epochs, NonNegative
from pfedbred.types import Tree


@method(paper="Li et al., Federated Optimization in Heterogeneous Networks", year=2020, G="w", P="w")
def fedprox(
    task: Task, *, mu: NonNegative = 0.01, alpha: NonNegative = 0.01, R: Count = 20, epochs: Epochs = None
) -> Algorithm:
    r"""FedProx: clients descend on h_i(v) = f_i(v) + mu/2 ||v - w||^2, the server averages.

        v <- v - alpha (grad f_i(v) + mu (v - w)),  R steps from w;      w <- E_I v_i

    No personal model: G and P are w. With mu = 0 it is FedAvg.

    Args:
      task: model and loss f.
      mu: coefficient of the proximal term; the paper tries 0.001 to 1.
      alpha: local step size.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R.

    References: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2.
    """
    work = Work(R, epochs)

    def train(w: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree]:
        def gradient(v: Tree, batch: Batch) -> Tree:
            return optax.tree.add_scale(jax.grad(task.loss)(v, batch), mu, optax.tree.sub(v, w))

        return descend(gradient, w, data, alpha=alpha, steps=work), state

    client = Client(init=lambda w: (), train=train, model=lambda w, state, data: w, draws=draws(work))
    return Algorithm(client, averaging_server(task), task.model.apply)
