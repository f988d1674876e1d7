"""Where the points of a sweep come from: a list, or a sampler that learns from the points before.

A sampler is asked for points when there is room for them, and told the outcome of each, in the order in which outcomes
are known. A resumed sweep asks and tells again, so that it continues with exactly the same points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pfedbred.errors import SettingError, nearest
from pfedbred.experiment.space import Range, Space, every_point, random_points
from pfedbred.settings.values import Count, check

RANDOM = "random"
_OPTUNA = {"tpe": "TPESampler", "qmc": "QMCSampler", "cmaes": "CmaEsSampler", "gp": "GPSampler"}
SAMPLERS = (RANDOM, *_OPTUNA)


class Sampler(Protocol):
    """Chooses the points.

    Attributes:
      total: the total number of points.
      learns: whether it waits for outcomes before it chooses more.
    """

    total: int
    learns: bool

    def ask(self, count: int) -> np.ndarray:
        """At most ``count`` further points, one row each; none when all have been chosen."""

    def tell(self, point: int, value: float | None, complete: bool) -> None:
        """The outcome of a point, by its number: higher is better, None if it diverged. It may have stopped early."""


class Listed:
    """Points that are all known from the start."""

    learns = False

    def __init__(self, points: np.ndarray) -> None:
        self._points, self._asked = points, 0
        self.total = len(points)

    def ask(self, count: int) -> np.ndarray:
        """The next ones."""
        found = self._points[self._asked : self._asked + count]
        self._asked += len(found)
        return found

    def tell(self, point: int, value: float | None, complete: bool) -> None:
        """Does nothing: the points are fixed."""


class OptunaSampler:
    """One of Optuna's samplers (Akiba et al. 2019), asked for batches."""

    learns = True

    def __init__(self, name: str, space: Space, total: int, seed: int) -> None:
        optuna = _imported("optuna", "a sampler that learns needs Optuna: pip install 'pfedbred[search]'")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        build: Callable[..., Any] = getattr(optuna.samplers, _OPTUNA[name])
        try:
            sampler = build(seed=seed)
            self._study = optuna.create_study(direction="maximize", sampler=sampler)
        except ImportError as missing:
            raise SettingError(f"the sampler {name} needs another package: {missing}") from None
        kinds = optuna.distributions
        self._space = {
            key: kinds.FloatDistribution(each.low, each.high, log=each.log)
            if isinstance(each, Range)
            else kinds.CategoricalDistribution([float(value) for value in each])
            for key, each in space.items()
        }
        self._states = optuna.trial.TrialState
        self._trials: list[Any] = []
        self.total = total

    def ask(self, count: int) -> np.ndarray:
        """New trials."""
        count = min(count, self.total - len(self._trials))
        try:
            asked = [self._study.ask(self._space) for _ in range(count)]
        except ImportError as missing:  # some samplers import what they need when they are first used
            raise SettingError(f"the sampler needs another package: {missing}") from None
        self._trials += asked
        return np.array([[trial.params[name] for name in self._space] for trial in asked], float).reshape(
            count, len(self._space)
        )

    def tell(self, point: int, value: float | None, complete: bool) -> None:
        """A trial's value; one that stopped early is pruned, one that diverged has failed."""
        trial, states = self._trials[point], self._states
        if value is None:
            self._study.tell(trial, state=states.FAIL)
        elif complete:
            self._study.tell(trial, value)
        else:
            trial.report(value, 0)
            self._study.tell(trial, state=states.PRUNED)


def _imported(name: str, words: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise SettingError(words) from None


def get(space: Space, points: int | None, sampler: str | None, seed: int) -> Sampler:
    """The sampler of that name, or all points of a grid if no number of points is given."""
    if sampler is not None and sampler not in SAMPLERS:
        raise SettingError(f"unknown sampler {sampler!r}{nearest(sampler, SAMPLERS)}")
    if points is not None:
        check("points", points, Count)
    if points is None:
        if sampler is not None:
            raise SettingError(f"the sampler {sampler} needs a number of points, such as --points 40")
        return Listed(every_point(space))
    if sampler in (None, RANDOM):
        return Listed(random_points(space, points, seed))
    assert sampler is not None
    return OptunaSampler(sampler, space, points, seed)


Event = Mapping[str, Any]
"""What a sampler was asked (``ask``: how many points) or told (``point``, ``value``, ``complete``)."""


class Logged:
    """A sampler that notes what it was asked and told, so that it can be restored to the same state."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler, self.events = sampler, list[Event]()
        self.total, self.learns = sampler.total, sampler.learns

    def replay(self, events: Sequence[Event]) -> np.ndarray:
        """Asks and tells as noted before; returns all points."""
        points = []
        for event in events:
            if "ask" in event:
                points.append(self.ask(event["ask"]))
            else:
                self.tell(event["point"], event["value"], event["complete"])
        return np.concatenate(points)

    def ask(self, count: int) -> np.ndarray:
        """See Sampler."""
        self.events.append({"ask": count})
        return self._sampler.ask(count)

    def tell(self, point: int, value: float | None, complete: bool) -> None:
        """See Sampler."""
        self.events.append({"point": point, "value": value, "complete": complete})
        self._sampler.tell(point, value, complete)
