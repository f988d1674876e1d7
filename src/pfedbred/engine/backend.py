"""What runs an experiment's rounds: one protocol, three implementations.

resident   all clients on the device            :class:`pfedbred.engine.resident.ResidentBackend`
streamed   each round's cohort on the device    :class:`pfedbred.engine.streamed.StreamedBackend`
deployed   clients are processes elsewhere      :class:`pfedbred.flower.backend.DeployedBackend`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.data.columns import Encoding
from pfedbred.data.federation import Federation, Part
from pfedbred.data.text import Text
from pfedbred.engine.evaluation import Outputs
from pfedbred.engine.plan import Plan
from pfedbred.engine.round import Servers
from pfedbred.engine.scores import Evaluation
from pfedbred.engine.screening import Rejections
from pfedbred.errors import SettingError
from pfedbred.io.tensors import Pieces
from pfedbred.tasks import Target
from pfedbred.types import Tree, Words

S = TypeVar("S")


class DataInfo(Protocol):
    """What is known about the data, wherever the samples are: a Federation, a Population, or a description of one."""

    @property
    def name(self) -> str:
        """Name of the data."""

    @property
    def clients(self) -> int:
        """Number of clients."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""

    @property
    def classes(self) -> int:
        """Number of labels; 1 for regression."""

    @property
    def task(self) -> str:
        """The usual task for its labels."""

    @property
    def target(self) -> Target | None:
        """Mean and standard deviation of the training labels, if they are numbers."""

    @property
    def words(self) -> Words | None:
        """Vocabulary size and embedding; None if the samples are numbers."""

    @property
    def names(self) -> Sequence[str] | None:
        """Names of the clients, if they have any."""

    @property
    def labels(self) -> Sequence[str] | None:
        """Names of the labels, if they have any."""

    @property
    def features(self) -> Sequence[str] | None:
        """Names of the columns, if samples come from a table."""

    @property
    def encoding(self) -> Encoding | None:
        """How the cells of a table are encoded as inputs, if it has missing values or text."""

    @property
    def text(self) -> Text | None:
        """The vocabulary, if samples are word ids and it is on this machine."""

    @property
    def shift(self) -> np.ndarray | None:
        """Stored samples become inputs as (x - shift) * scale; None where each client normalises its own."""

    @property
    def scale(self) -> np.ndarray | None:
        """See ``shift``."""

    @property
    def facts(self) -> dict[str, Any]:
        """Summary statistics of the data."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Where the data comes from, as text."""


class Saved(NamedTuple):
    """A backend's state as a checkpoint holds it: arrays by name, and plain values."""

    arrays: Mapping[str, np.ndarray | Pieces]
    facts: Mapping[str, Any]


@dataclass
class Pending:
    """An evaluation in progress; ``result`` is None until it is available."""

    result: Evaluation | None = field(default=None)


class Backend(Protocol[S]):
    """Runs rounds of an algorithm for several seeds. ``S`` is its state between two rounds, for all seeds.

    Attributes:
      algorithm: the algorithm to run.
      task: the model and its loss.
      plan: how rounds are run.
      federation: what is known about the data.
      store: where clients are between rounds: ``device``, ``memory``, ``file``, or ``clients`` for their own machines.
      evaluated: the numbers of the clients that are evaluated; None for all.
      compile_seconds: time spent compiling so far.
    """

    algorithm: Algorithm
    task: Task
    plan: Plan
    compile_seconds: float

    @property
    def federation(self) -> DataInfo:
        """What is known about the data."""

    @property
    def samples(self) -> Federation | None:
        """The samples of all clients, if they are on this machine."""

    @property
    def store(self) -> str:
        """Where clients are between rounds."""

    @property
    def evaluated(self) -> np.ndarray | None:
        """The numbers of the clients that are evaluated; None for all."""

    @property
    def checkpoint_always(self) -> bool:
        """Whether clients rely on what the server remembers, so that a checkpoint is also written before the first
        round and after rounds that changed nothing."""

    def trace(self, seeds: int) -> None:
        """Traces a round and its evaluation without computing them, so that what cannot work fails early."""

    def compile(self, state: S, models: bool) -> None:
        """Compiles, before the first round, what a run from this state needs: a run that does not fit fails here.

        ``models`` is whether it will ask for all models.
        """

    def state_bytes(self) -> int:
        """Device memory that one seed's state takes between rounds."""

    def init(self, seeds: Sequence[int]) -> S:
        """The state before the first round."""

    def advance(self, state: S, rounds: int) -> S:
        """The state ``rounds`` rounds later. The state passed in is consumed."""

    def evaluate(self, state: S) -> Evaluation:
        """G and P on training and test samples."""

    def start_evaluation(self, state: S) -> Pending:
        """Starts an evaluation. Its result may only be available after a later ``advance`` or ``evaluate``."""

    def rejections(self, state: S) -> Rejections:
        """Which clients' updates were rejected so far, and how many rounds were skipped."""

    def diagnostics(self, state: S) -> dict[str, np.ndarray]:
        """The last round's diagnostics by seed; empty if they are not collected."""

    def described(self, state: S) -> dict[str, np.ndarray]:
        """What describes each evaluated client's state, by name, seed and client; empty without diagnostics."""

    def servers(self, state: S) -> Servers:
        """The server's side of the state."""

    def participated(self, state: S) -> list[int] | None:
        """The number of evaluated clients that have taken part, by seed; None if all clients are evaluated."""

    def save(self, state: S) -> Saved:
        """The state for a checkpoint, on the host. All processes must call it."""

    def load(self, saved: Saved, seeds: int) -> S:
        """The state from a checkpoint, placed on the current devices."""

    def global_model(self, state: S, seed: int = 0) -> Tree:
        """G of the seed at that position."""

    def personal_model(self, state: S, client: int, seed: int = 0) -> Tree:
        """P of that client, for the seed at that position."""

    def models(self, state: S) -> tuple[Tree, Tree] | None:
        """G by seed, and P by seed and client; None where personal models stay with their clients."""

    def evaluated_models(self, state: S) -> tuple[Tree, Tree | None]:
        """G by seed and P by seed and client, of the last evaluation whose result is available.

        None in place of P where personal models stay with their clients.
        """

    def outputs(self, part: Part, global_: Tree, personal: Tree) -> Outputs:
        """Predictions of these models, whose first axis is the seeds, for the samples of the evaluated clients."""

    def scores(self, global_: Tree, personal: Tree) -> Evaluation:
        """The metrics of these models, which begin with the seeds, on the samples of the evaluated clients."""

    def announce(self, state: S, round_: int, last: bool = False) -> None:
        """Tells clients that keep their personal models which round was chosen: with the next round, or now."""

    def model_bytes(self) -> int | None:
        """Bytes of the models of one seed; None if models are not saved by default."""


def check_seed(seeds: int, seed: Any) -> None:
    """Rejects a seed position that does not exist, unless it is traced."""
    if isinstance(seed, int | np.integer) and not 0 <= seed < seeds:
        raise SettingError(f"there is no seed at position {seed}; positions are 0 to {seeds - 1}")


def check_client(clients: int, client: Any) -> None:
    """Rejects a client number that does not exist, unless it is traced."""
    if isinstance(client, int | np.integer) and not 0 <= client < clients:
        raise SettingError(f"there is no client {client}; clients are 0 to {clients - 1}")
