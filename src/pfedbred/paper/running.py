"""Running the cells of a table: one training serves a row and the same row with fine-tuning.

Fine-tuning changes P in evaluations but not training, so both are evaluated on the same run.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pfedbred.data.federation import Federation
from pfedbred.engine.history import Point
from pfedbred.errors import SettingError
from pfedbred.experiment.building import Built, build
from pfedbred.experiment.callbacks import Callback, Interruption, Stopped, trackers
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.progress import Progress
from pfedbred.experiment.result import Run
from pfedbred.experiment.resume import check_unchanged, open_folder
from pfedbred.experiment.run import FolderOptions, run_into
from pfedbred.io.folders import ensure_folder
from pfedbred.paper.cells import CELL, best_of, measured
from pfedbred.paper.columns import ALL
from pfedbred.paper.markdown import mean_and_std_text
from pfedbred.paper.records import Request, fingerprint, load_or_measure
from pfedbred.paper.rows import Row, SplitSeed, Table
from pfedbred.paper.splits import federation_of
from pfedbred.runs import layout, locks
from pfedbred.runs.metrics_file import MetricsFile, read_points, size_of


class SharedTraining(NamedTuple):
    """The cells of one training: a row's, and those of rows that differ only in the evaluation of P."""

    column: str
    split: SplitSeed
    row: str
    also: tuple[str, ...] = ()


def run_training(table: Table, training: SharedTraining, request: Request) -> list[SettingError]:
    """Runs the missing cells of a training; returns why some cannot be run."""
    column, split, first, also = training
    problems = []
    for row in (first, *also):
        try:
            run_cell(table, column, row, request, split, also if row == first else ())
        except SettingError as problem:  # the other cells may still run
            problems.append(problem)
            request.say(f"{_CellPlace(table, column, row, split).name}: cannot be run: {problem}")
    return problems


@dataclass(frozen=True)
class _CellPlace:
    """A cell's place in its table."""

    table: Table
    column: str
    row_name: str
    split: SplitSeed

    @property
    def name(self) -> str:
        return f"{self.table.name} {self.column} {self.row_name}" + (
            "" if self.split is None else f", split {self.split}"
        )

    @property
    def row(self) -> Row:
        return self.table.rows[self.row_name]

    def file(self, request: Request) -> Path:
        return self.table.record_file(request.out, self.column, self.row_name, self.split)

    def experiment(self, request: Request) -> Experiment:
        return self.row.experiment(ALL[self.column], seeds=request.seeds, rounds=request.rounds)

    def wanted(self, request: Request) -> dict[str, Any]:
        """The settings that decide the cell's figures."""
        split = {} if self.split is None else {"split_seed": self.split}
        return fingerprint(self.experiment(request).checked()) | split

    def build(self, request: Request, federation: Federation) -> Built[Any]:
        experiment = self.experiment(request)
        if "aggregated" not in self.row.options:  # else the row is about that number, which must stay
            experiment = ALL[self.column].fitted(experiment, federation)
        return build(experiment, federation)

    def record(self, finished: Run[Any], federation: Federation, seconds: float, **more: Any) -> dict[str, Any]:
        return {
            "column": self.column,
            "row": self.table.record_file(Path(), self.column, self.row_name, self.split).stem,
            **more,
            "data": federation.facts,
            "aggregated": finished.experiment.aggregated,
            "seconds": round(seconds, 1),
            **measured(finished),
        }


def run_cell(
    table: Table, column: str, row: str, request: Request, split: SplitSeed = None, also: Sequence[str] = ()
) -> dict[str, Any]:
    """The record of a cell: read if it was run with these settings, else run and written.

    If it is run, so are missing records of the rows ``also``, which differ only in the evaluation of P.
    """
    place = _CellPlace(table, column, row, split)
    file, name = place.file(request), place.name
    work = file.with_suffix(".run")
    held = ExitStack()  # holds the folder's lock until the record is written

    def measure() -> dict[str, Any]:
        request.stop_if_wanted(name)
        federation = federation_of(request.federations, ALL[column], split)
        built = place.build(request, federation)
        held.enter_context(open_folder(work, resume=True))
        others = [
            each
            for each in (_CellPlace(table, column, each, split) for each in also)
            if not each.file(request).exists()
        ]
        evaluated = [_AlsoEvaluated(each.build(request, federation), work / each.row_name) for each in others]
        finished = _run(built, work, name, request, evaluated)
        for other, run in zip(others, evaluated, strict=True):
            if len(run.points) == len(finished.points):  # else some from before the run was resumed are missing
                more = other.record(run.of(finished), federation, run.seconds, trained_with=row)
                load_or_measure(other.file(request), other.wanted(request), partial(dict, more), CELL)
        return place.record(finished, federation, finished.total_seconds - sum(each.seconds for each in evaluated))

    with held:
        record, new = load_or_measure(file, place.wanted(request), measure, CELL)
        if work.is_dir():  # its checkpoints are no longer needed
            with suppress(locks.InUse), nullcontext() if new else locks.locked(work):
                shutil.rmtree(work, ignore_errors=True)
    if request.federations.given and record.get("data", {}) not in (
        {},
        federation_of(request.federations, ALL[column], split).facts,
    ):
        raise SettingError(
            f"{file} was measured on different data, {record['data']}: choose another --out, or remove it"
        )
    trained_with = f"trained with {record['trained_with']}" if "trained_with" in record else "already done"
    time_ = f"{record['seconds']:.0f} s" if new else trained_with
    figures = "  ".join(f"{model} {mean_and_std_text(*best_of(record[model]))}" for model in "GP")
    request.say(f"{name}: {figures}, {time_}")
    return record


class _AlsoEvaluated(Callback):
    """Evaluates a run as another method that trains identically would.

    Attributes:
      points: its evaluations.
      seconds: the time they took in this process.
    """

    def __init__(self, built: Built[Any], folder: Path) -> None:
        """Evaluations are kept in ``folder``, in case the run is resumed."""
        self.points: list[Point] = []
        self.seconds = 0.0
        self._built, self._folder = built, folder
        self._file: MetricsFile | None = None

    @contextmanager
    def running(self, progress: Progress[Any]) -> Iterator[None]:
        """Reads evaluations from before the run was resumed; some may be missing or damaged."""
        ensure_folder(self._folder)
        if size_of(self._folder):
            with suppress(SettingError):
                self.points = [point for point in read_points(self._folder) if point.round <= progress.round]
        with closing(MetricsFile(self._folder)) as self._file:
            for point in self.points:
                self._file.write(point)
            yield

    def on_evaluation(self, progress: Progress[Any], point: Point) -> None:
        """Evaluates the run's state with the other method's backend."""
        assert self._file is not None
        started = time.perf_counter()
        self.points.append(point._replace(scores=self._built.backend.evaluate(progress.state)))
        self._file.write(self.points[-1])
        self.seconds += time.perf_counter() - started

    def of(self, finished: Run[Any]) -> Run[Any]:
        """The run as if by that method."""
        experiment, backend, _ = self._built
        return dataclasses.replace(finished, experiment=experiment, backend=backend, points=self.points)


class _Advance(Callback):
    """Moves the table's progress bar."""

    def __init__(self, advance: Callable[[int, int], None]) -> None:
        self._advance = advance

    def on_evaluation(self, progress: Progress[Any], point: Point) -> None:
        self._advance(point.round, progress.experiment.rounds)


def _run(built: Built[Any], folder: Path, name: str, request: Request, callbacks: Sequence[Callback]) -> Run[Any]:
    """Runs an experiment, or resumes it from its folder."""
    rounds = built.experiment.rounds
    if layout.started(folder):
        try:
            check_unchanged(folder, built.experiment.plain())
        except SettingError as problem:
            raise SettingError(f"{problem}: choose another --out, or remove that folder") from None
    interruption = request.interruption or Interruption()
    listening = interruption.listening() if request.interruption else nullcontext()
    with listening, request.progress(name) as advance:
        how = FolderOptions(resume=True, outcome=False, warn=request.say)
        recording = trackers.named(request.track, trackers.Group(request.out.name, request.out), name)
        done = run_into(folder, built, [_Advance(advance), *callbacks, *recording, interruption], how)
    if done.stopped:
        raise Stopped(done.stopped, f"{name}: stopped ({done.stopped}) after round {done.round} of {rounds}")
    return done
