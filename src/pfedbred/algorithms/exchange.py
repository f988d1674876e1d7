"""What an algorithm exchanges and keeps: shapes, types and sizes, without computing anything."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.algorithms.local_optimizers import Optimizer
from pfedbred.data.minibatches import Batch, example_data
from pfedbred.types import Key, Tree, tree_bytes


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
    """What a client receives, without computing it; much quicker to trace than :func:`exchange`."""

    def first_message(key: Key) -> Received:
        state = algorithm.server.init(key, 2)
        message = algorithm.server.send(state, jnp.int32(0))
        return Received(message, algorithm.client.init(message), algorithm.server.model(state))

    return jax.eval_shape(first_message, jax.random.key(0))


def exchange(algorithm: Algorithm, task: Task, sample: Batch, optimizer: Optimizer | None = None) -> Exchange:
    """What the algorithm exchanges with this local optimizer, without computing it; ``sample`` is a batch of one."""

    def one_round(key: Key) -> Exchange:
        client, server = algorithm.client, algorithm.server
        state = server.init(key, 2)
        message = server.send(state, jnp.int32(0))
        data = example_data(sample)._replace(optimizer=optimizer)
        kept = client.init(message)
        upload = client.train(message, kept, data)[0]
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
    """What one client receives, sends and keeps in a round, in multiples of the model's size."""

    download: float
    upload: float
    state: float


def costs(algorithm: Algorithm, task: Task, sample: Batch) -> Costs:
    """What the algorithm exchanges and keeps, from the shapes of its messages; ``sample`` is a batch of one sample."""
    found = exchange(algorithm, task, sample)
    return Costs(*(_entries(tree) / _entries(found.params) for tree in (found.message, found.upload, found.state)))


def state_bytes(algorithm: Algorithm) -> int:
    """Bytes of the state that one client keeps."""
    return tree_bytes(received(algorithm).state)


def _entries(tree: Tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
