"""Reptile: move the global model towards the result of local training."""

from __future__ import annotations

import jax

from pfedbred.algorithms.base import Algorithm, Client, Task, averaging_server, descend, method
from pfedbred.data.minibatches import ClientData
from pfedbred.settings.values import Count, NonNegative
from pfedbred.types import Tree


@method(paper="Nichol et al., On First-Order Meta-Learning Algorithms", year=2018, G="w", P="w after adaptation")
def reptile(
    task: Task, *, epsilon: NonNegative = 1.0, alpha: NonNegative = 0.01, R: Count = 20, adapt_steps: Count = 5
) -> Algorithm:
    r"""Reptile: w <- w + epsilon E_I (w_i - w), w_i by R local SGD steps from w.

    G is w. P is w after ``adapt_steps`` steps on local training minibatches. With epsilon = 1 training is FedAvg's.

    Args:
      task: model and loss f.
      epsilon: the outer step size; the paper starts near 1 and decays it.
      alpha: local step size.
      R: local steps, the paper's k.
      adapt_steps: steps from w to a personal model; the paper's experiments use 5 to 100.

    References: Nichol, Achiam and Schulman, arXiv 1803.02999, Algorithm 2 (batched).
    """
    grad = jax.grad(task.loss)

    def train(w: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree]:
        return descend(grad, w, data, alpha=alpha, steps=R), state

    def model(w: Tree, state: Tree, data: ClientData) -> Tree:
        return descend(grad, w, data, alpha=alpha, steps=adapt_steps)

    client = Client(init=lambda w: (), train=train, model=model, draws=R, model_draws=adapt_steps)
    return Algorithm(client, averaging_server(task, epsilon), task.model.apply)
