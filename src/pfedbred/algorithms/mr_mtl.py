"""MR-MTL: a model for every client, held near the mean of all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from pfedbred.algorithms.base import Algorithm, Client, Task, averaging_server, method
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.settings.values import Count, Epochs, NonNegative
from pfedbred.types import Tree


@method(
    paper="Liu et al., On Privacy and Personalization in Cross-Silo Federated Learning", year=2022, G="w", P="theta_i"
)
def mr_mtl(
    task: Task, *, lam: NonNegative = 1.0, alpha: NonNegative = 0.01, R: Count = 20, epochs: Epochs = None
) -> Algorithm:
    r"""MR-MTL: min over all theta_i of E_i f_i(theta_i) + lam/2 ||theta_i - w||^2, with w the mean of the theta_i.

        theta_i <- theta_i - alpha (grad f_i(theta_i) + lam (theta_i - w)),  R steps from its own theta_i
        w       <- E_I theta_i

    There is one model per client: unlike Ditto's, the personal model itself is uploaded. The authors' code adds the
    mean change of the theta_i to w, which is equivalent if all clients start alike and take part in every round. Their
    noise for differential privacy is left out. G is w, P is theta_i. With lam = 0 every client trains alone; the
    solution is that of pFedMe, whatever R is.

    Args:
      task: model and loss f.
      lam: lambda, how strongly theta_i is held at the mean; the paper tunes it.
      alpha: step size.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R.

    References: Liu, Hu, Wu and Smith, NeurIPS 2022.
    """
    work = Work(R, epochs)

    def train(w: Tree, theta: Tree, data: ClientData) -> tuple[Tree, Tree]:
        def gradient(theta: Tree, batch: Batch) -> Tree:
            return optax.tree.add_scale(jax.grad(task.loss)(theta, batch), lam, optax.tree.sub(theta, w))

        theta = descend(gradient, theta, data, alpha=alpha, steps=work)
        return theta, theta

    def precision(w: Tree, theta: Tree, data: ClientData) -> Tree:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, lam * data.size), theta)

    client = Client(
        init=lambda w: w,
        train=train,
        model=lambda w, theta, data: theta,
        draws=draws(work),
        comparable=False,  # uploads lie on all sides of w, which is their mean: honest updates may oppose each other
        precision=precision,
    )
    return Algorithm(client, averaging_server(task), task.model.apply)
