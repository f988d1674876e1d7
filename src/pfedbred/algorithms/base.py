r"""What an algorithm is: two halves of pure functions that exchange messages.

The client half runs where the data is, the server half where uploads are averaged; a simulation runs both, a real
federation runs each in its own process. Messages, uploads, states and models are any pytrees.

    server.init(key, clients)          -> server state
    server.send(server state, i)       -> message to client i          (may differ from client to client)
    client.init(message)               -> client state                 (at the start, or when a client joins)
    client.train(message, state, data) -> upload, client state[, info] (one round of local work)
    server.aggregate(state, uploads)   -> server state
    server.model(state)                -> the global model, G
    client.model(message, state, data) -> the client's personal model, P

``predict(model, x)`` gives logits for G and P alike. What a client keeps stays in its own state, never in the server's.
An algorithm that has to query the selected clients before they train (Mime) has a ``prepare`` in both halves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import optax

from pfedbred.aggregation import Gathered, Rule, weighted_mean
from pfedbred.algorithms.local_steps import Draws
from pfedbred.bregman.first_layer import FirstLayer
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.models import Model
from pfedbred.tasks import CLASSIFICATION, Losses, Target, TaskKind, cross_entropy
from pfedbred.types import Array, Key, Tree, built_by


class Task(NamedTuple):
    """What to learn: a model, and the loss of each sample given the model's outputs and the labels.

    Attributes:
      model: the network.
      losses: the loss of each sample, given outputs and the labels as stored in the data; see
        :func:`pfedbred.tasks.per_sample`.
      kind: what labels stand for, and how predictions are evaluated and shown.
      target: how the labels of a regression are standardised.
    """

    model: Model
    losses: Losses = cross_entropy
    kind: TaskKind = CLASSIFICATION
    target: Target | None = None

    def __repr__(self) -> str:
        return f"Task({self.kind.name} with {self.model})"

    def outputs(self, params: Tree, batch: Batch) -> Array:
        """The network's outputs in training: with dropout, and normalised by the minibatch's own statistics.

        A minibatch without a key drops the same units every time; the engine gives each minibatch its own key.
        """
        if self.model.train is None:
            return self.model.apply(params, batch.x)
        return self.model.train(params, batch.x, jax.random.key(0) if batch.key is None else batch.key)

    def loss(self, params: Tree, batch: Batch) -> Array:
        """f_i on one minibatch: the mean loss."""
        return batch.mean(self.losses(self.outputs(params, batch), batch.y))

    def first_layer(self, batch: Batch) -> FirstLayer | None:
        """The minibatch loss split after the network's first, linear layer; None if that would save nothing."""
        model, x = self.model, batch.x.reshape(batch.x.shape[0], -1)
        rest = model.rest
        if model.first is None or rest is None or model.train is not None or 4 * x.shape[0] > x.shape[1]:
            return None
        return FirstLayer(model.first, x, lambda params, z: batch.mean(self.losses(rest(params, z), batch.y)))

    def scores(self, outputs: Array) -> Array:
        """What metrics compare with the labels: logits, or numbers in the units of the labels."""
        found = self.kind.scores(self.kind.shaped(outputs))
        return found if self.target is None else found * self.target.unit + self.target.mean

    def full_gradient(self, params: Tree, data: ClientData) -> Tree:
        """Gradient of f_i on all of the client's training samples; batch normalisation uses blocks of 64."""

        def total(params: Tree, batch: Batch, real: Array) -> Array:
            return jnp.sum(jnp.where(real, self.losses(self.outputs(params, batch), batch.y), 0))

        def add(sum_: Tree, batch: Batch, real: Array) -> Tree:
            return optax.tree.add(sum_, jax.grad(total)(params, batch, real))

        summed = data.fold(add, optax.tree.zeros_like(params))
        return jax.tree.map(lambda leaf: leaf / data.size.astype(leaf.dtype), summed)


class Uploads(NamedTuple):
    """What the server receives in a round: one entry per selected client along the first axis.

    Attributes:
      upload: what the clients sent; zeros where the update was rejected.
      client: the clients' numbers.
      weights: averaging weights, which sum to one; 0 where the update was rejected.
      valid: whether each update counts.
      key: randomness for this round's aggregation.
      rule: how uploads are combined.
    """

    upload: Tree
    client: Array
    weights: Array
    valid: Array
    key: Key
    rule: Rule = weighted_mean

    def average(
        self,
        select: Callable[[Tree], Tree] = lambda upload: upload,
        *,
        around: Tree | None = None,
        weighted: bool = True,
        draw: int = 0,
    ) -> Tree:
        """The uploads, or the part of them that ``select`` picks, combined by the run's rule: E_I in Algorithm 1.

        Args:
          select: picks a part of an upload.
          around: the server's current value of that average; some rules clip around it.
          weighted: use the run's weights (training samples, by default), or weigh all clients equally. Where a paper
            prints a plain mean, use ``--weights uniform``.
          draw: distinguishes several averages in one round, for rules that draw random numbers.
        """
        weights = self.weights if weighted else self.valid / jnp.maximum(jnp.sum(self.valid), 1)
        key = jax.random.fold_in(self.key, draw)
        return self.rule(Gathered(select(self.upload), weights, self.valid, around, key))

    def total(
        self, select: Callable[[Tree], Tree] = lambda upload: upload, *, around: Tree | None = None, draw: int = 0
    ) -> Tree:
        """The sum of the uploads; under a robust rule, its estimate of their mean times the number of valid ones."""
        if self.rule is weighted_mean:
            return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), select(self.upload))
        mean = self.average(select, around=around, weighted=False, draw=draw)
        return jax.tree.map(lambda leaf: leaf * jnp.sum(self.valid).astype(leaf.dtype), mean)


Info: TypeAlias = Mapping[str, Array]
"""Diagnostics of one client's round: numbers by name, which the engine averages over clients on request."""

Trained: TypeAlias = tuple[Tree, Tree] | tuple[Tree, Tree, Info]
"""An upload and the client's next state, plus diagnostics if the method reports any."""


class ServerState(NamedTuple):
    """What the server knows: ``model`` is what it learns, ``extra`` whatever else it keeps.

    Aggregation momentum acts on ``model`` alone.
    """

    model: Tree
    extra: Tree = ()


class Client(NamedTuple):
    """The client half.

    Attributes:
      init: the client's state before its first round, from the first message it receives.
      train: one round of local work.
      model: the personal model, P.
      draws: how many minibatches ``train`` uses, read as ``data.batch(0)``, ``data.batch(1)`` and so on: a
        number, or a function of the number of minibatches in a pass; see
        :func:`~pfedbred.algorithms.local_steps.draws`.
      model_draws: how many ``model`` uses.
      prepare: the upload of the exchange that precedes training, if any.
      synced: whether the state mirrors what the server knows, so that it may only change in rounds whose upload the
        server accepts.
      unchanged: the upload of a client whose training changed nothing, by default the message. Norms of updates are
        measured from it. An update is rejected if its upload or the client's new state is not finite.
      comparable: whether honest clients' updates share a direction as far as their data allows, so that an update
        opposed to the others is rejected.
      screened: the part of an upload that is compared with ``unchanged`` and with other clients' uploads. The whole
        upload must be finite.
      uploaded: the uploaded network, given a message and the upload that answers it; clients compute G's batch
        statistics for this network.
      precision: the prior's precision for each of P's params, in units of the loss summed over samples: n lam for
        f + lam/2 ||. - w||^2. None if P has no prior.
      random: whether the method itself draws random numbers in training or for P, from ``data.key`` and the keys of
        minibatches. Networks draw from these too: fold in a number of your own.
      described: numbers by name that describe the client's state between rounds, such as the strength it has learned
        for its prior. With diagnostics, every evaluation records them for each client. ``strength`` and names that
        begin with ``strength_`` are for strengths of priors, which are positive and shown as logarithms.
    """

    init: Callable[[Tree], Tree]
    train: Callable[[Tree, Tree, ClientData], Trained]
    model: Callable[[Tree, Tree, ClientData], Tree]
    draws: Draws
    model_draws: Draws = 0
    prepare: Callable[[Tree, Tree, ClientData], Tree] | None = None
    synced: bool = False
    unchanged: Callable[[Tree], Tree] = lambda message: message
    comparable: bool = True
    screened: Callable[[Tree], Tree] = lambda upload: upload
    uploaded: Callable[[Tree, Tree], Tree] = lambda message, upload: upload
    precision: Callable[[Tree, Tree, ClientData], Tree] | None = None
    random: bool = False
    described: Callable[[Tree, Tree, ClientData], Info] | None = None

    def __repr__(self) -> str:
        return f"Client({built_by(self.train)})"


class Server(NamedTuple):
    """The server half.

    Attributes:
      init: the server's state before the first round, given the number of clients.
      send: the message to a client.
      aggregate: the next state, from a round's uploads.
      model: the global model, G.
      prepare: the next state, from the uploads of the exchange that precedes training, if any.
      welcome: the message to a client unknown to the server; not needed if ``send`` treats all clients alike.
      averages: whether ``aggregate`` averages the uploads, so that another aggregation rule can replace the mean.
      adopt: ``adopt(state, model)`` is the state with that G, for a new client about which nothing else is known.
    """

    init: Callable[[Key, int], ServerState]
    send: Callable[[ServerState, Array], Tree]
    aggregate: Callable[[ServerState, Uploads], ServerState]
    model: Callable[[ServerState], Tree]
    prepare: Callable[[ServerState, Uploads], ServerState] | None = None
    welcome: Callable[[ServerState], Tree] | None = None
    averages: bool = True
    adopt: Callable[[ServerState, Tree], ServerState] = lambda state, model: state._replace(model=model)

    def __repr__(self) -> str:
        return f"Server({built_by(self.aggregate)})"


class Networks(NamedTuple):
    """Where the networks are in an algorithm's models, G and P; usually a model is one network's params.

    Attributes:
      get: the network in a model.
      put: ``put(model, network)`` is the model with its network replaced.
      several: whether there are several networks, along the first axis of every array.
    """

    get: Callable[[Tree], Tree] = lambda model: model
    put: Callable[[Tree, Tree], Tree] = lambda model, network: network
    several: bool = False


class Algorithm(NamedTuple):
    """A client half, a server half, how their models predict, and where the networks are in these models."""

    client: Client
    server: Server
    predict: Callable[[Tree, Array], Array]
    networks: Networks = Networks()

    def __repr__(self) -> str:
        """The functions that built its halves, of which a wrapper is the last."""
        return f"Algorithm({self.client}, {self.server})"


def averaging_server(task: Task, beta: Any = 1.0) -> Server:
    r"""The server of Algorithm 1: w <- (1 - beta) w + beta E_I w_i, sent to every client."""

    def aggregate(state: ServerState, uploads: Uploads) -> ServerState:
        return ServerState(towards(state.model, uploads.average(around=state.model), beta))

    return Server(
        init=lambda key, clients: ServerState(task.model.init(key)),
        send=lambda state, client: state.model,
        aggregate=aggregate,
        model=lambda state: state.model,
    )


def towards(old: Tree, new: Tree, beta: Any) -> Tree:
    """(1 - beta) old + beta new."""
    return optax.tree.add_scale(old, beta, optax.tree.sub(new, old))


class About(NamedTuple):
    """Where a method comes from, and what its models are."""

    paper: str
    year: int | None
    global_: str
    personal: str


Builder = TypeVar("Builder", bound=Callable[..., Algorithm])


def method(*, paper: str, year: int | None, G: str, P: str) -> Callable[[Builder], Builder]:
    """Declares what ``pfedbred list algorithms`` shows about the function that builds an algorithm."""

    def note(build: Builder) -> Builder:
        build.about = About(paper, year, G, P)  # type: ignore[attr-defined]
        return build

    return note
