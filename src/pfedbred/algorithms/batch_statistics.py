r"""Batch-normalisation statistics, as a wrapper around any algorithm.

In training, a network normalises by its minibatch's statistics, so algorithms deal with params alone. Evaluation needs
statistics, and this wrapper adds them. A client's statistics s_i are each layer's means and variances, averaged over up
to 20 of its minibatches. In a round,

    s_i = statistics of the network that client i uploads, on its minibatches of the round
    s  <- E_I s_i,   by the run's rule and weights

G uses s in every mode: averaged for evaluation only. P uses

    local     its own, computed for its params on the client's training minibatches
    average   s, as the client receives it

Clients keep no statistics: they would belong to the params of an earlier round.

References: Ioffe and Szegedy, "Batch Normalization", ICML 2015; Li et al., "FedBN", ICLR 2021.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.algorithms.base import Algorithm, ServerState, Task, Uploads
from pfedbred.algorithms.local_steps import drawn, more
from pfedbred.data.minibatches import ClientData
from pfedbred.errors import SettingError
from pfedbred.models.base import WithStatistics
from pfedbred.types import Array, Key, Tree

BatchNorm = Literal["local", "average", "group"]
"""Which batch statistics P uses (see the module); ``group`` replaces batch by group normalisation in the network."""

_MINIBATCHES = 20
_DRAW = 2**16  # no algorithm's own average has this number (``draw`` of Uploads.average)


class Carried(NamedTuple):
    """A message, an upload, or what the server keeps beside its model: the algorithm's own, and statistics."""

    own: Tree
    statistics: Tree


def with_statistics(algorithm: Algorithm, task: Task, batch_norm: BatchNorm = "local") -> Algorithm:
    """The algorithm for a model with batch statistics; unchanged for any other."""
    statistics = task.model.statistics
    if statistics is None:
        return algorithm
    client, server, _, networks = algorithm
    of = jax.vmap(statistics.of, (0, None)) if networks.several else statistics.of
    structure: Any = jax.tree.structure(jax.eval_shape(task.model.init, jax.random.key(0)))

    def network_of(tree: Tree) -> Tree:
        if jax.tree.structure(tree) != structure:
            raise SettingError(
                "this algorithm does not say where the network with batch norm is in its models and uploads "
                "(Algorithm.networks, Client.uploaded): use batch_norm group"
            )
        return tree

    def measured(network: Tree, data: ClientData, first: int | Array, count: int, like: Tree) -> Tree:
        """The statistics of a network on ``count`` minibatches from number ``first`` on."""

        def add(total: Tree, number: Array) -> tuple[Tree, None]:
            found = of(network, data.batch(number).x)
            return jax.tree.map(lambda sum_, new: sum_ + new.astype(sum_.dtype) / count, total, found), None

        zeros = jax.tree.map(jnp.zeros_like, like)
        return jax.lax.scan(add, zeros, first + jnp.arange(count))[0]

    def completed(model: Tree, statistics: Tree) -> Tree:
        network = network_of(networks.get(model))
        return networks.put(model, WithStatistics(network, statistics))

    def train(message: Carried, state: Tree, data: ClientData) -> Any:
        upload, state, *info = client.train(message.own, state, data)
        count = _MINIBATCHES if data.rows is None else min(_MINIBATCHES, len(data.rows))
        network = network_of(client.uploaded(message.own, upload))
        return (Carried(upload, measured(network, data, 0, count, message.statistics)), state, *info)

    def model(message: Carried, state: Tree, data: ClientData) -> Tree:
        personal, found = client.model(message.own, state, data), message.statistics
        if batch_norm != "average":
            first = drawn(client.model_draws, data.passes.minibatches if data.passes else 0)
            found = measured(network_of(networks.get(personal)), data, first, _MINIBATCHES, found)
        return completed(personal, found)

    def init(key: Key, clients: int) -> ServerState:
        state, found = server.init(key, clients), statistics.init()
        if networks.several:
            count = len(jax.tree.leaves(networks.get(server.model(state)))[0])
            found = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), found)
        return ServerState(state.model, Carried(state.extra, found))

    def own(state: ServerState) -> ServerState:
        return ServerState(state.model, state.extra.own)

    def aggregate(state: ServerState, uploads: Uploads) -> ServerState:
        before = state.extra.statistics
        after = server.aggregate(own(state), uploads._replace(upload=uploads.upload.own))
        found = uploads.average(lambda upload: upload.statistics, around=before, draw=_DRAW)
        return ServerState(after.model, Carried(after.extra, found))

    client_prepare, server_prepare, welcome = client.prepare, server.prepare, server.welcome

    def prepare(state: ServerState, uploads: Uploads) -> ServerState:
        assert server_prepare is not None
        after = server_prepare(own(state), uploads)
        return ServerState(after.model, Carried(after.extra, state.extra.statistics))

    return algorithm._replace(
        client=client._replace(
            init=lambda message: client.init(message.own),
            train=train,
            model=model,
            model_draws=client.model_draws if batch_norm == "average" else more(client.model_draws, _MINIBATCHES),
            prepare=(lambda message, *rest: client_prepare(message.own, *rest)) if client_prepare else None,
            unchanged=lambda message: client.unchanged(message.own),
            precision=None,  # posteriors do not support batch norm
            screened=lambda upload: client.screened(upload.own),
            uploaded=lambda message, upload: client.uploaded(message.own, upload.own),
        ),
        server=server._replace(
            init=init,
            send=lambda state, i: Carried(server.send(own(state), i), state.extra.statistics),
            aggregate=aggregate,
            model=lambda state: completed(server.model(own(state)), state.extra.statistics),
            prepare=prepare if server_prepare else None,
            welcome=(lambda state: Carried(welcome(own(state)), state.extra.statistics)) if welcome else None,
        ),
    )
