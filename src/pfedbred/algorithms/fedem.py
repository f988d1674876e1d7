"""FedEM: every client's data as a mixture of a few shared distributions."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from pfedbred.algorithms.base import Algorithm, Client, Networks, Server, ServerState, Task, averaging_server, method
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.settings.values import Count, Epochs, Few, NonNegative
from pfedbred.types import Array, Key, Tree


class Mixture(NamedTuple):
    """M models along the first axis, and the logarithms of their mixture weights (up to a constant)."""

    components: Tree
    log_weights: Array


@method(
    paper="Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions",
    year=2021,
    G="components mixed equally",
    P="components mixed by pi_i",
)
def fedem(task: Task, *, M: Few = 3, alpha: NonNegative = 0.01, R: Count = 20, epochs: Epochs = None) -> Algorithm:
    r"""FedEM: client i predicts with sum_m pi_im p(y | x, theta_m); EM over clients for the shared theta_m.

        E:  q_s(m) is proportional to pi_im exp(-loss of theta_m on sample s)        for all local samples s
        M:  pi_im <- mean_s q_s(m);
            theta_im <- theta_im - alpha grad mean_{s in minibatch} q_s(m) loss(theta_im; s),  R steps from theta_m
        server:  theta_m <- E_I theta_im

    pi_i stays on the client. P is the mixture of the shared components by pi_i, which is also what the pFedBreD
    paper evaluates and prints in its "G" row; G here mixes them equally, since the server does not know pi.
    With M = 1 it is FedAvg.

    Args:
      task: model and loss f; exp(-loss) must be a likelihood, as it is for every named task.
      M: number of components; 3 in the paper.
      alpha: step size.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R.

    References: Marfoq, Neglia, Bellet, Kameni and Vidal, NeurIPS 2021, Algorithm 1.
    """
    work = Work(R, epochs)
    apply_each = jax.vmap(task.model.apply, in_axes=(0, None))

    def losses(components: Tree, batch: Batch) -> Array:
        """The loss of each component on each sample: (M, samples)."""
        return jax.vmap(lambda each: task.losses(task.outputs(each, batch), batch.y))(components)

    def responsibilities(components: Tree, log_weights: Array, batch: Batch) -> Array:
        return jax.nn.softmax(log_weights[:, None] - losses(components, batch), axis=0)

    def train(components: Tree, log_weights: Array, data: ClientData) -> tuple[Tree, Array]:
        def add(total: Array, batch: Batch, real: Array) -> Array:
            return total + jnp.sum(jnp.where(real, responsibilities(components, log_weights, batch), 0), axis=1)

        def weighted_gradient(moving: Tree, batch: Batch) -> Tree:
            q = responsibilities(components, log_weights, batch)  # from the E-step, fixed while the models move
            return jax.grad(lambda each: jnp.sum(batch.mean(q * losses(each, batch))))(moving)

        pi = data.fold(add, jnp.zeros_like(log_weights)) / data.size.astype(log_weights.dtype)
        upload = descend(weighted_gradient, components, data, alpha=alpha, steps=work)
        return upload, jnp.log(jnp.maximum(pi, jnp.finfo(pi.dtype).tiny))  # no -inf where pi is zero

    def init(key: Key, clients: int) -> ServerState:
        keys = jnp.stack([key, *(jax.random.fold_in(key, m) for m in range(1, M))])
        return ServerState(jax.vmap(task.model.init)(keys))

    def equal_weights(components: Tree) -> Array:
        return jnp.full(M, -jnp.log(M), optax.tree.dtype(components, "highest"))

    def predict(model: Mixture, x: Array) -> Array:
        return task.kind.mix(jax.nn.log_softmax(model.log_weights), apply_each(model.components, x))

    def personal(components: Tree, log_weights: Array, data: ClientData) -> Mixture:
        return Mixture(components, log_weights)

    plain = averaging_server(task)
    server = Server(
        init,
        plain.send,
        plain.aggregate,
        model=lambda state: Mixture(state.model, equal_weights(state.model)),
        adopt=lambda state, model: ServerState(model.components),
    )
    # Clients with data from different components move each component in different directions.
    client = Client(equal_weights, train, personal, draws=draws(work), comparable=False)
    networks = Networks(lambda model: model.components, lambda model, new: model._replace(components=new), several=True)
    return Algorithm(client, server, predict, networks)
