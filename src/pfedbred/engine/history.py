"""What is recorded of a run while it trains: one point for every evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from pfedbred.data.federation import Part
from pfedbred.engine.scores import Evaluation
from pfedbred.engine.screening import Rejections
from pfedbred.errors import SettingError, nearest

Which = Literal["global", "personal"]

__all__ = ["Part", "Point", "Which", "best_places", "curve", "has_validation"]


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
    if part not in get_args(Part):
        raise SettingError(f"part must be 'train', 'validation' or 'test', not {part!r}")
    scores = [point.scores.of(model).parts.get(part) for point in points]
    values = [each.values for each in scores if each is not None]
    if len(values) < len(points):
        raise SettingError("there are no validation samples: keep some with validation=0.2")
    if not all(metric in each for each in values):
        raise SettingError(f"{metric!r} was not evaluated{nearest(metric, values[0] if values else ())}")
    return np.stack([each[metric] for each in values])


def best_places(values: np.ndarray, higher_is_better: bool) -> np.ndarray:
    """The index of the best evaluation for each seed: the first in a tie; missing values do not count."""
    return np.where(np.isnan(values), -np.inf, values if higher_is_better else -values).argmax(axis=0)


def has_validation(points: Sequence[Point]) -> bool:
    """Whether the evaluations have validation samples."""
    return bool(points) and points[0].scores.global_.validation is not None
