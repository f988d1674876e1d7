"""A model as a shared body and a head, for the methods that treat them apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import optax

from pfedbred.algorithms.base import Server, ServerState, Task, Uploads
from pfedbred.data.minibatches import Batch
from pfedbred.errors import SettingError
from pfedbred.types import Key, Tree


class Parts(NamedTuple):
    """Body and head of one model's weights."""

    body: Tree
    head: Tree


def split(task: Task, weights: Tree) -> Parts:
    """Body and head."""
    keys = task.model.head_keys(weights)
    if keys is None:
        raise SettingError(
            "this method needs a model whose weights are a dict and that names its head: Model(head=...)"
        )
    body = {key: part for key, part in weights.items() if key not in keys}
    return Parts(body, {key: weights[key] for key in keys})


def join(body: Tree, head: Tree) -> Tree:
    """The weights again."""
    return {**body, **head}


def only(task: Task, trained: Sequence[str]) -> Callable[[Parts, Batch], Parts]:
    """The loss's gradient in the named parts (``body``, ``head``), and zero in the others."""

    def gradient(parts: Parts, batch: Batch) -> Parts:
        found = jax.grad(lambda p: task.loss(join(p.body, p.head), batch))(parts)
        return Parts(*(g if name in trained else optax.tree.zeros_like(g) for name, g in found._asdict().items()))

    return gradient


def body_server(task: Task) -> Server:
    """Averages bodies. G is the average body under the head that everyone started from.

    Its model is the body alone; the first head is kept beside it, for G and for clients that arrive.
    """

    def init(key: Key, clients: int) -> ServerState:
        return ServerState(*split(task, task.model.init(key)))

    def aggregate(state: ServerState, uploads: Uploads) -> ServerState:
        return ServerState(uploads.average(around=state.model), state.extra)

    return Server(
        init=init,
        send=lambda state, client: Parts(state.model, state.extra),
        aggregate=aggregate,
        model=lambda state: join(state.model, state.extra),
    )
