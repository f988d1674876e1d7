"""Mime: the server's momentum in every local step, and a correction for client drift."""

from __future__ import annotations

from typing import NamedTuple

import jax
import optax

from pfedbred.algorithms.base import Algorithm, Client, Server, ServerState, Task, Uploads, method, towards
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.settings.values import Count, Epochs, Fraction, NonNegative
from pfedbred.types import Key, Tree


class Message(NamedTuple):
    """The global model, the momentum, and the average gradient at the global model."""

    w: Tree
    momentum: Tree
    gradient: Tree


@method(paper="Karimireddy et al., Mime: Mimicking Centralized Stochastic Algorithms", year=2021, G="w", P="w")
def mime(
    task: Task, *, alpha: NonNegative = 0.01, momentum: Fraction = 0.9, R: Count = 20, epochs: Epochs = None
) -> Algorithm:
    r"""Mime with SGD and momentum m: local steps that mimic a centralised one.

    Before training, the selected clients send grad f_i(w) on all their samples; c is the average. Then

        v <- v - alpha ((1 - momentum) (grad f_i(v) - grad f_i(w) + c) + momentum m),  R steps from w, both
             gradients on the step's minibatch
        w <- E_I v_i;      m <- (1 - momentum) c + momentum m

    No personal model: G and P are w. A round has two exchanges: one gradient, one model.

    Args:
      task: model and loss f.
      alpha: step size.
      momentum: the paper's beta; it tries 0, 0.9 and 0.99.
      R: local steps, the paper's K.
      epochs: passes over the client's samples, instead of R.

    References: Karimireddy et al., NeurIPS 2021 (arXiv 2008.03606), Algorithm 1 (Mime) with SGD and momentum.
    """
    work = Work(R, epochs)

    def prepare_client(message: Message, state: Tree, data: ClientData) -> Tree:
        return task.full_gradient(message.w, data)

    def prepare_server(state: ServerState, uploads: Uploads) -> ServerState:
        return ServerState(state.model, {**state.extra, "gradient": uploads.average(around=state.extra["gradient"])})

    def train(message: Message, state: Tree, data: ClientData) -> tuple[Tree, Tree]:
        def direction(v: Tree, batch: Batch) -> Tree:
            grad = jax.grad(task.loss)
            corrected = optax.tree.add(optax.tree.sub(grad(v, batch), grad(message.w, batch)), message.gradient)
            return towards(corrected, message.momentum, momentum)

        return descend(direction, message.w, data, alpha=alpha, steps=work), state

    def init(key: Key, clients: int) -> ServerState:
        w = task.model.init(key)
        return ServerState(w, {"momentum": optax.tree.zeros_like(w), "gradient": optax.tree.zeros_like(w)})

    def aggregate(state: ServerState, uploads: Uploads) -> ServerState:
        moved = towards(state.extra["gradient"], state.extra["momentum"], momentum)
        return ServerState(uploads.average(around=state.model), {**state.extra, "momentum": moved})

    client = Client(
        init=lambda message: (),
        train=train,
        model=lambda message, state, data: message.w,
        draws=draws(work),
        prepare=prepare_client,
        unchanged=lambda message: message.w,
    )
    server = Server(
        init=init,
        send=lambda state, client: Message(state.model, state.extra["momentum"], state.extra["gradient"]),
        aggregate=aggregate,
        model=lambda state: state.model,
        prepare=prepare_server,
    )
    return Algorithm(client, server, task.model.apply)
