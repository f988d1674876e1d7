"""Ensembles: the personal models of a run's seeds predict together.

The seeds differ in where the network starts and in the order of the minibatches. Where a client's data determine a
prediction its members agree, and elsewhere they differ. The ensemble is their mixture with equal weights: of labels the
mean of their probabilities, of numbers the mean of their predictions, whose variance is that between the members.

References: Lakshminarayanan, Pritzel and Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep
Ensembles", NeurIPS 2017.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.types import Array, Tree


class Members(NamedTuple):
    """Personal models of one client, one of each seed along the first axis."""

    models: Tree


def with_ensembles(algorithm: Algorithm, task: Task) -> Algorithm:
    """The algorithm, able to predict with the members of an ensemble too."""

    def predict(model: Tree, x: Array) -> Array:
        if not isinstance(model, Members):
            return algorithm.predict(model, x)
        return mixed(task, outputs_of_members(algorithm, model, x))

    return algorithm._replace(predict=predict)


def outputs_of_members(algorithm: Algorithm, ensemble: Members, x: Array) -> Array:
    """Of each member, along the first axis."""
    return jax.vmap(algorithm.predict, (0, None))(ensemble.models, x)


def mixed(task: Task, every: Array) -> Array:
    """Outputs that predict the mixture, with equal weights, of the models whose outputs are along the first axis."""
    found = task.kind.mix(jnp.full(len(every), -jnp.log(len(every))), jax.vmap(task.kind.shaped)(every))
    return found.reshape(every.shape[1:]).astype(every.dtype)
