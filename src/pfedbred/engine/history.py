"""What is recorded of a run while it trains: one point for every evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from pfedbred.engine.evaluation import Evaluation
from pfedbred.engine.screening import Rejections

Which = Literal["global", "personal"]
Part = Literal["train", "test"]


class Point(NamedTuple):
    """One evaluation of a run.

    Attributes:
      round: after which it was made.
      seconds: since the run started.
      scores: of both models.
      rejections: since the evaluation before.
      diagnostics: of the last round, by name and seed; empty if they are not collected.
    """

    round: int
    seconds: float
    scores: Evaluation
    rejections: Rejections
    diagnostics: Mapping[str, np.ndarray] = {}  # never changed


def curve(points: Sequence[Point], metric: str, model: Which, part: Part = "test") -> np.ndarray:
    """A metric by evaluation and seed."""
    return np.stack([getattr(point.scores.of(model), part).values[metric] for point in points])
