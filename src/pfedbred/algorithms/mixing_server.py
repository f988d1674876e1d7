"""Servers that keep one model per client and mix them pairwise (FedAMP, HeurFedAMP, FedU)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pfedbred.algorithms.base import Server, ServerState, Task, Uploads
from pfedbred.types import Array, Key, Tree

Mix = Callable[[Tree, Array, Uploads], Array]
"""``mix(models, present, uploads)``: the N x N weights xi that mix all models into one for each client.

Rows sum to one. ``present`` marks the clients whose uploads count in this round.
"""


def mixing_server(
    task: Task, mix: Mix, *, replaces: bool, model_in: Callable[[Tree], Tree] = lambda upload: upload
) -> Server:
    """Sends each client its mixture u_i = sum_j xi_ij w_j of the latest uploaded models. G is the mean of the u_i.

    Mixing is one matrix product per array of the params, so memory is N x N and N x d, never N x N x d.

    Args:
      task: model and loss f.
      mix: computes xi.
      replaces: whether a client's mixture replaces its model (FedU), or is recomputed in every round from the
        latest uploads of all clients (FedAMP).
      model_in: the model in an upload.
    """

    def all_alike(model: Tree, clients: int) -> ServerState:
        everyone = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape)), model)
        return ServerState(model=everyone, extra=() if replaces else everyone)

    def init(key: Key, clients: int) -> ServerState:
        return all_alike(task.model.init(key), clients)

    def aggregate(state: ServerState, uploads: Uploads) -> ServerState:
        kept = state.model if replaces else state.extra
        count = jax.tree.leaves(kept)[0].shape[0]
        place = jnp.where(uploads.valid, uploads.client, count)  # past the end: a rejected client keeps its old model
        models = jax.tree.map(lambda old, new: old.at[place].set(new, mode="drop"), kept, model_in(uploads.upload))
        present = jnp.zeros(count, bool).at[place].set(True, mode="drop")
        xi = mix(models, present, uploads)
        mixed = jax.tree.map(lambda leaf: jnp.tensordot(xi.astype(leaf.dtype), leaf, 1), models)
        return ServerState(mixed, () if replaces else models)

    def mean(state: ServerState) -> Tree:
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), state.model)

    return Server(
        init=init,
        send=lambda state, client: jax.tree.map(lambda leaf: leaf[client], state.model),
        aggregate=aggregate,
        model=mean,
        welcome=mean,
        averages=False,
        adopt=lambda state, model: all_alike(model, len(jax.tree.leaves(state.model)[0])),
    )


def off_diagonal(matrix: Array) -> Array:
    """The matrix with zeros on its diagonal."""
    return jnp.where(jnp.eye(len(matrix), dtype=bool), 0, matrix)
