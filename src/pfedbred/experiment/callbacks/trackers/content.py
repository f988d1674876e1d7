"""What trackers record: settings as a flat mapping, and the numbers of one evaluation by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pfedbred.engine.history import Point, Which

_MODELS: tuple[Which, ...] = ("global", "personal")

ALWAYS = "screening/skipped"
"""The name of a value that every evaluation has, and that is always finite."""

Flat: TypeAlias = dict[str, str | int | float | bool]


class Measured(NamedTuple):
    """One evaluation.

    Attributes:
      round: after which it was made.
      seeds: of the run.
      values: by name, such as ``personal/test/accuracy``: one number for each seed.
      clients: by name the primary metric of every client on its test samples, those of all seeds in one array.
    """

    round: int
    seeds: Sequence[int]
    values: Mapping[str, np.ndarray]
    clients: Mapping[str, np.ndarray]

    def means(self) -> dict[str, float]:
        """The means over seeds. One that is not finite is omitted: a gap in its curve."""
        return _finite({name: float(np.mean(each)) for name, each in self.values.items()})

    def of_seed(self, place: int) -> dict[str, float]:
        """The finite numbers of the seed at that place."""
        return _finite({name: float(each[place]) for name, each in self.values.items()})

    def numbers(self) -> dict[str, float]:
        """The means and, if there are several seeds, those of each under names such as ``seed-0/personal/...``."""
        found = self.means()
        for place, seed in enumerate(self.seeds if len(self.seeds) > 1 else ()):
            found |= {f"seed-{seed}/{name}": number for name, number in self.of_seed(place).items()}
        return found


def _finite(numbers: dict[str, float]) -> dict[str, float]:
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def measured(point: Point, seeds: Sequence[int], primary: str) -> Measured:
    """An evaluation as trackers record it; ``primary`` is the name of the metric to record client by client."""
    values = {
        f"{model}/{part}/{name}": numbers
        for model in _MODELS
        for part, scores in point.scores.of(model).parts.items()
        for name, numbers in scores.values.items()
    }
    values |= {f"diagnostics/{name}": numbers for name, numbers in point.diagnostics.items()}
    values["screening/rejected"] = np.array([sum(each.values()) for each in point.rejections.rejected])
    values[ALWAYS] = np.array(point.rejections.skipped)
    clients = {
        f"{model}/test/clients/{primary}": point.scores.of(model).test.clients[primary].ravel() for model in _MODELS
    }
    return Measured(point.round, seeds, values, {name: each[np.isfinite(each)] for name, each in clients.items()})


def figures(primary: str) -> list[str]:
    """The names of the values that tables show."""
    return [f"{model}/test/{primary}" for model in _MODELS]


def flattened(options: Mapping[str, Any], above: str = "") -> Flat:
    """Nested options as one mapping, with names such as ``settings.lam``; those that are not set are omitted."""
    flat: Flat = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{above}{name}.")
        elif value is not None:
            flat[f"{above}{name}"] = value if isinstance(value, str | int | float) else json.dumps(value)
    return flat
