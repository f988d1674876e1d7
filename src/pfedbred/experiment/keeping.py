"""Running into a folder so that nothing is lost: checkpoints while it runs, and going on where a run was stopped."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from pfedbred.data.federation import Federation
from pfedbred.engine import Simulation, devices
from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import Prepared
from pfedbred.experiment.loop import Point, Progress, Run, run
from pfedbred.experiment.stopping import CODES, Stopping
from pfedbred.io.shapes import COUNT, NUMBER, expect
from pfedbred.io.strict import read_json
from pfedbred.io.tensors import Damaged
from pfedbred.report import curves
from pfedbred.runs import checkpoints, locks, records, saved_models
from pfedbred.runs.metrics_file import Metrics, read_points, size_of

_SLICE = 1.0  # seconds of rounds after which someone who wants to stop is heard
_AUTOMATIC = 60.0  # seconds between checkpoints if nobody says how many rounds,
_SHARE = 30  # and so many times what the last one took
_FREE = ("executor", "chunk", "data_dir", "store_dir")  # how and where, not what

_REASONS: tuple[str | None, ...] = (None, *CODES)


@dataclass
class Keeping:
    """How runs are kept.

    Attributes:
      every: rounds between checkpoints; 0 for none at all, None for one a minute.
      stopping: asked whether to stop.
      resume: whether to go on with the run that is in the folder.
      overwrite: whether to replace runs below the folder.
      models: whether to keep the trained models; None if they are small.
      outcome: whether to write what a finished run leaves: its summary, pictures, models.
      source: the folder to go on from, if it is not the one that is written into.
      warn: told of what is amiss.
    """

    every: int | None = None
    stopping: Stopping = field(default_factory=Stopping)
    resume: bool = False
    overwrite: bool = False
    models: bool | None = None
    outcome: bool = True
    source: Path | None = None
    warn: Callable[[str], None] = print


class Keeper:
    """Writes a checkpoint between rounds when one is due, and says when to stop."""

    def __init__(self, folder: Path, prepared: Prepared, keeping: Keeping, saved: int = 0) -> None:
        """``saved`` is the round of the checkpoint that the run goes on from."""
        self._folder, self._prepared, self._keeping = folder, prepared, keeping
        self.metrics: Metrics | None = None
        self._facts = {"experiment": records.plain(prepared.experiment), "data": prepared.simulation.federation.facts}
        self._saved_at = self._asked_at = time.monotonic()
        self._saving, self._saved = 0.0, saved

    def most(self, done: int, round_seconds: float | None) -> int:
        """As many rounds as one may have to wait for, and not beyond the next checkpoint."""
        every = self._keeping.every
        rounds = max(1, int(_SLICE / max(round_seconds, 1e-9))) if round_seconds else 1
        self._asked_at = time.monotonic()
        return devices.agreed(min(rounds, every - done % every) if every else min(rounds, 2**30))

    def pause(self, progress: Progress) -> str | None:
        """Saves if it is due or if the run is to stop; says why it is."""
        now = time.monotonic()
        reason = self._keeping.stopping.wanted(needed=1.5 * (now - self._asked_at + self._saving) + 1)
        reason = _REASONS[devices.agreed(_REASONS.index(reason))]
        if devices.agreed(self._due(progress, now) or bool(reason and self._keeping.every != 0)):
            self._save(progress)
        return reason

    def _due(self, progress: Progress, now: float) -> bool:
        if all(progress.states.skipped_in_row.tolist()):
            return False  # it goes nowhere: what was saved before may be better
        if self._keeping.every is None:
            return now - self._saved_at > max(_AUTOMATIC, _SHARE * self._saving)
        return self._keeping.every > 0 and progress.round % self._keeping.every == 0

    def _save(self, progress: Progress) -> None:
        assert self.metrics is not None
        begun = time.monotonic()
        arrays = self._prepared.simulation.saved(progress.states)
        facts = {
            **self._facts,
            "metrics": self.metrics.settle(),
            "seconds": progress.seconds,
            "compile_seconds": progress.compile_seconds,
            "round_seconds": progress.round_seconds,
        }
        if jax.process_index() == 0:
            try:
                checkpoints.write(self._folder, progress.round, facts, arrays)
            except SettingError as problem:
                raise SettingError(f"{problem}; {self.intact()}") from None
        self._saved_at = time.monotonic()
        self._saving = self._saved_at - begun
        self._saved = progress.round

    def intact(self) -> str:
        """What is left of the run if it ends now."""
        return f"the run is saved up to round {self._saved}" if self._saved else "nothing of the run is saved"


@contextmanager
def opened(folder: Path, *, overwrite: bool = False, resume: bool = False, patience: float = 0.0) -> Iterator[Path]:
    """A folder to run into, which no other process may use meanwhile; a new one, unless to resume.

    A process that does is waited for, for ``patience`` seconds.
    """
    with locks.locked(records.find_folder(folder), patience):
        yield folder if resume and begun(folder) else records.make_folder(folder, overwrite)


def begun(folder: Path) -> bool:
    """Whether there is a run in a folder."""
    return (folder / "config.yaml").exists()


def finished(folder: Path) -> bool:
    """Whether it has come to its end: its summary is written last."""
    return (folder / "summary.json").exists()


def refuse_changes(folder: Path, options: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
    """Refuses to go on with other settings than the run in the folder has (``before``, if it is not its config)."""
    if before is None:
        before = records.read_config(folder / "config.yaml")
    changed = [
        f"{name} {before.get(name)!r}, now {options.get(name)!r}"
        for name in dict.fromkeys([*before, *options])
        if name not in _FREE and name != "settings" and before.get(name) != options.get(name)
    ]
    old, new = (each.get("settings") or {} for each in (before, options))
    if before.get("algorithm") == options.get("algorithm") and isinstance(old, dict):
        changed += [
            f"{name} {old.get(name)!r}, now {new.get(name)!r}"
            for name in dict.fromkeys([*old, *new])
            if old.get(name) != new.get(name)
        ]
    if changed:
        raise SettingError(f"{folder} was run with other settings: {'; '.join(changed)}")


_TIMES = ("seconds", "compile_seconds", "round_seconds")
_FACTS = {"experiment": dict, "data": dict, "metrics": COUNT, **dict.fromkeys(_TIMES, NUMBER)}


def where_it_stopped(folder: Path, prepared: Prepared, warn: Callable[[str], None]) -> tuple[Progress | None, int]:
    """Where to go on with the run in a folder, None for its start; and how many bytes of its metrics come before."""

    def fits(found: checkpoints.Checkpoint) -> None:
        expect(found.facts, _FACTS, found.path)
        if found.facts["metrics"] > size_of(folder):
            raise Damaged(f"metrics.jsonl is shorter than when {found.path} was written")

    found = checkpoints.latest(folder, warn, fits)
    if found is None:
        return None, 0
    facts = found.facts
    refuse_changes(folder, records.plain(prepared.experiment), facts["experiment"])
    data = prepared.simulation.federation.facts
    if facts["data"] != data:
        raise SettingError(f"{folder} was run on other data: {facts['data']}, now {data}")
    points = read_points(folder, facts["metrics"])
    states = prepared.simulation.restored(found.arrays, prepared.experiment.seeds)
    return Progress(found.round, states, points, *(facts[name] for name in _TIMES)), facts["metrics"]


@contextmanager
def one_line(folder: Path, intact: Callable[[], str] | None = None) -> Iterator[None]:
    """What the system refuses to write is told in one line, with what is left of the run."""
    try:
        yield
    except OSError as problem:
        left = f"; {intact()}" if intact else ""
        raise SettingError(f"cannot write into {folder}: {problem.strerror or problem}{left}") from None


def run_into(folder: Path, prepared: Prepared, observe: Callable[[Point], None], keeping: Keeping) -> Run:
    """Runs into a folder, whose lock the caller holds, or goes on with the run that is in it."""
    source = keeping.source or folder
    start, size = None, 0
    if keeping.resume and begun(source):
        refuse_changes(source, records.plain(prepared.experiment))
        start, size = where_it_stopped(source, prepared, keeping.warn)
    keeper = Keeper(folder, prepared, keeping, start.round if start else 0)
    with one_line(folder, keeper.intact):
        for each in records.left_behind(folder):
            each.unlink(missing_ok=True)
        if source == folder:
            checkpoints.forget_after(folder, start.round if start else 0)
        records.write_config(folder, records.plain(prepared.experiment), "run")
        metrics = keeper.metrics = Metrics(folder, keep=size if source == folder else 0)

        def seen(point: Point) -> None:
            metrics.write(point)
            observe(point)

        try:
            done = run(prepared=prepared, observe=seen, pauses=keeper, start=start)
            metrics.settle()
        finally:
            metrics.close()
        if keeping.outcome and not done.stopped:
            try:
                _write_outcome(folder, done, keeping.models)
            except SettingError as problem:
                raise SettingError(f"{problem}; {keeper.intact()}") from None
    return done


def _write_outcome(folder: Path, done: Run, models: bool | None) -> None:
    """All that a finished run leaves; the summary last, for it says that the run is finished."""
    if isinstance(done.simulation.federation, Federation):
        records.write_data(done.simulation.federation, folder / "data.json")
    if models or (models is None and saved_models.size(done) <= 10**9 and _knows_all(done)):
        saved_models.keep(done, folder)
    curves.draw_run(done, folder / "curves.png")
    records.write_json(folder / "summary.json", records.summary(done))


def _knows_all(run: Run) -> bool:
    """Whether every client has been looked at anyway: of a large population most have not even been made."""
    simulation = run.simulation
    return isinstance(simulation, Simulation) or len(simulation.scored) == simulation.federation.clients


def as_it_was(folder: Path, prepared: Prepared) -> tuple[Run, dict[str, Any]]:
    """A run that was finished before, from its folder: its points, but not its models; and its summary."""
    summary = read_json(folder / "summary.json")
    expect(summary, records.FINISHED, folder / "summary.json")
    points = read_points(folder, None)
    if not points:
        raise SettingError(f"{folder} is of a finished run, but its metrics.jsonl is empty")
    nothing: Any = None
    done = Run(prepared.experiment, points, 0.0, [], points[-1].seconds, prepared.simulation, nothing)
    return dataclasses.replace(done, round=points[-1].round, diverged=summary.get("diverged")), summary
