"""Sweeps: one experiment with many values of its hyper-parameters, all of them in one compiled program.

The settings that differ are numbers in the program, not part of it; every point is a run beside the others, as seeds
are. As many points as fit run together. A point that is finished, or stopped early, makes room for the next one: the
places in the program are independent of each other, each at its own round.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from pfedbred import algorithms
from pfedbred import settings as settings_
from pfedbred.algorithms.base import Algorithm
from pfedbred.data.federation import Federation
from pfedbred.engine import devices, metrics
from pfedbred.engine.metrics import Metric
from pfedbred.engine.resident import ResidentBackend, State
from pfedbred.engine.screening import stalled
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment import samplers
from pfedbred.experiment.building import build_sweep, load_data
from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.halving import Halving
from pfedbred.experiment.space import Range, Space
from pfedbred.experiment.sweep_result import MODELS, Sweep, Tables
from pfedbred.io.strict import finite_or_none
from pfedbred.settings.schedules import may_vary

_MEMORY = 4 * 2**30  # for the states of the points that run together
_VALIDATION = 0.2  # of each client's training samples, unless the data or the user decides it
_BATCHES = 5  # of points from a sampler that learns
_GENERATIONS = 3  # of points in each place, if some stop early


def default_memory() -> int:
    """Bytes for the states of the points that run together: a step needs as much again."""
    return min(_MEMORY, devices.device_memory() // 2)


class Keeper(Protocol):
    """Keeps a sweep while it runs, so that it can be resumed, and tells when to stop."""

    def restore(self, sweeping: Sweeping) -> None:
        """Restores a sweep that was interrupted."""

    def pause(self, sweeping: Sweeping) -> None:
        """Called after every evaluation; raises an exception to stop."""


def sweep(
    experiment: Experiment,
    grid: Space,
    *,
    federation: Federation | None = None,
    points: int | None = None,
    sampler: str | None = None,
    halving: bool = False,
    choose_on_test: bool = False,
    metric: str | None = None,
    memory: int | None = None,
    observe: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
    callbacks: Sequence[Callback] = (),
    keeper: Keeper | None = None,
) -> Sweep:
    """Runs the experiment with many settings.

    The best point is chosen on validation samples: those of the data, those that the experiment keeps, or else a fifth
    of each client's training samples.

    Args:
      experiment: what to run; settings that are not in the grid are the same everywhere.
      grid: values for each setting, or a :class:`Range` to draw from.
      federation: custom data, in place of ``experiment.dataset``.
      points: how many points to draw, at random or by the sampler; by default every combination of the values.
      sampler: ``random``, or one of Optuna's: ``tpe``, ``qmc``, ``cmaes``, ``gp``.
      halving: whether the worse half of the points stops early, several times.
      choose_on_test: whether to choose on the test samples instead, whose figures are then optimistically biased.
      metric: what points are compared by, of the task's metrics and the experiment's; by default the task's first.
      memory: bytes that the states of points running together may take; by default 4 GiB, or half of the device's.
      observe: called after every evaluation with the number of rounds done, over all points, and their total.
      note: called with notes for the user.
      callbacks: called when a point has ended; see :meth:`pfedbred.Callback.on_point`.
      keeper: writes checkpoints; see :mod:`pfedbred.experiment.sweep_folder`.
    """
    sweeping = prepare(
        experiment,
        grid,
        federation=federation,
        points=points,
        sampler=sampler,
        halving=halving,
        choose_on_test=choose_on_test,
        metric=metric,
        memory=memory,
        note=note,
    )
    return finish(sweeping, observe=observe, callbacks=callbacks, keeper=keeper)


def prepare(
    experiment: Experiment,
    grid: Space,
    *,
    federation: Federation | None = None,
    points: int | None = None,
    sampler: str | None = None,
    halving: bool = False,
    choose_on_test: bool = False,
    metric: str | None = None,
    memory: int | None = None,
    note: Callable[[str], None] | None = None,
) -> Sweeping:
    """What :func:`sweep` does first: checks everything that is given, and reads the data."""
    started = time.perf_counter()
    if not isinstance(experiment, Experiment):
        raise SettingError("sweep takes an Experiment, such as pfedbred.Experiment(dataset='digits')")
    experiment = experiment.checked() if federation is None else experiment.on(federation)
    _check(experiment, grid)
    chosen = samplers.get(grid, points, sampler, experiment.seed)
    experiment, federation = _with_validation(experiment, federation, choose_on_test, note)
    first = {**(experiment.settings or {}), **{name: _first(values) for name, values in grid.items()}}
    experiment, backend = build_sweep(dataclasses.replace(experiment, settings=first), federation)
    _check_metrics(experiment, metric)
    if not len(backend.federation.test.y):
        raise SettingError("there are no test samples to compare the points by")
    compared_by = _metric(backend.plan.metrics, metric)
    return Sweeping(
        experiment,
        backend,
        tuple(grid),
        chosen,
        halving,
        choose_on_test,
        compared_by,
        memory or default_memory(),
        time.perf_counter() - started,
    )


def finish(
    sweeping: Sweeping,
    *,
    observe: Callable[[int, int], None] | None = None,
    callbacks: Sequence[Callback] = (),
    keeper: Keeper | None = None,
) -> Sweep:
    """What :func:`sweep` does then: runs all points."""
    if keeper:
        keeper.restore(sweeping)
    sweeping.run(keeper, callbacks, observe)
    finished = sweeping.result(sweeping.seconds + sweeping.built)
    if np.all(np.isnan(finished.scores("personal"))):
        raise SettingError("every point of the sweep diverged: try smaller steps")
    return finished


def _with_validation(
    experiment: Experiment, federation: Federation | None, on_test: bool, note: Callable[[str], None] | None
) -> tuple[Experiment, Federation | None]:
    """The experiment with validation samples, unless points are chosen on test samples or the data has its own."""
    if on_test or experiment.validation:
        return experiment, federation
    found = load_data(experiment) if federation is None else federation
    if not isinstance(found, Federation):
        raise SettingError("a sweep keeps all clients on the device at every point: use fewer clients, or store device")
    if found.validation is None:
        if note:
            note(f"points are chosen on {100 * _VALIDATION:.0f} % of each client's training samples; see --validation")
        experiment = dataclasses.replace(experiment, validation=_VALIDATION)
    return experiment, found


def _metric(known: Sequence[Metric], name: str | None) -> Metric:
    """The metric of that name, or else the first."""
    by_name = {each.name: each for each in known}
    if name is not None and name not in by_name:
        raise SettingError(f"points cannot be compared by {name!r}{nearest(name, by_name)}")
    return known[0] if name is None else by_name[name]


def _first(values: Any) -> float:
    return float(values.low if isinstance(values, Range) else values[0])


class Sweeping:
    """A sweep while it runs.

    Attributes:
      sampler: chooses the points, and notes what it was asked and told.
      tables: what was measured of each point.
      slots: for each place in the program, the number of its point; -1 if it is free.
      at: for each place, the round of its point.
      states: those of all places, seeds side by side.
      built: seconds that it took to prepare.
    """

    def __init__(
        self,
        experiment: Experiment,
        backend: ResidentBackend,
        names: tuple[str, ...],
        sampler: samplers.Sampler,
        halving: bool,
        on_test: bool,
        metric: Metric,
        memory: int,
        built: float,
    ) -> None:
        self.experiment, self.backend, self._names, self.built = experiment, backend, names, built
        self.sampler = samplers.Logged(sampler)
        self._seeds = experiment.seed_list
        self.rounds = [*range(experiment.eval_every, experiment.rounds, experiment.eval_every), experiment.rounds]
        self._metric, self._on_test, self._halves = metric, on_test, halving
        validated = backend.federation.validation is not None
        self.tables = Tables(sampler.total, len(names), len(self.rounds), len(self._seeds), validated)
        self._halving = Halving(self.rounds if halving else ())
        places = self._places(memory, sampler.total)
        self.slots, self.at = np.full(places, -1), np.zeros(places, int)
        self.states: State | None = None
        self._started, self.seconds_before = time.perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        """Time taken so far, resumed parts included."""
        return self.seconds_before + time.perf_counter() - self._started

    def _places(self, memory: int, total: int) -> int:
        """The number of points that run together: as many as fit, but fewer if some must follow others."""
        room = max(1, memory // max(1, self.backend.state_bytes() * len(self._seeds)))
        if self.sampler.learns:
            room = min(room, math.ceil(total / _BATCHES))
        elif self._halves:
            room = min(room, math.ceil(total / _GENERATIONS))
        groups = math.ceil(total / min(room, total))
        return math.ceil(total / groups)  # groups of nearly equal size

    def run(
        self,
        keeper: Keeper | None = None,
        callbacks: Sequence[Callback] = (),
        observe: Callable[[int, int], None] | None = None,
    ) -> None:
        """All points."""
        told = self._tell(callbacks, np.zeros_like(self.tables.ended))
        while self._fill():
            due = [self.rounds[np.searchsorted(self.rounds, at, side="right")] for at in self.at[self.slots >= 0]]
            step = min(np.array(due) - self.at[self.slots >= 0])
            assert self.states is not None
            self.states = self.backend.advance(self.states, int(step))
            self.at[self.slots >= 0] += step
            self._evaluate()
            told = self._tell(callbacks, told)
            if observe:
                observe(self._done(), self.experiment.rounds * self.sampler.total)
            if keeper:
                keeper.pause(self)

    def _tell(self, callbacks: Sequence[Callback], told: np.ndarray) -> np.ndarray:
        """Tells of the points that have ended; returns which have."""
        ended = self.tables.ended.copy()
        if callbacks and np.any(ended & ~told):
            result = self.result(self.seconds)
            for number in np.flatnonzero(ended & ~told).tolist():
                for each in callbacks:
                    each.on_point(result, number)
        return ended

    def _done(self) -> int:
        """Rounds of all points; one that has ended counts in full."""
        ended = int(np.sum(self.tables.ended)) * self.experiment.rounds
        return ended + int(np.sum(self.at[self.slots >= 0]))

    def _fill(self) -> bool:
        """Puts further points into free places; returns whether any place is taken."""
        free = np.flatnonzero(self.slots < 0)
        if self.sampler.learns and len(free) < len(self.slots) and not self._halves:
            free = free[:0]  # all end together, and the next batch learns from all of them
        asked = self.sampler.ask(len(free)) if len(free) else np.zeros((0, len(self._names)))
        if len(asked):
            taken = free[: len(asked)]
            self.slots[taken], self.at[taken] = self.tables.add(asked), 0
            self.states = self._with_new(taken)
        return bool(np.any(self.slots >= 0))

    def settings(self) -> dict[str, np.ndarray]:
        """The settings of all places, by seed; a free place has those of the first point."""
        values = self.tables.points[np.maximum(self.slots, 0)]
        return {name: np.repeat(values[:, column], len(self._seeds)) for column, name in enumerate(self._names)}

    def _with_new(self, places: np.ndarray) -> State:
        fresh = self.backend.init(self._seeds * len(self.slots), self.settings())
        if self.states is None:
            return fresh
        new = np.zeros(len(self.slots), bool)
        new[places] = True
        return self.backend.replaced(self.states, fresh, np.repeat(new, len(self._seeds)))

    def _evaluate(self) -> None:
        """Notes the scores of the points whose evaluation is due, and frees the places of those that end."""
        due = np.flatnonzero((self.slots >= 0) & np.isin(self.at, self.rounds))
        if not len(due):
            return
        assert self.states is not None
        lost = stalled(self.states.skipped_in_row.tolist(), self.experiment.rounds)
        evaluation = self.backend.evaluate(self.states)
        number = {int(slot): self.rounds.index(self.at[slot]) for slot in due}
        for model in MODELS:
            scores = evaluation.of(model)
            valid = np.isfinite(scores.train.loss) & ~lost
            for part in self.tables.parts:
                values = np.where(valid, scores.parts[part].values[self._metric.name], np.nan)
                by_slot = values.reshape(len(self.slots), len(self._seeds))
                for slot, place in number.items():
                    self.tables.note(part, model, self.slots[slot], place, by_slot[slot])
        self._end_points(number)

    def _end_points(self, number: dict[int, int]) -> None:
        last = len(self.rounds) - 1
        judged = {slot: place for slot, place in number.items() if place == last or self._halving.judges(place)}
        if not judged:
            return
        scores = self._scores()
        for slot, place in judged.items():
            self._halving.note(place, int(self.slots[slot]), scores[self.slots[slot]])
        for slot, place in judged.items():
            point, complete = int(self.slots[slot]), place == last
            if complete or self._halving.stops(place, point):
                self.tables.ended[point] = True
                self.sampler.tell(point, finite_or_none(scores[point]), complete)
                self.slots[slot] = -1

    def _scores(self, evaluations: int | None = None) -> np.ndarray:
        """The score of each point, higher is better: over the first few evaluations, or over all it has had."""
        result = self.result(0.0)
        if evaluations is not None:
            result = dataclasses.replace(result, evaluations=np.minimum(result.evaluations, evaluations))
        return result.scores("personal") * (1 if self._metric.higher_is_better else -1)

    def restore(self, events: Sequence[samplers.Event]) -> None:
        """Restores the sampler, and the record of stopped points, to the state of the tables."""
        asked = self.sampler.replay(events)
        if not np.array_equal(asked, self.tables.points[: self.tables.count]):
            raise SettingError("the sampler chooses different points than before: has its version changed?")
        for place in filter(self._halving.judges, range(len(self.rounds))):
            scores = self._scores(place + 1)
            for point in np.flatnonzero(self.tables.evaluations > place).tolist():
                self._halving.note(place, point, scores[point])

    def result(self, seconds: float) -> Sweep:
        """The result so far."""
        count = self.tables.count
        return Sweep(
            self.experiment,
            self._names,
            self.tables.points[:count],
            self.rounds,
            self.tables.values["test", "global"][:count],
            self.tables.values["test", "personal"][:count],
            self.backend.compile_seconds,
            seconds,
            {model: self.tables.values["validation", model][:count] for model in MODELS}
            if "validation" in self.tables.parts
            else None,
            self.tables.evaluations[:count],
            self._metric,
            "test" if self._on_test else "validation",
        )


def _check(experiment: Experiment, grid: Space) -> None:
    """Rejects what cannot be in a grid, and values that the setting does not allow."""
    if not grid:
        raise SettingError("a sweep needs a grid, such as --grid eta=0.01:0.5:8")
    if experiment.held_out_clients:
        raise SettingError("a sweep does not evaluate held-out clients: leave held_out_clients out")
    if experiment.executor == "loop":
        raise SettingError("a sweep is one compiled program; the executor loop has none")
    if isinstance(experiment.algorithm, Algorithm):
        raise SettingError("an Algorithm object has no settings to sweep: give its name or the function that builds it")
    known = settings_.declared(algorithms.factory(experiment.algorithm))
    for name, values in grid.items():
        if name not in known:
            raise SettingError(f"unknown setting {name!r}{nearest(name, known)}")
        annotation = known[name].annotation
        if not may_vary(annotation):
            numbers = [each for each, parameter in known.items() if may_vary(parameter.annotation)]
            raise SettingError(
                f"{name} decides how the program is built, and a sweep is one program; "
                f"a grid can have {', '.join(numbers)}"
            )
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            settings_.check(name, value, annotation)


def _check_metrics(experiment: Experiment, compared_by: str | None) -> None:
    """Rejects what a sweep would not record: of metrics, it records the one by which points are compared.

    The usual metrics of the task, which is known once there is data, are evaluated whatever is given.
    """
    usual = metrics.resolve(None, experiment.kind)
    others = {each.name for each in metrics.resolve(experiment.metrics, experiment.kind) if each not in usual}
    if others - {compared_by} or experiment.diagnostics:
        title = next((each.title for each in usual if each.name == compared_by), usual[0].title)
        raise SettingError(
            f"a sweep compares points by {title}: leave metrics and diagnostics out, and run the best point"
        )
