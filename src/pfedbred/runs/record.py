"""A finished run, read from its folder: what was run, its evaluations and its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.engine.history import Part, Point, Which, curve
from pfedbred.errors import SettingError
from pfedbred.runs.figures import Figure, by_seed, figures_of, places
from pfedbred.runs.layout import METRICS, SUMMARY
from pfedbred.runs.metrics_file import read_points
from pfedbred.runs.schema import primary_metric, read_summary


@dataclass(frozen=True)
class RunRecord:
    """A run to show: one that has just ended, or one that was read from its folder.

    Attributes:
      summary: the content of summary.json.
      points: all evaluations.
    """

    summary: Mapping[str, Any]
    points: Sequence[Point]

    @staticmethod
    def read(folder: str | Path) -> RunRecord:
        """The finished run in a folder."""
        folder = Path(folder)
        summary, points = read_summary(folder / SUMMARY), read_points(folder)
        if not points:
            raise SettingError(f"{folder / METRICS} is empty: the run has not been evaluated")
        for model in points[-1].scores:
            for name in summary["metric_info"]:
                if name not in model.test.clients:
                    raise SettingError(f"{folder / METRICS} does not belong to {SUMMARY}: it has no {name!r}")
        return RunRecord(summary, points)

    @property
    def algorithm(self) -> str:
        """Its name in tables."""
        return self.summary["algorithm"]

    @property
    def experiment(self) -> Mapping[str, Any]:
        """Every option, as plain values."""
        return self.summary["experiment"]

    @property
    def rounds(self) -> int:
        """The number of rounds requested."""
        return self.summary["rounds"]

    @property
    def metrics(self) -> Mapping[str, Mapping[str, Any]]:
        """How to show each metric: its title, whether in percent, and whether higher is better."""
        return self.summary["metric_info"]

    @property
    def primary(self) -> str:
        """The metric that tables and pictures show: accuracy, or RMSE for numbers."""
        return primary_metric(self.summary)

    @property
    def other_metrics(self) -> dict[str, Mapping[str, Any]]:
        """The requested metrics besides the primary one and the loss."""
        return {name: info for name, info in self.metrics.items() if name not in (self.primary, "loss")}

    @property
    def diverged(self) -> int | None:
        """The round at which the run was found to have diverged."""
        return self.summary.get("diverged")

    def curve(self, metric: str, model: Which, part: Part = "test") -> np.ndarray:
        """A metric by evaluation and seed."""
        return curve(self.points, metric, model, part)

    def accuracy(self, model: Which, part: Part = "test") -> np.ndarray:
        """Accuracy by evaluation and seed."""
        return self.curve("accuracy", model, part)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figures that the run has; the first is the one to quote."""
        return figures_of(self.points)

    def figure(self, figure: Figure, metric: str, model: Which) -> np.ndarray:
        """A metric on the test samples, at a round chosen in this way, by seed; NaN where a seed diverged."""
        return by_seed(self.points, figure, metric, model, self._better, self.diverged is not None)

    def places(self, figure: Figure, metric: str, model: Which) -> np.ndarray:
        """For each seed, the evaluation that a figure is taken from."""
        return places(self.points, figure, metric, model, self._better)

    def best(self, metric: str, model: Which) -> np.ndarray:
        """A metric's best value over the evaluations, by seed; NaN where a seed diverged."""
        return self.figure("best", metric, model)

    @property
    def _better(self) -> dict[str, bool]:
        return {name: info["higher_is_better"] for name, info in self.metrics.items()}
