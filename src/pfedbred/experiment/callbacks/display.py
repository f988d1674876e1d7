"""Shows the progress of runs: bars on a terminal, about ten lines a run in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pfedbred.engine.history import Point
from pfedbred.engine.metrics import Metric
from pfedbred.experiment import progress as progress_
from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.configuration import Experiment
from pfedbred.report.console import console


class ProgressLines(Callback):
    """About ten lines for a run, and one at least every ten seconds."""

    def __init__(self, experiment: Experiment) -> None:
        self._name, self._rounds = experiment.algorithm_name, experiment.rounds
        self._every = max(1, experiment.rounds // 10)
        self._shown, self._at = 0, time.monotonic()

    def on_evaluation(self, progress: progress_.Progress[Any], point: Point) -> None:
        """Prints a line if one is due."""
        due = point.round // self._every > self._shown // self._every or time.monotonic() - self._at > 10
        if due or point.round == self._rounds:
            self._shown, self._at = point.round, time.monotonic()
            scores = _scores(point, progress.backend.plan.metrics[0], "G {}  P {}")
            print(f"{self._name}: round {point.round}/{self._rounds}  {scores}", flush=True)


class ProgressBar(Callback):
    """A bar on a terminal, which moves between evaluations too."""

    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars, self._task = bars, task

    @contextmanager
    def running(self, progress: progress_.Progress[Any]) -> Iterator[None]:
        """The first round is compiled before it is run."""
        self._bars.update(self._task, completed=progress.round, status="[dim]compiling")
        yield

    def on_evaluation(self, progress: progress_.Progress[Any], point: Point) -> None:
        """Moves the bar, and shows the scores."""
        self._bars.start_task(self._task)
        status = _scores(point, progress.backend.plan.metrics[0], "[cyan]G[/] {}  [magenta]P[/] {}")
        self._bars.update(self._task, completed=point.round, status=status)

    def on_pause(self, progress: progress_.Progress[Any], stopping: str | None) -> None:
        """Moves the bar."""
        self._bars.start_task(self._task)
        self._bars.update(self._task, completed=progress.round)
        if not progress.points:
            self._bars.update(self._task, status="")


@contextmanager
def showing_progress(experiments: Sequence[Experiment]) -> Iterator[list[Callback]]:
    """A callback for each experiment that shows its progress."""
    if not console.is_terminal:
        yield [ProgressLines(experiment) for experiment in experiments]
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(*columns, console=console) as bars:
        width = max(len(experiment.algorithm_name) for experiment in experiments)
        yield [
            ProgressBar(
                bars,
                bars.add_task(each.algorithm_name.ljust(width), total=each.rounds, status="[dim]waiting", start=False),
            )
            for each in experiments
        ]


def _scores(point: Point, metric: Metric, form: str) -> str:
    """The means over seeds of the metric that tables show, of G and P."""
    means = (float(np.mean(model.test.values[metric.name])) for model in (point.scores.global_, point.scores.personal))
    if metric.percent:
        return form.format(*(f"{'-' if np.isnan(mean) else f'{100 * mean:.2f}':>5} %" for mean in means))
    return f"{metric.title} " + form.format(*("-" if np.isnan(mean) else f"{mean:.4g}" for mean in means))
