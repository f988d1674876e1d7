"""pFedVEM: distributions over personal heads, averaged by the clients' confidence in them."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pfedbred.algorithms.base import Algorithm, Client, Server, ServerState, Task, Uploads, method
from pfedbred.algorithms.body_and_head import BodyAndHead, join, split
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.algorithms.mean_field import MeanField, around, divergence, expected
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.settings.values import Count, Epochs, Few, InPlaceOf, NonNegative, Positive
from pfedbred.types import Array, Tree


class Upload(NamedTuple):
    """A client's body, the mean of its head, and its confidence 1/rho_i^2."""

    parts: BodyAndHead
    confidence: Array


@method(
    paper="Zhu et al., Confidence-aware Personalized Federated Learning via Variational Expectation Maximization",
    year=2023,
    G="shared body, head w",
    P="shared body, mean of q_i",
)
def pfedvem(
    task: Task,
    *,
    sigma: Positive = 0.2,
    samples: Few = 5,
    alpha_head: NonNegative = 0.01,
    alpha: NonNegative = 0.01,
    R_head: Count = 10,
    epochs_head: Annotated[Count | None, InPlaceOf("R_head")] = None,
    R: Count = 10,
    epochs: Epochs = None,
) -> Algorithm:
    r"""pFedVEM: heads h_i ~ N(w, rho_i^2) on one body b, by variational EM over w, b and the rho_i.

    Each client keeps a mean-field Gaussian q_i = N(mu_i, sigma_i^2) over its head's d entries. In a round of a client
    with n_i samples, one minibatch per step:

        M:  rho_i^2 <- (||sigma_i||^2 + ||mu_i - w||^2) / d                                   before any step
        E:  q_i <- q_i - alpha_head grad_q (E_q f_i(b, .) + KL(q_i || N(w, rho_i^2)) / n_i),  R_head steps
        M:  b_i <- b_i - alpha grad_b E_q f_i(b_i, .),                                        R steps from b
        server:  w <- sum_I mu_i / rho_i^2 / sum_I 1 / rho_i^2;   b <- E_I b_i

    E_q is the mean over heads drawn from q_i. Clients that are sure of their heads, or agree with w, count for more.
    This is the version of the authors' code, with one body for all; a model that is all head gets the version
    without one. G is (b, w), P is (b, mu_i) with the b that the server sends.

    The E step's objective is the paper's divided by n_i, so that step sizes compare with other methods'; its steps are
    on minibatches, those of the authors' code on all samples. Clients report their own confidence: against dishonest
    clients, use an aggregation rule that ignores averaging weights, such as the median.

    Args:
      task: model and loss f; exp(-f) must be a likelihood, as it is for every named task.
      sigma: the initial deviations sigma_i; 1 in the authors' code, whose initial heads are as large.
      samples: how many heads are drawn for one gradient.
      alpha_head: step size of q_i.
      alpha: step size of the body.
      R_head: steps of the head; ten in the authors' code.
      epochs_head: passes over the client's samples for the head, instead of R_head.
      R: steps of the body.
      epochs: passes for the body, instead of R; five in the authors' code.

    References: Zhu, Ma and Blaschko, CVPR 2023.
    """
    heads, bodies = Work(R_head, epochs_head), Work(R, epochs)

    def expected_loss(q: MeanField, body: Tree, batch: Batch) -> Array:
        return expected(lambda head: task.loss(join(body, head), batch), q, batch, samples)

    def train(message: BodyAndHead, q: MeanField, data: ClientData) -> tuple[Upload, MeanField]:
        body, w = message
        variance = (_squares(q.sigma) + _squares(optax.tree.sub(q.mean, w))) / _entries(w)
        rho = jax.tree.map(lambda leaf: jnp.sqrt(variance), w)

        def objective(q: MeanField, batch: Batch) -> Array:
            return expected_loss(q, body, batch) + divergence(q, w, rho) / data.size.astype(variance.dtype)

        q = descend(jax.grad(objective), q, data, alpha=alpha_head, steps=heads)
        gradient = jax.grad(lambda body, batch: expected_loss(q, body, batch))
        body = descend(gradient, body, data, alpha=alpha, steps=bodies, first=heads.steps_of(data))
        return Upload(BodyAndHead(body, q.mean), 1 / variance), q

    def aggregate(state: ServerState, uploads: Uploads) -> ServerState:
        sure = uploads.upload.confidence  # zero where an update was rejected
        by_confidence = uploads._replace(weights=(sure / jnp.sum(sure)).astype(uploads.weights.dtype))
        body = uploads.average(lambda upload: upload.parts.body, around=state.model.body)
        head = by_confidence.average(lambda upload: upload.parts.head, around=state.model.head, draw=1)
        return ServerState(BodyAndHead(body, head))

    client = Client(
        init=lambda message: around(message.head, sigma),
        train=train,
        model=lambda message, q, data: join(message.body, q.mean),
        draws=draws(heads, bodies),
        comparable=False,  # heads lie on all sides of w
        screened=lambda upload: upload.parts,
        uploaded=lambda message, upload: join(*upload.parts),
        random=True,
    )
    server = Server(
        init=lambda key, clients: ServerState(split(task, task.model.init(key))),
        send=lambda state, client: state.model,
        aggregate=aggregate,
        model=lambda state: join(*state.model),
        adopt=lambda state, model: ServerState(split(task, model)),
    )
    return Algorithm(client, server, task.model.apply)


def _squares(tree: Tree) -> Array:
    return optax.tree.norm(tree, squared=True)


def _entries(tree: Tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
