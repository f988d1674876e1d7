"""The server half of an algorithm, compiled, for uploads that come one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord

from pfedbred import algorithms, models
from pfedbred.aggregation import rules
from pfedbred.algorithms.base import Exchange, Task, exchange
from pfedbred.data.minibatches import Batch
from pfedbred.engine import Plan, screening, selection
from pfedbred.engine.keys import init_key, select_key
from pfedbred.experiment.configuration import Experiment
from pfedbred.flower import wire
from pfedbred.flower.roster import Description
from pfedbred.types import Tree


class Halves:
    """The server half of an algorithm, compiled; and the shapes of all that is exchanged."""

    def __init__(self, experiment: Experiment, data: Description) -> None:
        self.experiment, self.data = experiment, data
        self.task = Task(models.get(experiment.model, data.shape, data.classes, data.words))
        self.algorithm = algorithms.make(experiment.algorithm, self.task, experiment.settings)
        rule = rules.Rule(experiment.aggregate, experiment.outliers)
        rule.suits(self.algorithm.server.averages, experiment.algorithm)
        self.plan = Plan(
            selection.uniform(1), experiment.participation, experiment.weights, experiment.batch_size, rule=rule
        )
        kind = jnp.int32 if data.words else jnp.float32
        sample = Batch(jnp.zeros((1, *data.shape), kind), jnp.zeros(1, jnp.int32))
        self.shapes: Exchange = exchange(self.algorithm, self.task, sample)
        server = self.algorithm.server
        self._send, self.model = jax.jit(server.send), jax.jit(server.model)
        self._alike = server.welcome is None  # everyone is sent the same
        self._sent: tuple[Tree, Tree, ArrayRecord] | None = None
        self._aggregate = jax.jit(server.aggregate)
        self._prepare = jax.jit(server.prepare) if server.prepare else None
        self._gathered = jax.jit(self.plan.gathered)
        self._examine = jax.jit(
            lambda message, upload: screening.examine(self.algorithm.client.unmoved(message), upload, ())
        )

    def init(self) -> Tree:
        """The server's state before the first round."""
        key = init_key(jax.random.key(np.uint32(self.experiment.seed)))
        return jax.jit(self.algorithm.server.init, static_argnums=1)(key, self.data.clients)

    @property
    def asks_before(self) -> bool:
        """Whether there is an exchange before training."""
        return bool(self.algorithm.client.prepare and self.algorithm.server.prepare)

    def choose(self, round_: int, present: Sequence[int], sizes: np.ndarray) -> list[int]:
        """Whose uploads a round averages: those that the simulation would choose, among those who are there."""
        experiment = self.experiment
        fixed = experiment.fixed_clients()
        if fixed is not None:
            return [number for number in fixed if number in present]
        assert experiment.aggregated is not None
        select = selection.get(str(experiment.select), min(experiment.aggregated, len(present)))
        key = select_key(jax.random.key(np.uint32(experiment.seed)), round_)
        return [present[int(place)] for place in select(key, jnp.asarray(sizes[list(present)]))]

    def message(self, state: Tree, client: int) -> ArrayRecord:
        """What the algorithm's server sends to a client, packed."""
        return self._message(state, client)[1]

    def _message(self, state: Tree, client: int) -> tuple[Tree, ArrayRecord]:
        if self._alike and self._sent is not None and self._sent[0] is state:
            return self._sent[1:]
        message = jax.device_get(self._send(state, np.int32(client)))
        self._sent = (state, message, wire.packed(message))
        return self._sent[1:]

    def vitals(self, state: Tree, client: int, upload: Tree) -> screening.Vitals:
        """How a client is, by what it was sent and what it has sent."""
        return self._examine(self._message(state, client)[0], upload)

    def learn(self, state: Tree, uploads: Mapping[int, Tree], chosen: Sequence[int], sizes: np.ndarray) -> Tree:
        """The server's next state."""
        return self._aggregate(state, self._taken_in(uploads, self.shapes.upload[1], chosen, sizes))

    def learn_before(self, state: Tree, answers: Mapping[int, Tree], chosen: Sequence[int], sizes: np.ndarray) -> Tree:
        """The server's state after the exchange before training."""
        assert self._prepare is not None
        return self._prepare(state, self._taken_in(answers, self.shapes.upload[0], chosen, sizes))

    def _taken_in(self, uploads: Mapping[int, Tree], like: Tree, chosen: Sequence[int], sizes: np.ndarray) -> Any:
        """The uploads of the chosen, one after another; zeros where there is none."""
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(uploads.get(i, nothing) for i in chosen))
        numbers = np.asarray(chosen, np.int32)
        taken = np.asarray([i in uploads for i in chosen])
        return self._gathered(stacked, numbers, sizes[numbers], taken)
