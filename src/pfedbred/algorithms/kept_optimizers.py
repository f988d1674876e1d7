"""Clients that keep the states of their local optimizers, such as momenta, from round to round."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.algorithms.base import Algorithm
from pfedbred.algorithms.local_optimizers import Optimizer
from pfedbred.data.minibatches import Batch, ClientData, OptimizerStates, example_data
from pfedbred.errors import SettingError
from pfedbred.types import Array, Tree


class Kept(NamedTuple):
    """A client's state.

    Attributes:
      state: the algorithm's.
      optimizers: the state of each optimizer that the algorithm's training uses, in order of use.
      fresh: whether the client has not trained yet.
    """

    state: Tree
    optimizers: tuple[Tree, ...]
    fresh: Array


def keep_optimizers(algorithm: Algorithm, optimizer: Optimizer | None, sample: Batch) -> Algorithm:
    """The algorithm with optimizer states that last from round to round; ``sample`` is a batch of one sample."""
    client = algorithm.client

    def train(message: Tree, kept: Kept, data: ClientData) -> Any:
        states = OptimizerStates(kept.optimizers, kept.fresh)
        upload, state, *info = client.train(message, kept.state, data._replace(optimizer_states=states))
        return (upload, Kept(state, tuple(states.after), jnp.zeros_like(kept.fresh)), *info)

    def init(message: Tree) -> Kept:
        state = client.init(message)

        def after_training() -> list[Tree]:
            states = OptimizerStates(None, jnp.bool_(True))
            data = example_data(sample)._replace(optimizer=optimizer, optimizer_states=states)
            client.train(message, state, data)
            return states.after

        shapes = jax.eval_shape(after_training)
        if not jax.tree.leaves(shapes):
            raise SettingError("keep_optimizer needs a local_optimizer that has a state, such as sgd(momentum=0.9)")
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return Kept(state, tuple(zeros), jnp.bool_(True))

    prepare, model = client.prepare, client.model
    return algorithm._replace(
        client=client._replace(
            init=init,
            train=train,
            model=lambda message, kept, data: model(message, kept.state, data),
            prepare=(lambda message, kept, data: prepare(message, kept.state, data)) if prepare else None,
        )
    )
