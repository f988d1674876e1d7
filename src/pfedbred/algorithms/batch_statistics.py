r"""Batch statistics: those of a network with batch normalisation, over any algorithm.

In training a network normalises by the statistics of its minibatch, so an algorithm deals with params alone. Statistics
are for evaluation, and this wrapper adds them. Those of a network on a client, s_i, are the mean over up to 20 of its
minibatches of each layer's means and variances. In a round,

    s_i = statistics of the network that client i uploads, on its minibatches of the round
    s  <- E_I s_i,   by the rule and the weights of the run

G has s, whichever mode is chosen: statistics averaged once for evaluation. P has

    local     its own: of its params, on minibatches of the client's training samples
    average   s, as the client receives it

Clients keep no statistics: what they would keep belongs to params of a former round.

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
"""How batch normalisation is done: see the module; ``group`` replaces it by group normalisation in the network."""

_MINIBATCHES = 20
_DRAW = 2**16  # another number than the averages of any algorithm have, by which rules draw


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

    def adopt(state: ServerState, model: Tree) -> ServerState:
        whole = networks.get(model)
        after = server.adopt(own(state), networks.put(model, whole.params))
        return ServerState(after.model, Carried(after.extra, whole.statistics))

    return algorithm._replace(
        client=client._replace(
            init=lambda message: client.init(message.own),
            train=train,
            model=model,
            model_draws=client.model_draws if batch_norm == "average" else more(client.model_draws, _MINIBATCHES),
            prepare=(lambda message, *rest: client_prepare(message.own, *rest)) if client_prepare else None,
            unchanged=lambda message: client.unchanged(message.own),
            precision=None,  # posteriors are not of networks with batch norm
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
            adopt=adopt,
        ),
    )
