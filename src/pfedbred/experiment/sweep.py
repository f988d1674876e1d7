"""Sweeps: one experiment with many values of its hyper-parameters, all of them in one compiled program.

The settings that differ are numbers in the program, not part of it; every point of the grid is a run beside the others,
as seeds are. Points that do not fit into memory together run in groups, all with the same program.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from pfedbred import algorithms
from pfedbred import settings as settings_
from pfedbred.algorithms.base import Algorithm
from pfedbred.data.federation import Federation
from pfedbred.engine import metrics
from pfedbred.engine.history import Which
from pfedbred.engine.screening import stalled
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment.building import build_sweep
from pfedbred.experiment.configuration import Experiment
from pfedbred.io.strict import finite_or_none
from pfedbred.runs.provenance import provenance

Grid = Mapping[str, Sequence[float]]
_MODELS: tuple[Which, ...] = ("global", "personal")
_MEMORY = 4 * 2**30  # for the states of the points that run together


def parse_grid(texts: Sequence[str]) -> dict[str, list[float]]:
    """``eta=0.01:0.5:8`` is eight values from 0.01 to 0.5; ``eta=0.01,0.1`` is these two."""
    grid: dict[str, list[float]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        try:
            if not equals or not name or name in grid:
                raise ValueError
            if ":" in values:
                first, last, count = values.split(":")
                if not 1 <= int(count) <= 10_000:
                    raise ValueError
                grid[name] = [float(each) for each in np.linspace(float(first), float(last), int(count))]
            else:
                grid[name] = [float(each) for each in values.split(",")]
        except ValueError:
            if equals and name and name not in grid and ":" not in values:
                raise SettingError(f"--grid {name} takes numbers, not {values!r}") from None
            raise SettingError(
                f"--grid takes NAME=FIRST:LAST:COUNT or NAME=A,B,C, each name once, not {text!r}"
            ) from None
    return grid


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
      experiment: what was run; its settings are those of the first point.
      names: of the settings that differ.
      points: their values, one row for each point.
      rounds: of the evaluations.
      global_: test accuracy of G by point, evaluation and seed.
      personal: likewise of P.
      compile_seconds: time spent compiling.
      total_seconds: all of it.
    """

    experiment: Experiment
    names: tuple[str, ...]
    points: np.ndarray
    rounds: list[int]
    global_: np.ndarray
    personal: np.ndarray
    compile_seconds: float
    total_seconds: float

    def best_accuracy(self, model: str) -> np.ndarray:
        """Of each point: the best over the rounds, averaged over seeds; NaN where a run diverged."""
        accuracy = self.personal if model == "personal" else self.global_
        return accuracy.max(axis=1).mean(axis=1)

    def record(self) -> dict[str, Any]:
        """The content of sweep.json: every point with its best accuracies, and what made them."""
        best = zip(self.best_accuracy("global"), self.best_accuracy("personal"), strict=True)
        points = [
            {**_named(self.names, row), "global": finite_or_none(g), "personal": finite_or_none(p)}
            for row, (g, p) in zip(self.points, best, strict=True)
        ]
        return {
            "algorithm": self.experiment.algorithm_name,
            "grid": list(self.names),
            "best": self.best_point(),
            "points": points,
            "seconds": {"compile": round(self.compile_seconds, 4), "total": round(self.total_seconds, 4)},
            **provenance(),
            "experiment": self.experiment.plain(),
        }

    def best_point(self) -> dict[str, float]:
        """The settings with the best personal models."""
        return _named(self.names, self.points[int(np.nanargmax(self.best_accuracy("personal")))])


def _named(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))


def sweep(
    experiment: Experiment,
    grid: Grid,
    *,
    federation: Federation | None = None,
    memory: int = _MEMORY,
    observe: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Runs the experiment at every point of the grid.

    Args:
      experiment: what to run; settings that are not in the grid are the same everywhere.
      grid: values for each setting.
      federation: custom data, in place of ``experiment.dataset``.
      memory: bytes that the states of points running together may take.
      observe: called after every evaluation with how many of all points' rounds are done, and how many there are.
    """
    started = time.perf_counter()
    names = tuple(grid)
    if federation is not None:
        experiment = experiment.on(federation)
    _check(experiment, grid)
    points = np.array(list(itertools.product(*grid.values())), float)
    first = {**(experiment.settings or {}), **_named(names, points[0])}
    experiment, backend = build_sweep(dataclasses.replace(experiment, settings=first), federation, names)
    seeds = experiment.seed_list
    if backend.plan.metrics[0].name != "accuracy":
        raise SettingError(f"a sweep compares accuracies, which the task {experiment.kind.name} does not have")
    if not len(backend.federation.test.y):
        raise SettingError("there are no test samples to compare the points by")
    together = int(np.clip(memory // max(1, backend.state_bytes() * len(seeds)), 1, len(points)))
    groups = math.ceil(len(points) / together)
    together = math.ceil(len(points) / groups)  # groups of nearly equal size: the last one is filled up
    rounds = [*range(experiment.eval_every, experiment.rounds, experiment.eval_every), experiment.rounds]
    accuracy = {model: np.empty((groups * together, len(rounds), len(seeds))) for model in _MODELS}
    for group in range(groups):
        places = np.arange(group * together, (group + 1) * together)
        values = points[np.minimum(places, len(points) - 1)]
        own = {name: np.repeat(values[:, column], len(seeds)) for column, name in enumerate(names)}
        states = backend.init(seeds * together, own)
        for index, (before, after) in enumerate(itertools.pairwise([0, *rounds])):
            states = backend.advance(states, after - before)
            lost = stalled(states.skipped_in_row.tolist(), experiment.rounds)
            evaluation = backend.evaluate(states)
            for model, found in accuracy.items():
                scores = evaluation.of(model)
                valid = np.isfinite(scores.train.loss) & ~lost
                found[places, index] = np.where(valid, scores.test.accuracy, np.nan).reshape(together, len(seeds))
            if observe:
                observe(group * experiment.rounds + after, groups * experiment.rounds)
    finished = Sweep(
        experiment,
        names,
        points,
        rounds,
        accuracy["global"][: len(points)],
        accuracy["personal"][: len(points)],
        backend.compile_seconds,
        time.perf_counter() - started,
    )
    if np.all(np.isnan(finished.best_accuracy("personal"))):
        raise SettingError("every point of the sweep diverged: try smaller steps")
    return finished


def _check(experiment: Experiment, grid: Grid) -> None:
    """Rejects what cannot be in a grid, and values that the setting does not allow."""
    if not grid:
        raise SettingError("a sweep needs a grid, such as --grid eta=0.01:0.5:8")
    if experiment.held_out_clients:
        raise SettingError("a sweep does not evaluate held-out clients: leave held_out_clients out")
    if experiment.executor == "loop":
        raise SettingError("a sweep is one compiled program; the executor loop has none")
    usual = metrics.resolve(None, experiment.kind)
    if set(metrics.resolve(experiment.metrics, experiment.kind)) - set(usual) or experiment.diagnostics:
        raise SettingError("a sweep compares accuracies: leave metrics and diagnostics out, and run the best point")
    if isinstance(experiment.algorithm, Algorithm):
        raise SettingError("an Algorithm object has no settings to sweep: give its name or the function that builds it")
    known = settings_.declared(algorithms.factory(experiment.algorithm))
    for name, values in grid.items():
        if name not in known:
            raise SettingError(f"unknown setting {name!r}{nearest(name, known)}")
        annotation = known[name].annotation
        if not _is_number(annotation):
            numbers = [each for each, parameter in known.items() if _is_number(parameter.annotation)]
            raise SettingError(
                f"{name} decides how the program is built, and a sweep is one program; "
                f"a grid can have {', '.join(numbers)}"
            )
        for value in values:
            settings_.check(name, value, annotation)


def _is_number(annotation: Any) -> bool:
    return typing.get_origin(annotation) is Annotated and typing.get_args(annotation)[0] is float
