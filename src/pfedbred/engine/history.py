"""What is recorded of a run while it trains: one point for every evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from pfedbred.engine.evaluation import Evaluation
from pfedbred.engine.screening import Rejections
from pfedbred.errors import SettingError, nearest

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
    if part not in ("train", "test"):
        raise SettingError(f"part must be 'train' or 'test', not {part!r}")
    values = [getattr(point.scores.of(model), part).values for point in points]
    if not all(metric in each for each in values):
        raise SettingError(f"{metric!r} was not evaluated{nearest(metric, values[0] if values else ())}")
    return np.stack([each[metric] for each in values])
