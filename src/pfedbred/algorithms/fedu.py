"""FedU: one model per client, with neighbours pulled together by the graph's Laplacian."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from pfedbred.algorithms.base import Algorithm, Client, Task, Uploads, method
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.algorithms.mixing_server import mixing_server, off_diagonal
from pfedbred.data.minibatches import ClientData
from pfedbred.settings.values import Count, Epochs, NonNegative
from pfedbred.types import Array, Tree


class Upload(NamedTuple):
    """A client's model, and how many steps it took; None if that is known."""

    w: Tree
    steps: Array | None


@method(
    paper="Dinh et al., A New Look and Convergence Rate of Federated Multitask Learning With Laplacian Regularization",
    year=2022,
    G="mean of the w_i",
    P="w_i",
)
def fedu(
    task: Task, *, lam: NonNegative = 1.0, alpha: NonNegative = 0.01, R: Count = 20, epochs: Epochs = None
) -> Algorithm:
    r"""FedU: min over all w_i of sum_i f_i(w_i) + lam/4 sum_{i,j} a_ij ||w_i - w_j||^2, here with a_ij = 1/N.

        client:  w_i <- w_i - alpha grad f_i(w_i),  R steps from the w_i received
        server:  w_i <- w_i - lam alpha R sum_{j in I} a_ij (w_i - w_j)      for i in I

    P is the w_i that the server sends back, G is their mean. With lam = 0 every client trains alone.

    Args:
      task: model and loss f.
      lam: coefficient of the Laplacian, the paper's eta.
      alpha: the clients' step size, the paper's mu.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R; the server then uses each client's own number of steps.

    References: Dinh, Vu, Tran, Dao and Zhang, IEEE TNNLS 2022, Algorithm 1.
    """
    work = Work(R, epochs)

    def mix(models: Tree, present: Array, uploads: Uploads) -> Array:
        neighbours = present[:, None] & present[None, :]
        taken = R if uploads.upload.steps is None else uploads.upload.steps
        steps = jnp.zeros(len(present), optax.tree.dtype(models, "highest")).at[uploads.client].set(taken)
        step = lam * alpha * steps / len(present)
        others = off_diagonal(jnp.where(neighbours, step[:, None], 0.0))
        return others + jnp.diag(1 - jnp.sum(others, axis=1))

    def train(w: Tree, state: Tree, data: ClientData) -> tuple[Upload, Tree]:
        steps = None if epochs is None else jnp.asarray(work.steps_of(data), jnp.int32)
        return Upload(descend(jax.grad(task.loss), w, data, alpha=alpha, steps=work), steps), state

    client = Client(
        init=lambda w: (),
        train=train,
        model=lambda w, state, data: w,
        draws=draws(work),
        screened=lambda upload: upload.w,
        uploaded=lambda message, upload: upload.w,
    )
    server = mixing_server(task, mix, replaces=True, model_in=lambda upload: upload.w)
    return Algorithm(client, server, task.model.apply)
