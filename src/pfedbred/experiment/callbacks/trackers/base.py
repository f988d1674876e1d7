"""What a tracker is: a callback that records a run with another program, and never ends the run."""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import jax

from pfedbred.engine.history import Point
from pfedbred.errors import SettingError, printable
from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.callbacks.trackers.content import (
    Flat,
    Measured,
    flattened,
    measured,
    recorded_point,
    run_figures,
    shown,
)
from pfedbred.experiment.progress import Progress
from pfedbred.experiment.result import Run
from pfedbred.experiment.sweep_result import Sweep
from pfedbred.io.atomic import write_json
from pfedbred.io.folders import ensure_folder
from pfedbred.io.shapes import COUNT, expect
from pfedbred.io.strict import read_json
from pfedbred.runs import layout

Ending: TypeAlias = Literal["finished", "stopped", "failed"]

_FILES = (layout.SUMMARY, layout.CONFIG, layout.METRICS, layout.CURVES)
_LONGEST = 300


class Group(NamedTuple):
    """Runs that are recorded side by side: those of a comparison, of a table, or the points of a sweep.

    Attributes:
      name: of all of them.
      folder: theirs; trackers write into ``tracking`` in it.
    """

    name: str
    folder: Path


class Start(NamedTuple):
    """What a tracker is opened with.

    Attributes:
      folder: to write into; None if the tracker does not need one.
      name: of the run.
      group: the name of the comparison, table or sweep that it is in, whose runs share the folder; None if it is alone.
      settings: the resolved experiment.
      seeds: of the run.
      figures: the names of the values that tables show.
      id: what ``open`` returned when the run was started, if it is resumed; else None.
      round: the last one that is recorded; 0 before the first.
    """

    folder: Path | None
    name: str
    group: str | None
    settings: Flat
    seeds: Sequence[int]
    figures: Sequence[str]
    id: str | None = None
    round: int = 0


class Tracker(Callback, ABC):
    """Records a run with another program: its settings, every evaluation, and in the end its figures and files.

    A subclass says how, in four methods. If one of them raises an exception, a warning says so and the run continues
    without the tracker. A file in the run folder notes how far the recording is, so that a resumed run continues it
    and no round is recorded twice. Each point of a sweep is recorded as a run of its own when it has ended.

    Attributes:
      group: the name of what the run is part of, if it is part of something.
      title: the name of the run; None for the name of its folder.
    """

    name: ClassVar[str]

    def __init__(self, folder: str | Path | None = None) -> None:
        """``folder`` is where to write; by default ``tracking/NAME`` in the run folder."""
        self.group: Group | None = None
        self.title: str | None = None
        self._given = None if folder is None else Path(folder)
        self._note: Path | None = None
        self._off = self._opened = False
        self._id, self._recorded = "", 0
        self._ending: Ending = "failed"

    @abstractmethod
    def open(self, start: Start) -> str:
        """Starts to record, or continues with ``start.id``; returns what identifies the recording."""

    @abstractmethod
    def record(self, evaluation: Measured) -> None:
        """Records an evaluation. Rounds come in order."""

    @abstractmethod
    def finish(self, figures: Mapping[str, float], files: Sequence[Path]) -> None:
        """Records the figures and the files of a run that has ended; ``curves.png`` is its picture."""

    @abstractmethod
    def close(self, ending: Ending) -> None:
        """Ends the recording; a run that was stopped may be resumed."""

    @property
    def needs_folder(self) -> bool:
        """Whether it writes into a folder."""
        return True

    @contextmanager
    def running(self, progress: Progress[Any]) -> Iterator[None]:
        """Opens the tracker, in one of the processes that share a run."""
        self._check_folder(progress.folder)
        self._off, self._opened, self._ending = jax.process_index() > 0, False, "failed"
        if not self._off:
            self._attempt(self._open, progress)
        try:
            yield
        finally:
            if self._opened:
                self._attempt(self.close, self._ending)

    def on_evaluation(self, progress: Progress[Any], point: Point) -> None:
        """Records it, unless it was recorded before the run was interrupted."""
        if not self._off:
            self._attempt(self._record, progress, point)

    def on_end(self, run: Run[Any]) -> None:
        """Records the figures and the files, unless the run is to be resumed."""
        self._ending = "stopped" if run.stopped else "finished" if run.diverged is None else "failed"
        if not (self._off or run.stopped):
            files = [run.folder / name for name in _FILES] if run.folder else []
            self._attempt(self.finish, run_figures(run), [each for each in files if each.exists()])

    def on_point(self, sweep: Sweep, number: int) -> None:
        """Records a point of a sweep as a run, unless that was done before the sweep was interrupted."""
        self._check_folder(None)
        self._off = jax.process_index() > 0
        if not self._off:
            self._attempt(self._record_point, sweep, number)

    def _record_point(self, sweep: Sweep, number: int) -> None:
        note = self.group and self.group.folder / layout.TRACKING / f"{self.name}.json"
        done: dict[str, Any] = {"points": []}
        if note and note.exists():
            done = read_json(note)
            expect(done, {"points": [COUNT]}, note)
        if number in done["points"]:
            return
        ended = recorded_point(sweep, number)
        primary, validated = sweep.metric.name, sweep.validation is not None
        seeds = sweep.experiment.seed_list
        self.open(Start(self._folder(None), ended.name, self._group, ended.settings, seeds, shown(primary, validated)))
        ending: Ending = "failed"
        try:
            for each in ended.evaluations:
                self.record(each)
            self.finish(ended.figures, [])
            ending = "finished" if ended.figures else "failed"
        finally:
            self.close(ending)
        if note:
            ensure_folder(note.parent)
            write_json(note, {"points": [*done["points"], number]})

    def _check_folder(self, run: Path | None) -> None:
        if self.needs_folder and not (self._given or self.group or run):
            raise SettingError(f"{self.name} needs a folder to write into: give it one, or run with out=...")

    @property
    def _group(self) -> str | None:
        return self.group.name if self.group else None

    def _folder(self, run: Path | None) -> Path | None:
        """Where to write: as given, or else in the folder of the group or of the run."""
        if not self.needs_folder:
            return None
        above = self.group.folder if self.group else run
        folder = self._given or (above and above / layout.TRACKING / self.name)
        return folder and ensure_folder(folder.absolute())

    def _open(self, progress: Progress[Any]) -> None:
        experiment, inside = progress.experiment, progress.folder and progress.folder / layout.TRACKING
        kept: dict[str, Any] = {"id": None, "round": 0}
        self._note = inside and inside / f"{self.name}.json"
        if self._note and self._note.exists():
            kept = read_json(self._note)
            expect(kept, {"id": str, "round": COUNT}, self._note)
        name = progress.folder.name if progress.folder else experiment.algorithm_name
        start = Start(
            folder=self._folder(progress.folder),
            name=self.title or name,
            group=self._group,
            settings=flattened(experiment.plain()),
            seeds=experiment.seed_list,
            figures=shown(progress.backend.plan.metrics[0].name, experiment.validation is not None),
            id=kept["id"],
            round=kept["round"],
        )
        self._recorded = kept["round"]
        self._id = self.open(start)
        self._opened = True
        self._keep_note()
        for point in progress.points:  # a resumed run may not have been tracked before, or not to its end
            self._record(progress, point)

    def _record(self, progress: Progress[Any], point: Point) -> None:
        if point.round > self._recorded:
            primary = progress.backend.plan.metrics[0].name
            self.record(measured(point, progress.experiment.seed_list, primary))
            self._recorded = point.round
            self._keep_note()

    def _keep_note(self) -> None:
        if self._note is not None:
            ensure_folder(self._note.parent)
            write_json(self._note, {"id": self._id, "round": self._recorded})

    def _attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        """Runs an action; the first failure is reported, and only closing follows it."""
        try:
            action(*arguments)
        except Exception as problem:  # whatever that library raises, it must not cost the run
            if not self._off:
                _warn(f"{self.name} stopped recording this run: {type(problem).__name__}: {problem}")
            self._off = True


def _warn(message: str) -> None:
    print(f"pfedbred: warning: {printable(' '.join(message.split()), _LONGEST)}", file=sys.stderr)


def imported(name: str, *modules: str) -> list[Any]:
    """The modules of the library that the tracker of that name writes with."""
    try:
        return [importlib.import_module(each) for each in modules]
    except ImportError as missing:
        packages = f"tracking with {name} needs {missing.name or modules[0]}"
        raise SettingError(f"{packages}: pip install 'pfedbred[{name}]'") from None
