"""A run while it trains: what callbacks see."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from pfedbred.engine.backend import Backend
from pfedbred.engine.history import Point
from pfedbred.experiment.configuration import Experiment
from pfedbred.runs.chosen import ChosenRounds

S = TypeVar("S")


@dataclass
class Progress(Generic[S]):
    """A run between two rounds.

    Attributes:
      experiment: the experiment.
      backend: its backend.
      state: the backend's.
      round: the number of rounds done.
      points: its evaluations so far.
      seconds: how long it has taken, resumed parts included.
      compile_seconds: how much of that was compiling.
      round_seconds: of one round, for each stretch of rounds; a resumed run starts with the median so far.
      pace: seconds of a round in this process; None before the first one.
      save_seconds: what the last checkpoint took to write.
      chosen: the models of the rounds that are best on validation samples so far; None without any.
      folder: the run folder, if it has one.
    """

    experiment: Experiment
    backend: Backend[S]
    state: S
    round: int = 0
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    compile_seconds: float = 0.0
    round_seconds: list[float] = field(default_factory=list)
    pace: float | None = None
    save_seconds: float = 0.0
    chosen: ChosenRounds | None = None
    folder: Path | None = None

    @property
    def typical_round_seconds(self) -> float:
        """The median."""
        return float(np.median(self.round_seconds)) if self.round_seconds else 0.0

    @property
    def evaluation_due(self) -> bool:
        """Whether the current round is due for evaluation and not evaluated yet."""
        evaluated = self.points[-1].round if self.points else 0
        last = self.round == self.experiment.rounds
        return self.round > evaluated and (last or self.round % self.experiment.eval_every == 0)
