"""A few rounds of an algorithm, client and server, as one small program without the engine.

For tests of what a method computes, with all clients selected: it compiles in half the time of the engine's round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pfedbred
from pfedbred.algorithms.base import Algorithm, Uploads
from pfedbred.data.minibatches import ClientData, Inputs


class Minibatches(NamedTuple):
    """A federation's training samples, and the rows of every minibatch by round (repeated if there are more rounds)."""

    x: Any
    y: Any
    offsets: Any
    sizes: Any
    rows: Any  # (rounds, clients, draws, batch size)


def minibatches(
    federation: pfedbred.Federation, *, rounds: int, draws: int, batch_size: int | None = None
) -> Minibatches:
    """Random minibatches of each client's samples; without a batch size, each is all of them (of equal number)."""
    train, rng = federation.train, np.random.default_rng(0)
    size = batch_size or int(train.sizes[0])
    rows = np.empty((rounds, federation.clients, draws, size), np.int32)
    for i in range(federation.clients):
        own = np.arange(train.offsets[i], train.offsets[i + 1])
        rows[:, i] = rng.choice(own, rows[:, i].shape) if batch_size else own
    return Minibatches(*map(jnp.asarray, (train.x, train.y, train.offsets[:-1], train.sizes, rows)))


def play(algorithm: Algorithm, batches: Minibatches, *, rounds: int | None = None, seed: int = 0) -> tuple[Any, Any]:
    """G, and the P of all clients along the first axis. To be compiled by the caller."""
    client, server = algorithm.client, algorithm.server
    count = len(batches.sizes)
    everyone = jnp.arange(count)

    def data(t: Any) -> ClientData:
        rows = batches.rows[t % len(batches.rows)]
        return ClientData(Inputs(batches.x), batches.y, rows, batches.offsets, batches.sizes)

    def each(function: Any, state: Any, clients: Any, t: Any) -> Any:
        def one(i: Any, kept: Any, own: Any) -> Any:
            rows, offset, size = own
            return function(server.send(state, i), kept, data(t)._replace(rows=rows, offset=offset, size=size))

        found = data(t)
        return jax.vmap(one)(everyone, clients, (found.rows, found.offset, found.size))

    def uploads(sent: Any) -> Uploads:
        weights = batches.sizes / jnp.sum(batches.sizes)
        return Uploads(sent, everyone, weights, jnp.ones(count, bool), jax.random.key(0))

    def one_round(t: Any, carry: Any) -> Any:
        state, clients = carry
        if client.prepare:
            state = server.prepare(state, uploads(each(client.prepare, state, clients, t)))
        upload, clients = each(lambda *given: client.train(*given)[:2], state, clients, t)
        return server.aggregate(state, uploads(upload)), clients

    state = server.init(jax.random.key(seed), count)
    clients = jax.vmap(lambda i: client.init(server.send(state, i)))(everyone)
    rounds = len(batches.rows) if rounds is None else rounds
    state, clients = jax.lax.fori_loop(0, rounds, one_round, (state, clients))
    return server.model(state), each(client.model, state, clients, 0)
