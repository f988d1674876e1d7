r"""What an algorithm is: two halves of pure functions that meet in messages.

The client half runs where the data is, the server half where the averages are made; a simulation runs both, a real
federation runs each in its own process. Messages, uploads, states and models are any pytrees.

    server.init(weights, clients)      -> server state
    server.send(server state, i)       -> message to client i          (may differ from client to client)
    client.init(message)               -> client state                 (at the client's first message)
    client.train(message, state, data) -> upload, client state         (one round of local work)
    server.aggregate(state, uploads)   -> server state
    server.model(state)                -> the global model, G
    client.model(message, state, data) -> the client's personal model, P

``predict(model, x)`` gives logits for G and P alike. What a client keeps is in its own state and never in the
server's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from pfedbred.data.batches import Batch, ClientData
from pfedbred.models import Model
from pfedbred.types import Array, Tree


class Task(NamedTuple):
    """What is to be learnt: a model, and the loss of each sample given logits and labels."""

    model: Model
    losses: Callable[[Array, Array], Array] = optax.losses.softmax_cross_entropy_with_integer_labels

    def loss(self, weights: Tree, batch: Batch) -> Array:
        """f_i on one minibatch: the mean loss."""
        return jnp.mean(self.losses(self.model.apply(weights, batch.x), batch.y))


class Uploads(NamedTuple):
    """What the server receives in a round: one entry for each aggregated client, along the first axis."""

    upload: Tree
    client: Array
    weight: Array  # sums to one

    def average(self) -> Tree:
        """The weighted mean of the uploads, E_I in Algorithm 1."""
        return jax.tree.map(lambda leaf: jnp.tensordot(self.weight.astype(leaf.dtype), leaf, 1), self.upload)


class Client(NamedTuple):
    """The client half.

    ``draws`` is the number of minibatches ``train`` uses in a round, and ``model_draws`` the number that ``model``
    uses; both see them as ``data.batch(0)``, ``data.batch(1)`` and so on.
    """

    init: Callable[[Tree], Tree]
    train: Callable[[Tree, Tree, ClientData], tuple[Tree, Tree]]
    model: Callable[[Tree, Tree, ClientData], Tree]
    draws: int
    model_draws: int = 0


class Server(NamedTuple):
    """The server half."""

    init: Callable[[Tree, int], Tree]
    send: Callable[[Tree, Array], Tree]
    aggregate: Callable[[Tree, Uploads], Tree]
    model: Callable[[Tree], Tree]


class Algorithm(NamedTuple):
    """A client half, a server half, and how their models predict."""

    client: Client
    server: Server
    predict: Callable[[Tree, Array], Array]


def averaging_server(beta: float | Array = 1.0) -> Server:
    r"""The server of Algorithm 1: w <- (1 - beta) w + beta E_I w_i, sent alike to everyone."""

    def aggregate(w: Tree, uploads: Uploads) -> Tree:
        return optax.tree.add_scale(w, beta, optax.tree.sub(uploads.average(), w))

    return Server(
        init=lambda weights, clients: weights,
        send=lambda w, client: w,
        aggregate=aggregate,
        model=lambda w: w,
    )
