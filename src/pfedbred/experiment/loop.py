"""The training loop: rounds and evaluations, with callbacks around them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import jax
import numpy as np

from pfedbred.engine import devices
from pfedbred.engine.backend import Pending
from pfedbred.engine.history import Point
from pfedbred.engine.newcomers import join
from pfedbred.engine.screening import Rejections, diverged, total
from pfedbred.experiment.building import Built
from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.progress import Progress
from pfedbred.experiment.result import Run


def train(built: Built, callbacks: Sequence[Callback] = (), start: Progress | None = None) -> Run:
    """Runs the experiment's rounds, from the beginning or from where a checkpoint left it."""
    experiment, backend, newcomers = built
    clock = time.perf_counter() - (start.seconds if start else 0.0)
    compiled_before = backend.compile_seconds - (start.compile_seconds if start else 0.0)
    progress = start or Progress(experiment, backend, backend.init(experiment.seed_list))
    stopped: str | None = None  # interrupted, to be resumed
    finished: str | None = None  # complete before the last round
    gone: int | None = None  # diverged

    def tick() -> None:
        progress.seconds = time.perf_counter() - clock
        progress.compile_seconds = backend.compile_seconds - compiled_before

    def moment() -> _Moment:
        return _Moment(progress.round, backend.rejections(progress.state), backend.diagnostics(progress.state))

    def note(asked: Pending, when: _Moment) -> Pending | None:
        """Records the evaluation of that moment if its result is there; returns it if it is not."""
        nonlocal gone
        if asked.result is None:
            return asked
        after, now, diagnostics = when
        since = now.since(total([point.rejections for point in progress.points], experiment.seeds))
        point = Point(after, progress.seconds, asked.result, since, diagnostics)
        progress.points.append(point)
        for each in callbacks:
            each.on_evaluation(progress, point)
        if np.all(diverged(asked.result, now.skipped_in_row, experiment.rounds)):
            gone = after
        return None

    with ExitStack() as stack:
        for each in callbacks:
            stack.enter_context(each.running(progress))
        asked = note(backend.start_evaluation(progress.state), moment()) if progress.evaluation_due else None
        while progress.round < experiment.rounds and stopped is None and finished is None and gone is None:
            until_evaluation = experiment.eval_every - progress.round % experiment.eval_every
            rounds = min(until_evaluation, experiment.rounds - progress.round)
            rounds = devices.agreed(min([rounds, *(each.most_rounds(progress) for each in callbacks)]))
            compiled, started = backend.compile_seconds, time.perf_counter()
            before = moment() if asked else None
            progress.state = jax.block_until_ready(backend.advance(progress.state, rounds))
            training = time.perf_counter() - started - (backend.compile_seconds - compiled)
            progress.pace = training / rounds
            progress.round_seconds.append(progress.pace)
            progress.round += rounds
            tick()
            if asked and before:
                asked = note(asked, before)
            if progress.evaluation_due and gone is None:
                asked = note(backend.start_evaluation(progress.state), moment())
            if gone is None:
                finished = _agreed([each.finish_reason(progress) for each in callbacks])
                stopped = _agreed([each.stop_reason(progress) for each in callbacks])
                for each in callbacks:
                    each.on_pause(progress, stopped)
        if progress.round == experiment.rounds or finished:
            stopped = None
        if asked is not None and stopped is None and gone is None:
            asked.result = backend.evaluate(progress.state)
            tick()
            note(asked, moment())
        joined = None
        if newcomers and not stopped:
            joined = join(backend, progress.state, newcomers, experiment.joining_rounds)
        tick()
        run = Run(
            experiment,
            backend,
            progress.state,
            progress.points,
            progress.round,
            progress.compile_seconds,
            progress.round_seconds,
            progress.seconds,
            joined,
            stopped,
            finished if progress.round < experiment.rounds else None,
            gone,
        )
        for each in callbacks:
            each.on_end(run)
    return run


class _Moment(NamedTuple):
    """What an evaluation describes: its result may come a round later."""

    round: int
    rejections: Rejections
    diagnostics: dict[str, np.ndarray]


def _agreed(reasons: Sequence[str | None]) -> str | None:
    """The first reason given, if the first process has one: what depends on a clock or a person is decided by one."""
    reason = next((each for each in reasons if each), None)
    if not devices.agreed(bool(reason)):
        return None
    return reason or "decided by the first process"
