"""Per-FedAvg: a global model from which one local step leads to a good personal model."""

from __future__ import annotations

from typing import Literal

import jax
import optax

from pfedbred.algorithms.base import Algorithm, Client, Task, averaging_server, method
from pfedbred.algorithms.local_steps import Step, Work, draws, local_steps
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.settings.values import Count, Epochs, NonNegative, Positive
from pfedbred.types import Tree


@method(
    paper="Fallah et al., Personalized Federated Learning: A Meta-Learning Approach",
    year=2020,
    G="w",
    P="w after a local step",
)
def per_fedavg(
    task: Task,
    *,
    alpha: NonNegative = 0.01,
    alpha_m: NonNegative = 0.01,
    R: Count = 20,
    epochs: Epochs = None,
    adapt_steps: Count = 1,
    order: Literal["first", "hessian-free", "exact"] = "first",
    delta: Positive = 0.001,
) -> Algorithm:
    r"""Per-FedAvg: min_w E_i F_i(w), F_i(w) = f_i(w - alpha grad f_i(w)).

    A local step takes fresh minibatches D, D' and (unless first-order) D'':

        v <- grad f(w - alpha grad f(w; D); D')
        w <- w - alpha_m (v - alpha Hess f(w; D'') v)

    ``first`` drops the Hessian, as the pFedBreD paper does; ``hessian-free`` takes
    Hess f v = (grad f(w + delta v) - grad f(w - delta v)) / (2 delta); ``exact`` computes one Hessian-vector product.

    G is w. P is w after one step of size alpha on a local training minibatch, as in F_i. Further steps, of size
    alpha_m, are an option: the pFedBreD paper's appendix takes two steps. With alpha = 0 training is FedAvg's.

    Args:
      task: model and loss f.
      alpha: the inner step size.
      alpha_m: the outer step size, the paper's beta.
      R: local steps, the paper's tau.
      epochs: passes over the client's samples, instead of R.
      adapt_steps: steps from w to a personal model, the first of size alpha and the others of size alpha_m.
      order: how the Hessian is treated.
      delta: step of the finite difference.

    References: Fallah, Mokhtari and Ozdaglar, NeurIPS 2020, Algorithm 1 and Section 5.
    """
    grad = jax.grad(task.loss)
    work = Work(R, epochs, batches=2 if order == "first" else 3)

    def train(w: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree]:
        def step(w: Tree, carry: Tree, batches: list[Batch]) -> Step:
            adapted = optax.tree.add_scale(w, -alpha, grad(w, batches[0]))
            v = grad(adapted, batches[1])
            if order == "hessian-free":
                above = grad(optax.tree.add_scale(w, delta, v), batches[2])
                below = grad(optax.tree.add_scale(w, -delta, v), batches[2])
                v = optax.tree.add_scale(v, -alpha / (2 * delta), optax.tree.sub(above, below))
            elif order == "exact":
                curvature = jax.jvp(lambda u: grad(u, batches[2]), (w,), (v,))[1]
                v = optax.tree.add_scale(v, -alpha, curvature)
            return Step(v)

        return local_steps(step, w, data, alpha=alpha_m, work=work).params, state

    def model(w: Tree, state: Tree, data: ClientData) -> Tree:
        for j in range(adapt_steps):
            w = optax.tree.add_scale(w, -alpha_m if j else -alpha, grad(w, data.batch(j)))
        return w

    client = Client(init=lambda w: (), train=train, model=model, draws=draws(work), model_draws=adapt_steps)
    return Algorithm(client, averaging_server(task), task.model.apply)
