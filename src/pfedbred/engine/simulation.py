"""What the resident and the streamed backend share: all clients are in this process."""

from __future__ import annotations

import abc
import dataclasses
from typing import Generic, Protocol, TypeVar

import jax
import numpy as np

from pfedbred.algorithms.base import Algorithm, Info, Task
from pfedbred.data.federation import Federation, Part
from pfedbred.engine import devices, evaluation, executors, programs
from pfedbred.engine.backend import Pending
from pfedbred.engine.plan import Plan
from pfedbred.engine.round import Round
from pfedbred.engine.scores import Evaluation
from pfedbred.engine.varying import Varying
from pfedbred.types import Key, Tree


class RunState(Protocol):
    """What both kinds of state hold, with the seeds along the first axis."""

    @property
    def key(self) -> Key:
        """The runs' keys."""

    @property
    def server(self) -> Tree:
        """The servers' states."""

    @property
    def info(self) -> Info:
        """The last round's diagnostics."""


S = TypeVar("S", bound=RunState)


class Simulation(abc.ABC, Generic[S]):
    """A backend whose clients are all in this process."""

    checkpoint_always = False
    _evaluator: evaluation.Evaluator
    _each_round: int
    """The number of clients that train in a round."""

    def __init__(
        self, algorithm: Algorithm, task: Task, samples: Federation | None, plan: Plan, varying: Varying | None
    ) -> None:
        self.algorithm, self.task, self.samples, self.plan = algorithm, task, samples, plan
        self.executor = executors.choose(plan.executor, plan.chunk)
        self.mesh = None if self.executor == "loop" else devices.clients_mesh()
        self.everywhere = devices.everywhere(self.mesh) if self.mesh else None
        self._varying, self._runs_all = varying, plan.chunk is None
        self.round = self._new_round()
        self.compile_seconds = 0.0

    def _new_round(self) -> Round:
        sizes = self.samples.train.sizes if self.samples else None
        random = self.task.model.train is not None
        return Round(self.algorithm, self.plan, self.executor, self.mesh, self._varying, sizes, random)

    def run_fewer(self, problem: devices.TooLarge) -> bool:
        """Runs fewer clients at a time from now on, if that is possible and no chunk is given."""
        share = -(-self._each_round // self.mesh.size) if self.mesh else self._each_round
        chunk = programs.fewer(share, self.plan.chunk, problem)
        if chunk is None or self.executor != "vmap" or not self._runs_all:
            return False
        self.plan = dataclasses.replace(self.plan, chunk=chunk)
        self.round = self._new_round()
        self._forget_traces()
        return True

    @abc.abstractmethod
    def _forget_traces(self) -> None:
        """Discards the traces that are not compiled; they are made again when needed."""

    @abc.abstractmethod
    def evaluate(self, states: S) -> Evaluation:
        """G and P on the training and test samples, for every seed."""

    @abc.abstractmethod
    def models(self, states: S) -> tuple[Tree, Tree]:
        """G by seed, and P by seed and client, for all clients."""

    def start_evaluation(self, states: S) -> Pending:
        """Evaluates immediately."""
        return Pending(self.evaluate(states))

    def evaluated_models(self, states: S) -> tuple[Tree, Tree]:
        """The current models: evaluations complete immediately."""
        return self.models(states)

    def outputs(self, part: Part, global_: Tree, personal: Tree) -> evaluation.Outputs:
        """Predictions of these models, whose first axis is the seeds, for the samples of the evaluated clients."""
        return self._evaluator.outputs(part, global_, personal)

    def scores(self, global_: Tree, personal: Tree) -> Evaluation:
        """The metrics of these models, whose first axis is the seeds, on the samples of the evaluated clients."""
        return self._evaluator.evaluate(global_, personal)

    def diagnostics(self, states: S) -> dict[str, np.ndarray]:
        """The last round's diagnostics by seed."""
        return {name: np.asarray(values, np.float64) for name, values in jax.device_get(dict(states.info)).items()}

    def announce(self, states: S, round_: int, last: bool = False) -> None:
        """Nothing to do: all clients are in this process."""
