"""Running an experiment: rounds, evaluations, and what may happen between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np

from pfedbred.data.federation import Federation
from pfedbred.data.population import Population
from pfedbred.engine import Evaluation, Simulation, State, StreamedSimulation
from pfedbred.engine.newcomers import join
from pfedbred.engine.screening import Health, astray, total
from pfedbred.experiment.configuration import Experiment, Prepared


class Point(NamedTuple):
    """One evaluation of a run, and how its clients have been since the one before."""

    round: int
    seconds: float  # since the run began
    scores: Evaluation
    health: Health


class Progress(NamedTuple):
    """A run between two rounds.

    Attributes:
      round: how many are done.
      states: at this moment.
      points: its evaluations so far.
      seconds: that it has taken.
      compile_seconds: of them, compiling.
      round_seconds: time of one round, the median.
    """

    round: int
    states: State
    points: list[Point]
    seconds: float
    compile_seconds: float
    round_seconds: float


class Pauses(Protocol):
    """What happens between rounds."""

    def most(self, done: int, round_seconds: float | None) -> int:
        """How many rounds may pass before the next pause; ``round_seconds`` is what one takes, once that is known."""

    def pause(self, progress: Progress) -> str | None:
        """Called there; says why the run is to stop, if it is."""


@dataclass
class Run:
    """A finished run, or one that was stopped.

    Attributes:
      experiment: what was run, every default filled in.
      points: its evaluations, in order.
      compile_seconds: time spent compiling.
      round_seconds: time of one round, training only, for each stretch between evaluations.
      total_seconds: all of it.
      simulation: the compiled programs.
      states: where the run ended.
      newcomers: how the clients that were held out of training did when they joined, after 0, 1, 2, ... rounds of
        local training; None if there were none.
      stopped: why it ended before its last round; None if it did not.
      round: the last one.
      diverged: the round at which it was seen that all seeds had diverged, where the run stopped; None if it did not.
    """

    experiment: Experiment
    points: list[Point]
    compile_seconds: float
    round_seconds: list[float]
    total_seconds: float
    simulation: Simulation | StreamedSimulation
    states: State
    newcomers: list[Evaluation] | None = None
    stopped: str | None = None
    round: int = 0
    diverged: int | None = None

    @property
    def health(self) -> Health:
        """Who was left out, and how many rounds were skipped, in the whole run."""
        return self.simulation.health(self.states)

    def accuracy(self, model: Literal["global", "personal"], split: Literal["train", "test"] = "test") -> np.ndarray:
        """Accuracy by evaluation and seed."""
        scores = [getattr(point.scores, "global_" if model == "global" else "personal") for point in self.points]
        return np.stack([getattr(each, split).accuracy for each in scores])

    def global_model(self, seed: int = 0) -> Any:
        """The weights of G, for the seed at that position."""
        return self.simulation.global_model(self.states, seed)

    def personal_model(self, client: int, seed: int = 0) -> Any:
        """The weights of a client's P, for the seed at that position."""
        return self.simulation.personal_model(self.states, client, seed)


def run(
    experiment: Experiment | None = None,
    *,
    federation: Federation | Population | None = None,
    prepared: Prepared | None = None,
    observe: Callable[[Point], None] | None = None,
    pauses: Pauses | None = None,
    start: Progress | None = None,
    **options: Any,
) -> Run:
    """Runs an experiment.

    Args:
      experiment: what to run; or give its fields as ``options``.
      federation: data of one's own, in place of ``experiment.dataset``.
      prepared: this experiment, if it has been prepared already.
      observe: called after every evaluation.
      pauses: what happens between rounds.
      start: where to go on, with an experiment that was stopped.

    Example:
      >>> import pfedbred
      >>> result = pfedbred.run(algorithm="pfedme", settings={"lam": 15.0}, rounds=2, clients=10)
      >>> result.accuracy("personal").shape  # evaluations, seeds
      (2, 1)
    """
    begun = time.perf_counter() - (start.seconds if start else 0.0)
    if prepared is None:
        if experiment is None:
            if federation is not None:
                options = {"dataset": federation.name, **options}
            experiment = Experiment.from_mapping(options, federation)
        elif options:
            raise TypeError("give either an experiment or its fields, not both")
        prepared = experiment.prepare(federation)
    experiment, simulation, newcomers = prepared
    compiled_before = simulation.compile_seconds - (start.compile_seconds if start else 0.0)
    states = start.states if start else simulation.init(experiment.seed_list)
    points: list[Point] = list(start.points) if start else []
    round_seconds: list[float] = [start.round_seconds] if start else []
    health = total([point.health for point in points], experiment.seeds)
    done, stopped, diverged = start.round if start else 0, None, None
    pace: float | None = None  # of this process: another machine may have been quicker
    while done < experiment.rounds and stopped is None and diverged is None:
        stretch = min(experiment.eval_every - done % experiment.eval_every, experiment.rounds - done)
        if pauses:
            stretch = min(stretch, pauses.most(done, pace))
        compiled, started = simulation.compile_seconds, time.perf_counter()
        states = jax.block_until_ready(simulation.advance(states, stretch))
        compiling = simulation.compile_seconds - compiled
        pace = (time.perf_counter() - started - compiling) / stretch
        round_seconds.append(pace)
        done += stretch
        seconds = time.perf_counter() - begun
        if done == experiment.rounds or done % experiment.eval_every == 0:
            scores, before, health = simulation.evaluate(states), health, simulation.health(states)
            points.append(Point(done, seconds, scores, health.since(before)))
            if observe:
                observe(points[-1])
            diverged = done if np.all(astray(scores, health.in_row, experiment.rounds)) else None
        if pauses and diverged is None:
            compiling = simulation.compile_seconds - compiled_before
            typical = float(np.median(round_seconds))
            stopped = pauses.pause(Progress(done, states, points, seconds, compiling, typical))
    if done == experiment.rounds:
        stopped = None
    joined = join(simulation, states, newcomers, experiment.joining_rounds) if newcomers and not stopped else None
    elapsed = time.perf_counter() - begun
    compiling = simulation.compile_seconds - compiled_before
    return Run(
        experiment, points, compiling, round_seconds, elapsed, simulation, states, joined, stopped, done, diverged
    )
