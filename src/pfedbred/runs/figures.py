"""The figures of a run: on the test samples, at a round chosen in one of three ways.

chosen   the round with the best value of the first metric on the validation samples, for each model and seed
last     the last round
best     the round with the best value on the test samples themselves: the paper's choice, which is optimistic
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from pfedbred.engine.history import Point, Which, best_places, curve, has_validation

Figure = Literal["chosen", "last", "best"]
TITLES: dict[Figure, str] = {"chosen": "chosen round", "last": "last round", "best": "best on test"}
EXPLAINED: dict[Figure, str] = {
    "chosen": "at the round that is best on the validation samples",
    "last": "at the last round",
    "best": "at the round that is best on the test samples, as the paper reports it",
}

SUMMARY_KEYS: dict[Figure, str] = {"chosen": "chosen", "last": "final", "best": "best"}
"""The figures' names in summary.json."""

Better = Mapping[str, bool]
"""By metric, whether higher is better; the first one chooses rounds."""


def figures_of(points: Sequence[Point]) -> tuple[Figure, ...]:
    """The figures that a run has; the first is the one to quote."""
    return ("chosen", "last", "best") if has_validation(points) else ("best", "last")


def places(points: Sequence[Point], figure: Figure, metric: str, model: Which, better: Better) -> np.ndarray:
    """For each seed, the evaluation that the figure is taken from."""
    if figure == "best":
        return best_places(curve(points, metric, model), better[metric])
    if figure == "chosen":
        first = next(iter(better))
        return best_places(curve(points, first, model, "validation"), better[first])
    return np.full(len(points[-1].scores.of(model).test.loss), len(points) - 1)


def by_seed(
    points: Sequence[Point], figure: Figure, metric: str, model: Which, better: Better, stopped: bool
) -> np.ndarray:
    """For each seed, the figure's value; NaN if it diverged, see :func:`diverged_seeds`."""
    values = curve(points, metric, model)
    found = values[places(points, figure, metric, model, better), np.arange(values.shape[1])]
    return np.where(diverged_seeds(points, model, stopped), np.nan, found)


def diverged_seeds(points: Sequence[Point], model: Which, stopped: bool) -> np.ndarray:
    """For each seed, whether it diverged: a training loss is not finite, or the whole run was ``stopped`` for that."""
    return stopped | ~np.isfinite(curve(points, "loss", model, "train")).all(axis=0)
