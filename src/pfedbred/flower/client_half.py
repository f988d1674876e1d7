"""An algorithm's client half, compiled, for one client's data."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.algorithms.base import Algorithm
from pfedbred.algorithms.exchange import Received, received
from pfedbred.data.federation import Federation
from pfedbred.engine.evaluation import Evaluator, Tallies
from pfedbred.engine.round import ClientRecord, Round, Shared, TrainedClient, new_record, shards_of
from pfedbred.engine.varying import Varying
from pfedbred.experiment.building import make_algorithm, make_plan, varying
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.task import make_task
from pfedbred.tasks import Target
from pfedbred.types import Array, Tree


class ClientHalf:
    """The client half of an algorithm.

    It is a simulation's round for a federation of one, whose server passes on what the client has received.

    Attributes:
      task: model and loss.
      shapes: shapes of messages, models and the client's state.
    """

    def __init__(self, experiment: Experiment, data: Federation, number: int, target: Target | None = None) -> None:
        """``target`` is how the whole federation standardises labels that are numbers."""
        self.data, self.task = data, make_task(experiment, data, target)
        task = self.task
        self.algorithm, plan = make_algorithm(experiment, task, data), make_plan(experiment, data.classes)
        self.shapes: Received = received(self.algorithm)
        shards = jax.tree.map(jnp.asarray, shards_of(data, np.asarray([number])))
        self._shared = Shared(shards, jax.random.key(np.uint32(experiment.seed)), None, {})
        self._evaluator = Evaluator(self.algorithm, task, data, shards.x, "in-turn", chosen=plan.metrics)
        usual = varying(experiment, task, data)
        changes = Varying(lambda settings: _passing_on(usual.build(settings)), usual.schedules)
        random, sizes = task.model.train is not None, data.train.sizes
        own = Round(_passing_on(self.algorithm), plan, "in-turn", None, changes, sizes, random)
        self._drawn = own.samples_read(shards.sizes[0])
        self._train, self._prepare, self._model = map(jax.jit, (own.train_client, own.prepare_client, own.model_client))
        self._tally = jax.jit(self._evaluator.tally)

    @property
    def record_shapes(self) -> ClientRecord:
        """Shapes and types of what the client keeps."""
        return jax.eval_shape(new_record, self.shapes.state)

    def new_record(self, message: Tree) -> ClientRecord:
        """The record of a client that has not yet taken part."""
        return new_record(self.algorithm.client.init(message))

    def train(self, message: Tree, record: ClientRecord, round_: int) -> tuple[TrainedClient, ClientRecord]:
        """The result of its training in a round, counted from 0, and its next record."""
        trained = self._train(*self._given(message, record, round_))
        after = ClientRecord(trained.state, record.drawn + self._drawn, jnp.bool_(True), record.rejected)
        return jax.device_get((trained, after))

    def prepare(self, message: Tree, record: ClientRecord, round_: int) -> Tree:
        """Its upload in the exchange before training."""
        return jax.device_get(self._prepare(*self._given(message, record, round_)))

    def model(self, message: Tree, record: ClientRecord, round_: int) -> Tree:
        """Its P after ``round_`` rounds."""
        return jax.device_get(self._model(*self._given(message, record, round_)))

    def tally(self, global_: Tree, personal: Tree) -> Tallies:
        """Each metric's statistics for both models on training and test samples."""
        stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], personal)
        found = jax.device_get(self._tally(self._evaluator.sets, global_, stacked))
        return jax.tree.map(lambda leaf: leaf[0], found)

    def _given(self, message: Tree, record: ClientRecord, round_: int) -> tuple[Shared, tuple[Array, ClientRecord]]:
        return self._shared._replace(server=message, round=jnp.int32(round_)), (jnp.int32(0), record)


def _passing_on(algorithm: Algorithm) -> Algorithm:
    """The algorithm with a server whose state is the message that the client has received."""
    return algorithm._replace(server=algorithm.server._replace(send=lambda message, i: message))
