"""FedAMP and HeurFedAMP: clients with similar models learn from each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from pfedbred.aggregation.pairwise import inner_products, squared_distances
from pfedbred.algorithms.base import Algorithm, Client, Task, Uploads, method
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.algorithms.mixing_server import Mix, mixing_server, off_diagonal
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.errors import SettingError
from pfedbred.settings.schedules import is_schedule
from pfedbred.settings.signatures import settled_by_clients
from pfedbred.settings.values import Count, Epochs, Fraction, NonNegative, Positive
from pfedbred.types import Array, Tree

_PAPER = "Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data"


_STEP = 0.1


def _usual_step(settings: Mapping[str, Any], clients: int) -> float:
    if is_schedule(settings["sigma"]):
        raise SettingError("fedamp's alpha_k must be given if sigma has a schedule: it is at most sigma / clients")
    return min(_STEP, settings["sigma"] / clients)


@method(paper=_PAPER, year=2021, G="mean of the u_i", P="w_i")
@settled_by_clients(alpha_k=_usual_step)
def fedamp(
    task: Task,
    *,
    lam: NonNegative = 0.1,
    sigma: Positive = 10.0,
    alpha_k: Positive | None = None,
    alpha: NonNegative = 0.01,
    R: Count = 20,
    epochs: Epochs = None,
) -> Algorithm:
    r"""FedAMP: min over all w_i of sum_i f_i(w_i) + lam sum_{i<j} A(||w_i - w_j||^2), A(x) = 1 - e^{-x/sigma}.

        server:  u_i = (1 - sum_{j != i} xi_ij) w_i + sum_{j != i} xi_ij w_j,   xi_ij = alpha_k A'(||w_i - w_j||^2)
        client:  w_i <- w_i - alpha (grad f_i(w_i) + lam/alpha_k (w_i - u_i)),  R steps from its own w_i

    The distance is squared, and A'(x) = e^{-x/sigma} / sigma. These are the paper's steps; they leave out the factor 2
    of the penalty's gradient, so that their fixed point is that of lam/2. There is no single global model: P is w_i,
    and G is the mean of the u_i. With lam = 0 every client trains alone.

    Args:
      task: model and loss f.
      lam: lambda, the coefficient of A.
      sigma: how close two models must be to influence each other.
      alpha_k: the server's step; at most sigma / N, so that u_i is a convex combination at any distance. By default
        0.1, or sigma / N where that is less: for more than 100 clients. The paper decreases it during the run and ties
        it to its data; the default holds w_i with strength lam / alpha_k = 1 or more. A schedule or a sweep that goes
        beyond sigma / N diverges.
      alpha: the clients' step size.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R.

    References: Huang et al., AAAI 2021, Algorithm 1, Eqs. (2) to (5).
    """

    step = _STEP if alpha_k is None else alpha_k

    def mix(models: Tree, present: Array, uploads: Uploads) -> Array:
        limit = sigma / len(present)
        beyond: Any = step > limit  # an array where either varies
        if not isinstance(beyond, jax.Array) and beyond:
            raise SettingError(f"fedamp's alpha_k must be at most sigma / clients = {limit:g}, not {step:g}")
        slope = jnp.exp(-squared_distances(models) / sigma) / sigma
        return _rows_to_one(off_diagonal(jnp.where(beyond, jnp.nan, step) * slope))

    return _attentive(task, mix, lam / step, alpha, Work(R, epochs))


@method(paper=_PAPER, year=2021, G="mean of the u_i", P="w_i")
def heurfedamp(
    task: Task,
    *,
    lam: NonNegative = 1.0,
    sigma: NonNegative = 10.0,
    self_weight: Fraction = 0.5,
    alpha: NonNegative = 0.01,
    R: Count = 20,
    epochs: Epochs = None,
) -> Algorithm:
    r"""HeurFedAMP: FedAMP with cosines instead of distances, for deep networks.

        xi_ii = self_weight;   xi_ij = (1 - self_weight) e^{sigma cos(w_i, w_j)} / sum_{h != i} e^{sigma cos(w_i, w_h)}
        client:  w_i <- w_i - alpha (grad f_i(w_i) + lam (w_i - u_i)),  R steps from its own w_i

    P is w_i, G is the mean of the u_i. With lam = 0 every client trains alone.

    Args:
      task: model and loss f.
      lam: how strongly w_i is held at u_i, the paper's lambda / alpha_k.
      sigma: sharpness of the attention.
      self_weight: xi_ii.
      alpha: the clients' step size.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R.

    References: Huang et al., AAAI 2021, Section "HeurFedAMP", Eqs. (7) and (8).
    """

    def mix(models: Tree, present: Array, uploads: Uploads) -> Array:
        products = inner_products(models)
        norms = jnp.sqrt(jnp.diagonal(products))
        cosines = products / jnp.maximum(norms[:, None] * norms[None, :], jnp.finfo(products.dtype).tiny)
        alone = jnp.eye(len(present), dtype=bool)
        attention = jax.nn.softmax(jnp.where(alone, -jnp.inf, sigma * cosines), axis=1)
        attention = jnp.where(alone, 0, attention)  # with a single client the softmax is NaN on the diagonal
        return _rows_to_one((1 - self_weight) * attention)

    return _attentive(task, mix, lam, alpha, Work(R, epochs))


def _rows_to_one(others: Array) -> Array:
    """Adds the client's own weight, the remainder of its row."""
    return others + jnp.diag(1 - jnp.sum(others, axis=1))


def _attentive(task: Task, mix: Mix, pull: Any, alpha: Any, work: Work) -> Algorithm:
    """Clients that train their own model, pulled with strength ``pull`` towards the mixture that the server sends."""

    def train(u: Tree, w: Tree, data: ClientData) -> tuple[Tree, Tree]:
        def gradient(v: Tree, batch: Batch) -> Tree:
            return optax.tree.add_scale(jax.grad(task.loss)(v, batch), pull, optax.tree.sub(v, u))

        w = descend(gradient, w, data, alpha=alpha, steps=work)
        return w, w

    client = Client(init=lambda u: u, train=train, model=lambda u, w, data: w, draws=draws(work))
    return Algorithm(client, mixing_server(task, mix, replaces=False), task.model.apply)
