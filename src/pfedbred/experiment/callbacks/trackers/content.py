"""What trackers record: settings as a flat mapping, and the numbers of one evaluation by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pfedbred.engine.history import Point, Which
from pfedbred.experiment.result import Run
from pfedbred.experiment.sweep_result import Sweep, named
from pfedbred.runs.figures import by_seed, figures_of

_MODELS: tuple[Which, ...] = ("global", "personal")

ALWAYS = "screening/skipped"
"""The name of a value that every evaluation of a run has, and that is always finite."""

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


def shown(primary: str, validated: bool) -> list[str]:
    """The names of the values that tables show."""
    names = [f"{model}/test/{primary}" for model in _MODELS]
    return names + [f"{model}/chosen/{primary}" for model in _MODELS if validated]


def run_figures(run: Run[Any]) -> dict[str, float]:
    """The figures of a run by name, such as ``personal/best/accuracy``, as means over seeds."""
    better = {each.name: each.higher_is_better for each in run.backend.plan.metrics}
    primary, stopped = next(iter(better)), run.diverged is not None
    return _finite(
        {
            f"{model}/{figure}/{primary}": float(np.mean(by_seed(run.points, figure, primary, model, better, stopped)))
            for figure in figures_of(run.points)
            for model in _MODELS
        }
    )


class EndedPoint(NamedTuple):
    """A point of a sweep that has ended.

    Attributes:
      name: its number and its settings.
      settings: the experiment with these settings.
      evaluations: what was measured of it, without the values of clients.
      figures: as of a run.
    """

    name: str
    settings: Flat
    evaluations: list[Measured]
    figures: dict[str, float]


def recorded_point(sweep: Sweep, number: int) -> EndedPoint:
    """A point of a sweep as trackers record it."""
    primary, own = sweep.metric.name, named(sweep.names, sweep.points[number])
    plain = sweep.experiment.plain()
    tables = {("global", "test"): sweep.global_, ("personal", "test"): sweep.personal}
    tables |= {(model, "validation"): values for model, values in (sweep.validation or {}).items()}
    return EndedPoint(
        f"point {number}: " + " ".join(f"{name}={value:g}" for name, value in own.items()),
        flattened({**plain, "settings": {**plain["settings"], **own}}),
        [
            Measured(
                round_,
                sweep.experiment.seed_list,
                {f"{model}/{part}/{primary}": values[number, i] for (model, part), values in tables.items()},
                {},
            )
            for i, round_ in enumerate(sweep.rounds[: sweep.evaluations[number]])
        ],
        _finite(
            {
                f"{model}/{figure}/{primary}": float(np.mean(sweep.figure(figure, model)[number]))
                for figure in sweep.figures
                for model in _MODELS
            }
        ),
    )


def flattened(options: Mapping[str, Any], above: str = "") -> Flat:
    """Nested options as one mapping, with names such as ``settings.lam``; those that are not set are omitted."""
    flat: Flat = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{above}{name}.")
        elif value is not None:
            flat[f"{above}{name}"] = value if isinstance(value, str | int | float) else json.dumps(value)
    return flat
