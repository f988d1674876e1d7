"""The training loop: rounds and evaluations, with callbacks around them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import jax
import numpy as np

from pfedbred.data.federation import Federation
from pfedbred.engine import devices
from pfedbred.engine.backend import Pending
from pfedbred.engine.history import Point
from pfedbred.engine.newcomers import join
from pfedbred.engine.scores import Evaluation
from pfedbred.engine.screening import Rejections, diverged, total
from pfedbred.experiment.building import Built, make_algorithm, scheduled_values
from pfedbred.experiment.calibrating import calibrate_models
from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.callbacks.choosing import ChosenModels, keeps_models
from pfedbred.experiment.ensembling import evaluate_ensembles, final_models
from pfedbred.experiment.progress import Progress
from pfedbred.experiment.result import Run

S = TypeVar("S")


def train(
    built: Built[S],
    callbacks: Sequence[Callback] = (),
    start: Progress[S] | None = None,
    folder: Path | None = None,
    keep_models: bool | None = None,
) -> Run[S]:
    """Runs the experiment's rounds, from the beginning or from where a checkpoint left it.

    ``folder`` is the run folder, if the callbacks write into one. ``keep_models`` is whether to keep its models; by
    default those of the rounds chosen on validation samples, if they are small.
    """
    experiment = built.experiment
    if experiment.coverage is not None or experiment.posterior == "ensemble":
        keep_models = True  # to calibrate or to mix them, whether they are written or not
    elif experiment.validation:
        keep_models = keeps_models(keep_models, experiment, built.backend)
    return _Loop(built, [ChosenModels(keep_models), *callbacks], start, folder, bool(keep_models)).run()


class _Moment(NamedTuple):
    """What an evaluation describes: its result may come a round later."""

    round: int
    rejections: Rejections
    diagnostics: dict[str, np.ndarray]
    described: dict[str, np.ndarray]


class _Loop(Generic[S]):
    """One run of the loop."""

    def __init__(
        self,
        built: Built[S],
        callbacks: Sequence[Callback],
        start: Progress[S] | None,
        folder: Path | None,
        needs_models: bool,
    ) -> None:
        self._experiment, self._backend, self._newcomers = built
        self._callbacks, self._folder, self._needs_models = callbacks, folder, needs_models
        self._clock = time.perf_counter() - (start.seconds if start else 0.0)
        self._compiled_before = self._backend.compile_seconds - (start.compile_seconds if start else 0.0)
        self._progress = start or Progress(
            self._experiment, self._backend, self._backend.init(self._experiment.seed_list)
        )
        self._progress.folder = folder
        self._rejections = total([point.rejections for point in self._progress.points], self._experiment.seeds)
        self._asked: tuple[Pending, _Moment] | None = None  # an evaluation whose result is not available yet
        self._stopped: str | None = None  # why the run is interrupted, to be resumed
        self._finished: str | None = None  # why it is complete before the last round
        self._diverged: int | None = None  # the round at which that was seen

    def run(self) -> Run[S]:
        """All rounds."""
        progress, rounds = self._progress, self._experiment.rounds
        with ExitStack() as stack:
            for each in self._callbacks:
                stack.enter_context(each.running(progress))
            self._evaluate_if_due()
            if progress.round:  # a run that was complete when it was interrupted
                self._finished = _agreed([each.finish_reason(progress) for each in self._callbacks])
            if progress.round < rounds and not self._ends:
                self._backend.compile(progress.state, self._needs_models)
                self._tick()
            while progress.round < rounds and not self._ends:
                self._train_some_rounds()
                if self._diverged is None:
                    self._evaluate_if_due()
                if self._diverged is None:
                    self._pause()
            if progress.round == rounds or self._finished:
                self._stopped = None
            if not self._stopped and self._diverged is None:
                self._complete_evaluation()
            run = self._result()
            for each in self._callbacks:
                each.on_end(run)
        return run

    @property
    def _ends(self) -> bool:
        return self._stopped is not None or self._finished is not None or self._diverged is not None

    def _train_some_rounds(self) -> None:
        """Up to the next evaluation, or for as long as the callbacks allow."""
        experiment, backend, progress = self._experiment, self._backend, self._progress
        until_evaluation = experiment.eval_every - progress.round % experiment.eval_every
        limits = (each.most_rounds(progress) for each in self._callbacks)
        rounds = devices.agreed(max(1, min(until_evaluation, experiment.rounds - progress.round, *limits)))
        compiled, started = backend.compile_seconds, time.perf_counter()
        progress.state = jax.block_until_ready(backend.advance(progress.state, rounds))
        training = time.perf_counter() - started - (backend.compile_seconds - compiled)
        progress.pace = training / rounds
        progress.round_seconds.append(progress.pace)
        progress.round += rounds
        self._tick()
        self._note_result()

    def _pause(self) -> None:
        """Asks the callbacks whether to stop, and lets them do their work."""
        progress = self._progress
        self._finished = _agreed([each.finish_reason(progress) for each in self._callbacks])
        self._stopped = _agreed([each.stop_reason(progress) for each in self._callbacks])
        for each in self._callbacks:
            each.on_pause(progress, self._stopped)

    def _evaluate_if_due(self) -> None:
        if self._progress.evaluation_due:
            self._asked = self._backend.start_evaluation(self._progress.state), self._moment()
            self._note_result()

    def _complete_evaluation(self) -> None:
        """Evaluates the last round now, if its result would only arrive with another round or none was due."""
        progress = self._progress
        if not (progress.points and progress.points[-1].round == progress.round):
            self._asked = Pending(self._backend.evaluate(progress.state)), self._moment()
            self._tick()
            self._note_result()

    def _note_result(self) -> None:
        """Records an evaluation once its result is available."""
        if self._asked is None or self._asked[0].result is None:
            return
        progress, result, moment = self._progress, self._asked[0].result, self._asked[1]
        self._asked = None
        since = moment.rejections.since(self._rejections)
        self._rejections = moment.rejections
        point = Point(moment.round, progress.seconds, result, since, moment.diagnostics, moment.described)
        progress.points.append(point)
        for each in self._callbacks:
            each.on_evaluation(progress, point)
        if np.all(diverged(result, moment.rejections.skipped_in_row, self._experiment.rounds)):
            self._diverged = moment.round

    def _moment(self) -> _Moment:
        backend, state = self._backend, self._progress.state
        found = backend.rejections(state), backend.diagnostics(state), backend.described(state)
        return _Moment(self._progress.round, *found)

    def _tick(self) -> None:
        self._progress.seconds = time.perf_counter() - self._clock
        self._progress.compile_seconds = self._backend.compile_seconds - self._compiled_before

    def _joined(self, newcomers: Federation) -> list[Evaluation]:
        """Evaluations of the newcomers, who train with the settings that the next round would have had."""
        backend, progress, experiment = self._backend, self._progress, self._experiment
        values = scheduled_values(experiment, progress.round)
        algorithm = make_algorithm(experiment, backend.task, newcomers, values) if values else None
        return join(backend, progress.state, newcomers, experiment.joining_rounds, algorithm)

    def _result(self) -> Run[S]:
        progress, joined = self._progress, None
        if self._newcomers and not self._stopped:
            joined = self._joined(self._newcomers)
        coverage, calibration, ensemble = self._experiment.coverage, None, None
        together = self._experiment.posterior == "ensemble"
        if (coverage is not None or together) and not self._stopped and self._diverged is None:
            models = final_models(self._backend, progress.state, progress.chosen)
            ensemble = evaluate_ensembles(self._backend, models) if together else None
            if coverage is not None:
                calibration = calibrate_models(self._backend, models, coverage, together)
        self._tick()
        return Run(
            self._experiment,
            self._backend,
            progress.state,
            progress.points,
            progress.round,
            progress.compile_seconds,
            progress.round_seconds,
            progress.seconds,
            joined,
            self._stopped,
            self._finished if progress.round < self._experiment.rounds else None,
            self._diverged,
            self._folder,
            progress.chosen,
            calibration,
            ensemble,
        )


def _agreed(reasons: Sequence[str | None]) -> str | None:
    """The first reason that a callback of any process has."""
    return devices.agreed_text(next(filter(None, reasons), None))
