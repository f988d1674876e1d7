"""A model as a body and a head, for methods that share one and keep the other personal."""

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
    """The body and the head of one model's params."""

    body: Tree
    head: Tree


def split(task: Task, params: Tree) -> Parts:
    """The params as body and head."""
    keys = task.model.head_keys(params)
    if keys is None:
        raise SettingError("this method needs a model whose params are a dict and that names its head: Model(head=...)")
    body = {key: part for key, part in params.items() if key not in keys}
    return Parts(body, {key: params[key] for key in keys})


def join(body: Tree, head: Tree) -> Tree:
    """The params from body and head."""
    return {**body, **head}


def gradient_in(task: Task, trained: Sequence[str]) -> Callable[[Parts, Batch], Parts]:
    """The gradient of the loss in the named parts (``body``, ``head``), and zero in the others."""

    def gradient(parts: Parts, batch: Batch) -> Parts:
        found = jax.grad(lambda p: task.loss(join(p.body, p.head), batch))(parts)
        return Parts(*(g if name in trained else optax.tree.zeros_like(g) for name, g in found._asdict().items()))

    return gradient


def body_server(task: Task) -> Server:
    """Averages bodies. G is the average body under the initial head.

    The server's model is the body alone; the initial head is kept for G and for new clients.
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
