"""A sweep while it runs: its points side by side in one compiled program.

The settings that differ are numbers in the program, not part of it; every point is a run beside the others, as seeds
are. As many points as fit run together. A point that is finished, or stopped early, makes room for the next one: the
places in the program are independent of each other, each at its own round.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from pfedbred.engine.metrics import Metric
from pfedbred.engine.resident import ResidentBackend, ResidentState
from pfedbred.engine.screening import stalled
from pfedbred.errors import SettingError
from pfedbred.experiment import samplers
from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.callbacks.stopping import Stopped
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.halving import Halving
from pfedbred.experiment.sweep_plan import SweepPlan
from pfedbred.experiment.sweep_result import MODELS, Sweep, Tables
from pfedbred.io.strict import finite_or_none

_BATCHES = 5  # of points from a sampler that learns
_GENERATIONS = 3  # of points in each place, if some stop early


class Sweeping:
    """A sweep while it runs.

    Attributes:
      plan: which points are tried.
      rounds: of the evaluations of every point.
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
        plan: SweepPlan,
        sampler: samplers.Sampler,
        metric: Metric,
        memory: int,
        built: float,
    ) -> None:
        self.experiment, self.backend, self.plan, self.built = experiment, backend, plan, built
        self.sampler = samplers.Logged(sampler)
        self._seeds = experiment.seed_list
        self.rounds = [*range(experiment.eval_every, experiment.rounds, experiment.eval_every), experiment.rounds]
        self._metric, self._names = metric, tuple(plan.grid)
        validated = backend.federation.validation is not None
        self.tables = Tables(sampler.total, len(self._names), len(self.rounds), len(self._seeds), validated)
        self._halving = Halving(self.rounds if plan.halving else ())
        places = self._places(memory, sampler.total)
        self.slots, self.at = np.full(places, -1), np.zeros(places, int)
        self.states: ResidentState | None = None
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
        elif self.plan.halving:
            room = min(room, math.ceil(total / _GENERATIONS))
        groups = math.ceil(total / min(room, total))
        return math.ceil(total / groups)  # groups of nearly equal size

    def run(self, callbacks: Sequence[Callback] = ()) -> Sweep:
        """All points, from the beginning or from where a callback has restored them."""
        with ExitStack() as stack:
            for each in callbacks:
                stack.enter_context(each.running_sweep(self))
            told = self._tell(callbacks, np.zeros_like(self.tables.ended))
            while self._fill():
                assert self.states is not None
                self.backend.compile(self.states, models=False)  # at first: later groups have the same programs
                self._train_to_next_evaluation()
                self._evaluate()
                told = self._tell(callbacks, told)
                self._pause(callbacks)
            finished = self.result(self.seconds + self.built)
            if np.all(np.isnan(finished.scores("personal"))):
                raise SettingError("every point of the sweep diverged: try smaller steps")
            for each in callbacks:
                each.on_sweep_end(finished)
        return finished

    def _train_to_next_evaluation(self) -> None:
        running = self.slots >= 0
        due = [self.rounds[np.searchsorted(self.rounds, at, side="right")] for at in self.at[running]]
        step = min(np.array(due) - self.at[running])
        assert self.states is not None
        self.states = self.backend.advance(self.states, int(step))
        self.at[running] += step

    def _pause(self, callbacks: Sequence[Callback]) -> None:
        """Asks the callbacks whether to stop, and lets them do their work."""
        ended = int(np.sum(self.tables.ended))
        reasons = [each.sweep_stop_reason(self) for each in callbacks]
        stopping = None if ended == self.sampler.total else next(filter(None, reasons), None)
        for each in callbacks:
            each.on_sweep_pause(self, stopping)
        if stopping:
            raise Stopped(stopping, f"stopped ({stopping}) with {ended} of {self.sampler.total} points done")

    def _tell(self, callbacks: Sequence[Callback], told: np.ndarray) -> np.ndarray:
        """Tells of the points that have ended; returns which have."""
        ended = self.tables.ended.copy()
        if callbacks and np.any(ended & ~told):
            result = self.result(self.seconds)
            for number in np.flatnonzero(ended & ~told).tolist():
                for each in callbacks:
                    each.on_point(result, number)
        return ended

    @property
    def done(self) -> int:
        """Rounds of all points so far; a point that has ended counts in full."""
        ended = int(np.sum(self.tables.ended)) * self.experiment.rounds
        return ended + int(np.sum(self.at[self.slots >= 0]))

    @property
    def total(self) -> int:
        """Rounds of all points."""
        return self.experiment.rounds * self.sampler.total

    def _fill(self) -> bool:
        """Puts further points into free places; returns whether any place is taken."""
        free = np.flatnonzero(self.slots < 0)
        if self.sampler.learns and len(free) < len(self.slots) and not self.plan.halving:
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

    def _with_new(self, places: np.ndarray) -> ResidentState:
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
            "test" if self.plan.choose_on_test else "validation",
        )
