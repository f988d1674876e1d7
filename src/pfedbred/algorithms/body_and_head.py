"""A model as a body and a head, for methods that share one and keep the other personal."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax

from pfedbred.algorithms.base import Server, ServerState, Task, Uploads
from pfedbred.data.minibatches import Batch
from pfedbred.errors import SettingError
from pfedbred.types import Key, Tree


class BodyAndHead(NamedTuple):
    """The body and the head of one model's params."""

    body: Tree
    head: Tree


def split(task: Task, params: Tree) -> BodyAndHead:
    """The params as body and head."""
    keys = task.model.head_keys(params)
    if keys is None:
        raise SettingError("this method needs a model whose params are a dict and that names its head: Model(head=...)")
    body = {key: part for key, part in params.items() if key not in keys}
    return BodyAndHead(body, {key: params[key] for key in keys})


def join(body: Tree, head: Tree) -> Tree:
    """The params from body and head."""
    return {**body, **head}


def body_gradient(task: Task, head: Tree) -> Callable[[Tree, Batch], Tree]:
    """The gradient of the loss in the body, under this head."""
    return jax.grad(lambda body, batch: task.loss(join(body, head), batch))


def head_gradient(task: Task, body: Tree) -> Callable[[Tree, Batch], Tree]:
    """The gradient of the loss in the head, on this body."""
    return jax.grad(lambda head, batch: task.loss(join(body, head), batch))


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
        send=lambda state, client: BodyAndHead(state.model, state.extra),
        aggregate=aggregate,
        model=lambda state: join(state.model, state.extra),
        adopt=lambda state, model: ServerState(*split(task, model)),
    )
