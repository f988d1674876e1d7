"""An experiment: everything that decides a run, as data; and running it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from pfedbred import algorithms, data, models
from pfedbred import settings as settings_
from pfedbred.algorithm import Task
from pfedbred.data.federation import Federation
from pfedbred.engine import Evaluation, Plan, Simulation, State, cohort, selection
from pfedbred.errors import SettingError, nearest
from pfedbred.settings import Count, NonNegativeCount


def _option(default: Any, words: str) -> Any:
    return field(default=default, metadata={"help": words})


@dataclass(frozen=True)
class Experiment:
    """What to run. Every field is a key of an experiment file and an option of the command line."""

    dataset: str = _option("digits", "data by name: see 'pfedbred list datasets'")
    model: str | models.Model = _option("mclr", "model by name: see 'pfedbred list models'")
    algorithm: str = _option("mg-meta", "algorithm by name: see 'pfedbred list algorithms'")
    settings: Any = field(default_factory=dict)
    rounds: Count = _option(100, "rounds of training")
    seeds: Count = _option(1, "how many seeds to run side by side")
    seed: NonNegativeCount = _option(0, "the first seed; the others follow it")
    clients: Count | None = _option(None, "clients to split the data over; the dataset's own number if not given")
    labels_per_client: Count | None = _option(None, "labels each client holds; the dataset's own number if not given")
    split_seed: NonNegativeCount = _option(0, "seed of the split, the same for all seeds of the run")
    data_dir: str | None = _option(None, "folder with the data; else $PFEDBRED_DATA, the cache, or a download")
    participation: Literal["all", "sample"] = _option(
        "all", "who trains in a round: all clients (the paper), or only the sample that is averaged"
    )
    aggregated: Count | None = _option(None, "clients averaged in a round; a fifth of them if not given")
    select: str | list[int] = _option(
        "uniform", "how they are chosen: uniform, by-data, or client numbers such as 0,3,5"
    )
    weights: Literal["data", "uniform"] = _option("data", "their weights: by training samples, or uniform")
    batch_size: Count = _option(20, "samples in a minibatch")
    eval_every: Count = _option(1, "rounds between evaluations")
    executor: str = _option("auto", "how clients run: auto, vmap, in-turn, or loop (slow reference)")
    chunk: Count | None = _option(None, "clients that vmap runs at a time; all if not given")

    @staticmethod
    def from_mapping(given: Mapping[str, Any]) -> Experiment:
        """An experiment from plain values, each checked; what is not given keeps its default."""
        known = [each.name for each in dataclasses.fields(Experiment)]
        for name in given:
            if name not in known:
                raise SettingError(f"unknown option {name!r}{nearest(name, known)}")
        return Experiment(**given).resolved()

    def resolved(self) -> Experiment:
        """The same experiment, checked, with every default filled in. Raises SettingError if it cannot be run."""
        checked: dict[str, Any] = {
            name: settings_.check(name, getattr(self, name), hint) for name, hint in settings_.hints(Experiment).items()
        }
        experiment = dataclasses.replace(self, **{**checked, "settings": self._settings()})
        cohort.choose(experiment.executor)
        clients, labels = experiment._clients()
        chosen = experiment._fixed_clients()
        count = len(chosen) if chosen is not None else experiment.aggregated or max(1, round(clients / 5))
        if chosen is None:
            selection.get(str(experiment.select), count)
        else:
            selection.check(chosen, clients)
            if experiment.aggregated not in (None, count):
                raise SettingError(f"aggregated is {experiment.aggregated}, but select names {count} clients")
        if count > clients:
            raise SettingError(f"aggregated must be at most the number of clients, {clients}, not {count}")
        last = experiment.seed + experiment.seeds - 1
        if last >= 2**32:
            raise SettingError(f"seeds must be below 2**32, but the last one would be {last}")
        return dataclasses.replace(experiment, aggregated=count, clients=clients, labels_per_client=labels)

    def _settings(self) -> dict[str, Any]:
        """All settings of the algorithm. A path in them is made absolute, to mean the same wherever it is read."""
        given = {} if self.settings is None else self.settings
        if not isinstance(given, Mapping):
            raise SettingError(f"settings must be names with values, not {given!r}")
        resolved = settings_.resolve(algorithms.factory(self.algorithm), given)
        if isinstance(resolved.get("sigma"), str):
            resolved["sigma"] = str(Path(resolved["sigma"]).resolve())
        return resolved

    def _clients(self) -> tuple[int, int | None]:
        """Clients and labels for each; a federation of one's own knows only the first."""
        if self.clients is not None and self.dataset not in data.DATASETS:
            return self.clients, None
        own = data.defaults(self.dataset)
        return self.clients or own["clients"], self.labels_per_client or own["labels_per_client"]

    def _fixed_clients(self) -> list[int] | None:
        """The clients named by ``select``, if it names any."""
        if not isinstance(self.select, str):
            return list(self.select)
        parts = self.select.replace(",", " ").split()
        return [int(part) for part in parts] if parts and all(part.isdecimal() for part in parts) else None

    @property
    def seed_list(self) -> list[int]:
        """The seeds of the run."""
        return list(range(self.seed, self.seed + self.seeds))

    def federation(self) -> Federation:
        """The data, split over the clients."""
        return data.load(
            self.dataset,
            clients=self.clients,
            labels_per_client=self.labels_per_client,
            seed=self.split_seed,
            data_dir=self.data_dir,
        )

    def simulation(self, federation: Federation | None = None) -> Simulation:
        """Ready to run on ``federation``, or on the named dataset."""
        experiment = self.resolved()
        federation = federation or experiment.federation()
        if federation.clients != experiment.clients:
            raise SettingError(
                f"the experiment is for {experiment.clients} clients, the federation has {federation.clients}"
            )
        task = Task(models.get(experiment.model, federation.shape, federation.classes))
        algorithm = algorithms.make(experiment.algorithm, task, experiment.settings)
        chosen = experiment._fixed_clients()
        select = selection.get(experiment.select if chosen is None else chosen, experiment.aggregated or 1)
        plan = Plan(
            select,
            experiment.participation,
            experiment.weights,
            experiment.batch_size,
            experiment.executor,
            experiment.chunk,
        )
        simulation = Simulation(algorithm, task, federation, plan)
        simulation.trace()
        return simulation


class Point(NamedTuple):
    """One evaluation of a run."""

    round: int
    seconds: float  # since the run began
    scores: Evaluation


@dataclass
class Run:
    """A finished run.

    Attributes:
      experiment: what was run, every default filled in.
      points: its evaluations, in order.
      compile_seconds: time spent compiling.
      round_seconds: time of one round, training only, for each stretch between evaluations.
      total_seconds: all of it.
      simulation: the compiled programs.
      states: where the run ended.
    """

    experiment: Experiment
    points: list[Point]
    compile_seconds: float
    round_seconds: list[float]
    total_seconds: float
    simulation: Simulation
    states: State

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
    federation: Federation | None = None,
    simulation: Simulation | None = None,
    observe: Callable[[Point], None] | None = None,
    **options: Any,
) -> Run:
    """Runs an experiment.

    Args:
      experiment: what to run; or give its fields as ``options``.
      federation: data of one's own, in place of ``experiment.dataset``.
      simulation: of this experiment, if it has been made already.
      observe: called after every evaluation.

    Example:
      >>> import pfedbred
      >>> result = pfedbred.run(algorithm="pfedme", settings={"lam": 15.0}, rounds=2, clients=10)
      >>> result.accuracy("personal").shape  # evaluations, seeds
      (2, 1)
    """
    begun = time.perf_counter()
    if experiment is None:
        if federation is not None:
            options = {"dataset": federation.name, "clients": federation.clients, **options}
        experiment = Experiment.from_mapping(options)
    elif options:
        raise TypeError("give either an experiment or its fields, not both")
    experiment = experiment.resolved()
    simulation = simulation or experiment.simulation(federation)
    compiled_before = simulation.compile_seconds
    states = simulation.init(experiment.seed_list)
    points: list[Point] = []
    round_seconds: list[float] = []
    done = 0
    while done < experiment.rounds:
        stretch = min(experiment.eval_every, experiment.rounds - done)
        compiled, started = simulation.compile_seconds, time.perf_counter()
        states = jax.block_until_ready(simulation.advance(states, stretch))
        compiling = simulation.compile_seconds - compiled
        round_seconds.append((time.perf_counter() - started - compiling) / stretch)
        done += stretch
        points.append(Point(done, time.perf_counter() - begun, simulation.evaluate(states)))
        if observe:
            observe(points[-1])
    total = time.perf_counter() - begun
    compiling = simulation.compile_seconds - compiled_before
    return Run(experiment, points, compiling, round_seconds, total, simulation, states)
