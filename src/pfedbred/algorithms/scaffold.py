"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from pfedbred.algorithms.base import Algorithm, Client, Server, ServerState, Task, Uploads, method, towards
from pfedbred.algorithms.local_steps import Step, Work, descend, draws, local_steps
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.settings.values import Count, Epochs, NonNegative, Positive
from pfedbred.types import Key, Tree


class Message(NamedTuple):
    """The global model and the server's control variate."""

    w: Tree
    control: Tree


class Upload(NamedTuple):
    """The local model, and how far the client's control variate has moved."""

    w: Tree
    control_change: Tree


@method(paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging", year=2020, G="w", P="w")
def scaffold(
    task: Task, *, alpha: Positive = 0.01, alpha_server: NonNegative = 1.0, R: Count = 20, epochs: Epochs = None
) -> Algorithm:
    r"""SCAFFOLD: min_w 1/N sum_i f_i(w), with local steps corrected by control variates c_i and c.

        v   <- v - alpha (grad f_i(v) - c_i + c),  R steps from w
        c_i' = c_i - c + (w - v) / (R alpha)                                       option II
        w   <- w + alpha_server E_I (v_i - w);   c <- c + 1/N sum_I (c_i' - c_i)

    With a local optimizer other than plain gradient descent, (w - v) / (R alpha) is replaced by the mean gradient along
    the way, which it equals for plain steps. c is a plain sum, so all clients count equally in the objective, whatever
    the weights of the average E_I.

    No personal model: G and P are w. c_i stays on the client; only its change is uploaded. With one client it is SGD.

    Args:
      task: model and loss f.
      alpha: local step size, the paper's eta_l.
      alpha_server: global step size, the paper's eta_g.
      R: local steps, the paper's K.
      epochs: passes over the client's samples, instead of R, which is then the number of steps they take.

    References: Karimireddy et al., ICML 2020, Algorithm 1.
    """
    work = Work(R, epochs)

    def train(message: Message, control: Tree, data: ClientData) -> tuple[Upload, Tree]:
        correction = optax.tree.sub(message.control, control)

        def gradient(v: Tree, batch: Batch) -> Tree:
            return optax.tree.add(jax.grad(task.loss)(v, batch), correction)

        def step(v: Tree, total: Tree, batches: list[Batch]) -> Step:
            found = gradient(v, batches[0])
            return Step(found, carry=optax.tree.add(total, found))

        steps = work.steps_of(data)
        if data.optimizer is None:
            v = descend(gradient, message.w, data, alpha=alpha, steps=work)
            travelled = optax.tree.scale(1 / (steps * alpha), optax.tree.sub(message.w, v))
        else:  # only for plain steps is this the mean gradient
            zeros = optax.tree.zeros_like(message.w)
            v, total, _ = local_steps(step, message.w, data, alpha=alpha, work=work, carry=zeros)
            travelled = optax.tree.scale(1 / steps, total)
        change = optax.tree.sub(travelled, message.control)
        return Upload(v, change), optax.tree.add(control, change)

    def init(key: Key, clients: int) -> ServerState:
        w = task.model.init(key)
        return ServerState(w, {"control": optax.tree.zeros_like(w), "clients": jnp.int32(clients)})

    def aggregate(state: ServerState, uploads: Uploads) -> ServerState:
        clients, control = state.extra["clients"], state.extra["control"]
        change = uploads.total(lambda upload: upload.control_change, around=optax.tree.zeros_like(control))
        control = jax.tree.map(lambda leaf, sum_: leaf + sum_ / clients.astype(leaf.dtype), control, change)
        w = towards(state.model, uploads.average(lambda upload: upload.w, around=state.model), alpha_server)
        return ServerState(w, {**state.extra, "control": control})

    client = Client(
        init=lambda message: optax.tree.zeros_like(message.w),
        train=train,
        model=lambda message, control, data: message.w,
        draws=draws(work),
        synced=True,
        unchanged=lambda message: Upload(message.w, optax.tree.zeros_like(message.control)),
        uploaded=lambda message, update: update.w,
    )
    server = Server(
        init=init,
        send=lambda state, client: Message(state.model, state.extra["control"]),
        aggregate=aggregate,
        model=lambda state: state.model,
    )
    return Algorithm(client, server, task.model.apply)
