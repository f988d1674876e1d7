"""A run as its folder tells it: what was run, its evaluations and its outcome, without models or programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.engine.history import Part, Point, Which, curve
from pfedbred.errors import SettingError
from pfedbred.runs.layout import METRICS, SUMMARY
from pfedbred.runs.metrics_file import read_points
from pfedbred.runs.schema import read_summary


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
            raise SettingError(f"{folder / SUMMARY} belongs to a finished run, but {METRICS} is empty")
        return RunRecord(summary, points)

    @property
    def algorithm(self) -> str:
        """Its name, for people."""
        return self.summary["algorithm"]

    @property
    def experiment(self) -> Mapping[str, Any]:
        """Every option, as plain values."""
        return self.summary["experiment"]

    @property
    def rounds(self) -> int:
        """How many rounds were asked for."""
        return self.summary["rounds"]

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
