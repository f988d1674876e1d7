"""What a tracker is: a callback that records a run with another program, and never ends the run."""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import jax

from pfedbred.engine.history import Point
from pfedbred.errors import SettingError, printable
from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.callbacks.trackers.content import Flat, Measured, figures, flattened, measured
from pfedbred.experiment.progress import Progress
from pfedbred.experiment.result import Run
from pfedbred.io.atomic import write_json
from pfedbred.io.folders import ensure_folder
from pfedbred.io.shapes import COUNT, expect
from pfedbred.io.strict import read_json
from pfedbred.runs import layout

Ending: TypeAlias = Literal["finished", "stopped", "failed"]

_FILES = (layout.SUMMARY, layout.CONFIG, layout.METRICS, layout.CURVES)
_LONGEST = 300


class Start(NamedTuple):
    """What a tracker is opened with.

    Attributes:
      folder: to write into; None if the tracker does not need one.
      name: of the run.
      settings: the resolved experiment.
      seeds: of the run.
      figures: the names of the values that tables show.
      id: what ``open`` returned when the run was started, if it is resumed; else None.
      round: the last one that is recorded; 0 before the first.
    """

    folder: Path | None
    name: str
    settings: Flat
    seeds: Sequence[int]
    figures: Sequence[str]
    id: str | None
    round: int


class Tracker(Callback, ABC):
    """Records a run with another program: its settings, every evaluation, and in the end its files.

    A subclass says how, in four methods. If one of them raises an exception, a warning says so and the run continues
    without the tracker. A file in the run folder notes how far the recording is, so that a resumed run continues it
    and no round is recorded twice.
    """

    name: ClassVar[str]

    def __init__(self, folder: str | Path | None = None) -> None:
        """``folder`` is where to write; by default ``tracking/NAME`` in the run folder."""
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
    def finish(self, files: Sequence[Path]) -> None:
        """Records the files of a run that has ended; ``curves.png`` is its picture."""

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
        if self.needs_folder and self._given is None and progress.folder is None:
            raise SettingError(f"{self.name} needs a folder to write into: give it one, or run with out=...")
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
        """Records the files, unless the run is to be resumed."""
        self._ending = "stopped" if run.stopped else "finished" if run.diverged is None else "failed"
        if not (self._off or run.stopped or run.folder is None):
            files = [run.folder / name for name in _FILES]
            self._attempt(self.finish, [each for each in files if each.exists()])

    def _open(self, progress: Progress[Any]) -> None:
        experiment, inside = progress.experiment, progress.folder and progress.folder / layout.TRACKING
        kept: dict[str, Any] = {"id": None, "round": 0}
        self._note = inside and inside / f"{self.name}.json"
        if self._note and self._note.exists():
            kept = read_json(self._note)
            expect(kept, {"id": str, "round": COUNT}, self._note)
        folder = (self._given or (inside and inside / self.name)) if self.needs_folder else None
        start = Start(
            folder=folder and ensure_folder(folder.absolute()),
            name=progress.folder.name if progress.folder else experiment.algorithm_name,
            settings=flattened(experiment.plain()),
            seeds=experiment.seed_list,
            figures=figures(progress.backend.plan.metrics[0].name),
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
