r"""What an algorithm is: two halves of pure functions that meet in messages.

The client half runs where the data is, the server half where the averages are made; a simulation runs both, a real
federation runs each in its own process. Messages, uploads, states and models are any pytrees.

    server.init(key, clients)          -> server state
    server.send(server state, i)       -> message to client i          (may differ from client to client)
    client.init(message)               -> client state                 (at the start, or when a client joins)
    client.train(message, state, data) -> upload, client state         (one round of local work)
    server.aggregate(state, uploads)   -> server state
    server.model(state)                -> the global model, G
    client.model(message, state, data) -> the client's personal model, P

``predict(model, x)`` gives logits for G and P alike. What a client keeps is in its own state and never in the
server's. An algorithm that needs to ask the selected clients something before they train (Mime) has a ``prepare`` in
both halves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax

from pfedbred.aggregation.rules import Rule
from pfedbred.bregman.first_layer import FirstLayer
from pfedbred.data.minibatches import Batch, ClientData, Inputs
from pfedbred.models import Model
from pfedbred.types import Array, Key, Tree


def cross_entropy(logits: Array, labels: Array) -> Array:
    """-ln softmax(logits)_label of each sample.

    The label's logit is picked by a comparison. optax takes it by its index, whose gradient is a scatter: on a GPU that
    takes twice as long to compile, and a tenth longer to run where the model is small.
    """
    is_label = labels[..., None] == jnp.arange(logits.shape[-1])
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(is_label, logits, 0), axis=-1)


class Task(NamedTuple):
    """What is to be learnt: a model, and the loss of each sample given logits and labels."""

    model: Model
    losses: Callable[[Array, Array], Array] = cross_entropy

    def loss(self, params: Tree, batch: Batch) -> Array:
        """f_i on one minibatch: the mean loss."""
        return jnp.mean(self.losses(self.model.apply(params, batch.x), batch.y))

    def first_layer(self, batch: Batch) -> FirstLayer | None:
        """The loss on one minibatch as one of a network that begins with a linear layer, if samples are long."""
        model, x = self.model, batch.x.reshape(batch.x.shape[0], -1)
        rest = model.rest
        if model.first is None or rest is None or 4 * x.shape[0] > x.shape[1]:
            return None
        return FirstLayer(model.first, x, lambda params, z: jnp.mean(self.losses(rest(params, z), batch.y)))

    def full_gradient(self, params: Tree, data: ClientData) -> Tree:
        """Gradient of f_i on all of the client's training samples."""

        def total(params: Tree, batch: Batch, real: Array) -> Array:
            return jnp.sum(jnp.where(real, self.losses(self.model.apply(params, batch.x), batch.y), 0))

        def add(sum_: Tree, batch: Batch, real: Array) -> Tree:
            return optax.tree.add(sum_, jax.grad(total)(params, batch, real))

        summed = data.fold(add, optax.tree.zeros_like(params))
        return jax.tree.map(lambda leaf: leaf / data.size.astype(leaf.dtype), summed)


class Uploads(NamedTuple):
    """What the server receives in a round: one entry for each selected client, along the first axis.

    Attributes:
      upload: what they sent; zeros where it is not taken.
      client: who they are.
      weight: of each; 0 where its upload is not taken, else in the run's proportions. They sum to one.
      taken: whose upload counts; a sick client's does not.
      rule: how uploads are averaged.
    """

    upload: Tree
    client: Array
    weight: Array
    taken: Array
    rule: Rule = Rule()

    def average(
        self,
        select: Callable[[Tree], Tree] = lambda upload: upload,
        *,
        around: Tree | None = None,
        weighted: bool = True,
    ) -> Tree:
        """The average of the uploads by the run's rule, E_I in Algorithm 1; of a part of them if ``select`` says which.

        ``around`` is what the server has in place of that average now. The weights are the run's, by training samples
        unless it says otherwise, or with ``weighted=False`` all alike. Some methods' papers print a plain mean here:
        ``--weights uniform``.
        """
        weight = self.weight if weighted else self.taken / jnp.maximum(jnp.sum(self.taken), 1)
        return self.rule.average(select(self.upload), weight, self.taken, around)

    def total(self, select: Callable[[Tree], Tree] = lambda upload: upload, *, around: Tree | None = None) -> Tree:
        """The sum of the uploads; by a robust rule, what it takes for their mean times how many there are."""
        if self.rule.name == "mean":
            return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), select(self.upload))
        mean = self.average(select, around=around, weighted=False)
        return jax.tree.map(lambda leaf: leaf * jnp.sum(self.taken).astype(leaf.dtype), mean)


class ServerState(NamedTuple):
    """What the server knows: ``model`` is what it learns, ``extra`` what else it keeps.

    Aggregation momentum acts on ``model`` alone.
    """

    model: Tree
    extra: Tree = ()


class Client(NamedTuple):
    """The client half.

    ``draws`` is the number of minibatches ``train`` uses in a round, and ``model_draws`` the number that ``model``
    uses; both see them as ``data.batch(0)``, ``data.batch(1)`` and so on. ``prepare(message, state, data)`` gives the
    upload of the exchange before training, if there is one. With ``synced`` the client's state mirrors what the
    server knows, so that it changes only in rounds whose upload the server takes in. ``unmoved(message)`` is what a
    client would upload that had learnt nothing; not needed where that is the message. What a client uploads and keeps
    must be finite: else it is taken for sick.
    """

    init: Callable[[Tree], Tree]
    train: Callable[[Tree, Tree, ClientData], tuple[Tree, Tree]]
    model: Callable[[Tree, Tree, ClientData], Tree]
    draws: int
    model_draws: int = 0
    prepare: Callable[[Tree, Tree, ClientData], Tree] | None = None
    synced: bool = False
    unmoved: Callable[[Tree], Tree] = lambda message: message


class Server(NamedTuple):
    """The server half. ``prepare(state, uploads)`` takes in the exchange before training, if there is one.

    ``welcome(state)`` is the message to a client that the server has never met; not needed where ``send`` treats all
    clients alike. ``averages`` says whether ``aggregate`` averages the uploads, which can be done by several rules.
    """

    init: Callable[[Key, int], ServerState]
    send: Callable[[ServerState, Array], Tree]
    aggregate: Callable[[ServerState, Uploads], ServerState]
    model: Callable[[ServerState], Tree]
    prepare: Callable[[ServerState, Uploads], ServerState] | None = None
    welcome: Callable[[ServerState], Tree] | None = None
    averages: bool = True


class Algorithm(NamedTuple):
    """A client half, a server half, and how their models predict."""

    client: Client
    server: Server
    predict: Callable[[Tree, Array], Array]


def averaging_server(task: Task, beta: Any = 1.0) -> Server:
    r"""The server of Algorithm 1: w <- (1 - beta) w + beta E_I w_i, sent alike to everyone."""

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


def descend(
    gradient: Callable[[Tree, Batch], Tree], params: Tree, data: ClientData, *, alpha: Any, steps: int, first: int = 0
) -> Tree:
    """``steps`` steps of w <- w - alpha gradient(w, batch), on the minibatches from number ``first`` on."""

    def step(params: Tree, number: Array) -> tuple[Tree, None]:
        return optax.tree.add_scale(params, -alpha, gradient(params, data.batch(number))), None

    return jax.lax.scan(step, params, jnp.arange(first, first + steps))[0]


class Exchange(NamedTuple):
    """The shapes and types of all that an algorithm sends and keeps, for one client and one round."""

    message: Tree
    upload: Tree
    state: Tree
    params: Tree
    global_: Tree
    personal: Tree


class Received(NamedTuple):
    """The shapes and types of what a client is sent, of what it keeps before its first round, and of G."""

    message: Tree
    state: Tree
    global_: Tree


def received(algorithm: Algorithm) -> Received:
    """What a client receives, without computing it; much quicker than all that is exchanged."""

    def first_message(key: Key) -> Received:
        state = algorithm.server.init(key, 2)
        message = algorithm.server.send(state, jnp.int32(0))
        return Received(message, algorithm.client.init(message), algorithm.server.model(state))

    return jax.eval_shape(first_message, jax.random.key(0))


def exchange(algorithm: Algorithm, task: Task, sample: Batch) -> Exchange:
    """What the algorithm exchanges, without computing it; ``sample`` is a batch of one sample."""

    def one_round(key: Key) -> Exchange:
        client, server = algorithm.client, algorithm.server
        state = server.init(key, 2)
        message = server.send(state, jnp.int32(0))
        rows = jnp.zeros((max(client.draws, client.model_draws), 1), int)
        data = ClientData(Inputs(sample.x), sample.y, rows, jnp.int32(0), jnp.int32(1))
        kept = client.init(message)
        upload, _ = client.train(message, kept, data)
        return Exchange(
            message=message,
            upload=(client.prepare(message, kept, data) if client.prepare else (), upload),
            state=kept,
            params=task.model.init(key),
            global_=server.model(state),
            personal=client.model(message, kept, data),
        )

    return jax.eval_shape(one_round, jax.random.key(0))


class Costs(NamedTuple):
    """Of one client and one round, in multiples of the model's size: what it receives, sends, and keeps."""

    download: float
    upload: float
    state: float


def costs(algorithm: Algorithm, task: Task, sample: Batch) -> Costs:
    """What the algorithm exchanges and keeps, from the shapes of its messages; ``sample`` is a batch of one sample."""
    found = exchange(algorithm, task, sample)
    return Costs(*(_entries(tree) / _entries(found.params) for tree in (found.message, found.upload, found.state)))


def state_bytes(algorithm: Algorithm, task: Task, sample: Batch) -> int:
    """What one client keeps."""
    kept = exchange(algorithm, task, sample).state
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))


def _entries(tree: Tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


class About(NamedTuple):
    """Where a method comes from, and what its models are."""

    paper: str
    year: int | None
    global_: str
    personal: str


Build = TypeVar("Build", bound=Callable[..., Algorithm])


def method(*, paper: str, year: int | None, G: str, P: str) -> Callable[[Build], Build]:
    """Says of a function that builds an algorithm what ``pfedbred list algorithms`` shows of it."""

    def note(build: Build) -> Build:
        build.about = About(paper, year, G, P)  # type: ignore[attr-defined]
        return build

    return note
