"""What a sweep has measured: tables of every point by evaluation and seed, and the record made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pfedbred.data.federation import Part
from pfedbred.engine.history import Which, best_places
from pfedbred.engine.metrics import METRICS, Metric
from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import Experiment
from pfedbred.io.strict import finite_or_none
from pfedbred.runs.figures import Figure
from pfedbred.runs.provenance import provenance
from pfedbred.runs.statistics import estimate

MODELS: tuple[Which, ...] = ("global", "personal")


class Tables:
    """Scores by part and model: points x evaluations x seeds, NaN where there is none.

    Attributes:
      points: the settings of each point.
      count: the number of points so far.
      evaluations: the number that each point has had.
      ended: whether it is finished or stopped.
    """

    def __init__(self, points: int, settings: int, evaluations: int, seeds: int, validated: bool) -> None:
        self.parts: tuple[Part, ...] = ("validation", "test") if validated else ("test",)
        self.points, self.count = np.full((points, settings), np.nan), 0
        self.evaluations, self.ended = np.zeros(points, int), np.zeros(points, bool)
        self.values: dict[tuple[Part, Which], np.ndarray] = {
            (part, model): np.full((points, evaluations, seeds), np.nan) for part in self.parts for model in MODELS
        }

    def add(self, points: np.ndarray) -> np.ndarray:
        """Adds points; returns their numbers."""
        numbers = np.arange(self.count, self.count + len(points))
        self.points[numbers] = points
        self.count += len(points)
        return numbers

    def arrays(self) -> dict[str, np.ndarray]:
        """For a checkpoint, by name."""
        scores = {f"scores.{part}.{model}": each for (part, model), each in self.values.items()}
        return {"points": self.points, "evaluations": self.evaluations, "ended": self.ended, **scores}

    def fill(self, arrays: Mapping[str, np.ndarray], count: int, where: str) -> None:
        """From a checkpoint."""
        for name, own in self.arrays().items():
            if name not in arrays or arrays[name].shape != own.shape:
                raise SettingError(f"{where} does not fit: {name!r} is missing or of another size")
            own[:] = arrays[name]
        self.count = count

    def note(self, part: Part, model: Which, point: int, evaluation: int, values: np.ndarray) -> None:
        """The scores of a point's seeds in an evaluation."""
        self.values[part, model][point, evaluation] = values
        self.evaluations[point] = evaluation + 1


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
      experiment: what was run; its settings are those of the first point.
      names: of the settings that differ.
      points: their values, one row for each point.
      rounds: of the evaluations.
      global_: test accuracy of G by point, evaluation and seed; NaN after a point has stopped, and where it diverged.
      personal: the same of P.
      compile_seconds: time spent compiling.
      total_seconds: total time.
      validation: the same on the validation samples, by model; None without any.
      evaluations: the number that each point had before it stopped.
      metric: what was measured: the accuracy, unless the task has none.
      chosen_on: the samples on which the best point is chosen.
    """

    experiment: Experiment
    names: tuple[str, ...]
    points: np.ndarray
    rounds: list[int]
    global_: np.ndarray
    personal: np.ndarray
    compile_seconds: float
    total_seconds: float
    validation: Mapping[Which, np.ndarray] | None
    evaluations: np.ndarray
    metric: Metric = dataclasses.field(default=METRICS["accuracy"])
    chosen_on: Literal["validation", "test"] = "validation"

    def __repr__(self) -> str:
        """One line: what was tried, and the best point."""
        experiment, best = self.experiment, "all diverged"
        if not np.isnan(self.scores("personal")).all():
            found = ", ".join(f"{name}={value:g}" for name, value in self.best_point().items())
            best = f"best on {self.chosen_on} samples: {found}"
        tried = f"{len(self.points)} points of {', '.join(self.names)}"
        return f"Sweep({experiment.algorithm_name} on {experiment.dataset_name}, {tried}; {best})"

    def best_accuracy(self, model: Which) -> np.ndarray:
        """For each point, the best on test over the rounds, averaged over seeds; NaN where a run diverged."""
        return self.figure("best", model).mean(axis=1)

    def figure(self, figure: Figure, model: Which) -> np.ndarray:
        """The test value of each point and seed, at a round chosen in this way; NaN where it diverged."""
        test, chosen = self._test(model), self._test(model)
        if figure == "chosen":
            assert self.validation is not None
            chosen = self.validation[model]
        last = figure == "last"
        return self._at_best(test, chosen, last)

    def _test(self, model: Which) -> np.ndarray:
        return self.personal if model == "personal" else self.global_

    def _at_best(self, values: np.ndarray, choosing: np.ndarray, last: bool = False) -> np.ndarray:
        """For each point and seed, the value at the evaluation at which ``choosing`` is best, or at its last one."""
        found = np.full((len(values), values.shape[2]), np.nan)
        for point, count in enumerate(self.evaluations):
            if count:
                upto = choosing[point, :count]
                places = np.full(len(found[point]), count - 1) if last else self._best(upto)
                own = values[point, :count][places, np.arange(len(places))]
                found[point] = np.where(np.isnan(values[point, :count]).any(axis=0), np.nan, own)
        return found

    def _best(self, values: np.ndarray) -> np.ndarray:
        return best_places(values, self.metric.higher_is_better)

    def scores(self, model: Which) -> np.ndarray:
        """The score by which each point is chosen: its best value over the rounds, averaged over seeds."""
        if self.chosen_on == "test" or self.validation is None:
            return self.best_accuracy(model)
        return self._at_best(self.validation[model], self.validation[model]).mean(axis=1)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figures of each point; the first is the one to quote."""
        return ("best", "last") if self.validation is None else ("chosen", "last", "best")

    def best_point(self) -> dict[str, float]:
        """The settings with the best personal models."""
        scores = self.scores("personal")
        best = np.nanargmax(scores) if self.metric.higher_is_better else np.nanargmin(scores)
        return named(self.names, self.points[int(best)])

    def record(self) -> dict[str, Any]:
        """The content of sweep.json: every point with its figures, and what made them."""
        metric = self.metric
        return {
            "algorithm": self.experiment.algorithm_name,
            "grid": list(self.names),
            "best": self.best_point(),
            "chosen_on": self.chosen_on,
            "metric": {
                "name": metric.name,
                "title": metric.title,
                "percent": metric.percent,
                "higher_is_better": metric.higher_is_better,
            },
            "seeds": len(self.experiment.seed_list),
            "points": self._point_records(),
            "seconds": {"compile": round(self.compile_seconds, 4), "total": round(self.total_seconds, 4)},
            **provenance(),
            "experiment": self.experiment.plain(),
        }

    def _point_records(self) -> list[dict[str, Any]]:
        best = {model: self.best_accuracy(model) for model in MODELS}
        scores = {model: self.scores(model) for model in MODELS}
        figures = {(model, figure): self.figure(figure, model) for model in MODELS for figure in self.figures}
        return [
            {
                **named(self.names, row),
                **{model: finite_or_none(best[model][i]) for model in MODELS},
                "measured": {
                    "score": {model: finite_or_none(scores[model][i]) for model in MODELS},
                    "figures": {
                        model: {figure: estimate(figures[model, figure][i])._asdict() for figure in self.figures}
                        for model in MODELS
                    },
                    "rounds": self.rounds[self.evaluations[i] - 1] if self.evaluations[i] else 0,
                },
            }
            for i, row in enumerate(self.points)
        ]


def named(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    """Settings by name."""
    return dict(zip(names, map(float, values), strict=True))
