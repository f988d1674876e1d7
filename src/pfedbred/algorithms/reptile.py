"""Reptile: move the global model towards the result of local training."""

from __future__ import annotations

from typing import Annotated

import jax

from pfedbred.algorithms.base import Algorithm, Client, Task, averaging_server, method
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import ClientData
from pfedbred.settings.values import Count, Epochs, InPlaceOf, NonNegative
from pfedbred.types import Tree


@method(paper="Nichol et al., On First-Order Meta-Learning Algorithms", year=2018, G="w", P="w after adaptation")
def reptile(
    task: Task,
    *,
    epsilon: NonNegative = 1.0,
    alpha: NonNegative = 0.01,
    R: Count = 20,
    epochs: Epochs = None,
    adapt_steps: Count = 5,
    adapt_epochs: Annotated[Count | None, InPlaceOf("adapt_steps")] = None,
) -> Algorithm:
    r"""Reptile: w <- w + epsilon E_I (w_i - w), w_i by R local SGD steps from w.

    G is w. P is w after ``adapt_steps`` steps on local training minibatches. With epsilon = 1 training is FedAvg's.

    Args:
      task: model and loss f.
      epsilon: the outer step size; the paper starts near 1 and decays it.
      alpha: local step size.
      R: local steps, the paper's k.
      epochs: passes over the client's samples, instead of R.
      adapt_steps: steps from w to a personal model; the paper's experiments use 5 to 100.
      adapt_epochs: passes, instead of adapt_steps.

    References: Nichol, Achiam and Schulman, arXiv 1803.02999, Algorithm 2 (batched).
    """
    grad = jax.grad(task.loss)
    work, adaptation = Work(R, epochs), Work(adapt_steps, adapt_epochs)

    def train(w: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree]:
        return descend(grad, w, data, alpha=alpha, steps=work), state

    def model(w: Tree, state: Tree, data: ClientData) -> Tree:
        return descend(grad, w, data, alpha=alpha, steps=adaptation)

    client = Client(init=lambda w: (), train=train, model=model, draws=draws(work), model_draws=draws(adaptation))
    return Algorithm(client, averaging_server(task, epsilon), task.model.apply)
