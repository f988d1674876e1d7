"""A sweep in its folder: config.yaml, checkpoints while it runs, and its outcome."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pfedbred.engine.backend import Saved
from pfedbred.errors import SettingError
from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.references import write_experiment
from pfedbred.experiment.resume import check_data, check_unchanged
from pfedbred.experiment.run import warn
from pfedbred.experiment.sweep_plan import SweepPlan
from pfedbred.experiment.sweep_result import Sweep
from pfedbred.experiment.sweeping import Sweeping
from pfedbred.io.atomic import write_json, writing_into
from pfedbred.io.shapes import COUNT, NUMBER, Maybe, expect
from pfedbred.report import heatmap
from pfedbred.runs import checkpoints, layout
from pfedbred.runs.config_file import read_config

_SECONDS = 60.0  # between checkpoints, and at least
_SHARE = 30  # this many times as long as the last one took
_STATE = "state."


class SweepFolder(Callback):
    """Keeps a sweep in a folder whose lock the caller holds: restores it, writes checkpoints and its outcome."""

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        """``resume`` is whether to resume the sweep in the folder."""
        self._folder, self._resume = folder, resume
        self._saved_at, self._took = time.monotonic(), 0.0
        self._plan: dict[str, Any] = {}

    @contextmanager
    def running_sweep(self, sweeping: Sweeping) -> Iterator[None]:
        """Restores a sweep that was interrupted; writes config.yaml."""
        self._plan, found = sweeping.plan.plain(), None
        if self._resume and layout.started(self._folder):
            check_same(self._folder, sweeping.experiment, sweeping.plan)
            found = checkpoints.latest(self._folder, warn)
        if found:
            _load(sweeping, found, self._folder)
            check_same(self._folder, sweeping.experiment, sweeping.plan, found.facts["experiment"])
        with writing_into(self._folder):
            for each in layout.leftovers(self._folder):
                each.unlink(missing_ok=True)
            checkpoints.remove_after(self._folder, found.round if found else 0)
            write_experiment(self._folder / layout.CONFIG, _recorded(sweeping.experiment, sweeping.plan), "sweep")
        yield

    def on_sweep_pause(self, sweeping: Sweeping, stopping: str | None) -> None:
        """Writes a checkpoint if one is due, or if the sweep is about to stop."""
        if stopping or time.monotonic() - self._saved_at > max(_SECONDS, _SHARE * self._took):
            started = time.monotonic()
            with writing_into(self._folder):
                _save(sweeping, self._folder)
            self._saved_at = time.monotonic()
            self._took = self._saved_at - started

    def on_sweep_end(self, sweep: Sweep) -> None:
        """Writes the outcome; checkpoints are no longer needed."""
        record = {**sweep.record(), "plan": self._plan}
        with writing_into(self._folder):
            write_json(self._folder / layout.SWEEP, record)
            heatmap.draw_points(record, self._folder / layout.HEATMAP)
            for each in checkpoints.files(self._folder):
                checkpoints.remove(each)


def check_same(folder: Path, experiment: Experiment, plan: SweepPlan, before: Mapping[str, Any] | None = None) -> None:
    """Rejects another sweep than the one in the folder (``before``, by default its config.yaml)."""
    if before is None:
        before = read_config(folder / layout.CONFIG)
    if before.get("sweep") is not None:  # the same plan may be written otherwise, by an earlier version above all
        before = {**before, "sweep": SweepPlan.read(before["sweep"]).plain()}
    check_unchanged(folder, _recorded(experiment, plan), before)


def _recorded(experiment: Experiment, plan: SweepPlan) -> dict[str, Any]:
    """What config.yaml and checkpoints record."""
    return {**experiment.plain(), "sweep": plan.plain()}


def _save(sweeping: Sweeping, folder: Path) -> None:
    tables = sweeping.tables
    assert sweeping.states is not None
    arrays = {f"{_STATE}{name}": array for name, array in sweeping.backend.save(sweeping.states).arrays.items()}
    arrays |= {**tables.arrays(), "slots": sweeping.slots, "at": sweeping.at}
    facts = {
        "experiment": _recorded(sweeping.experiment, sweeping.plan),
        "data": sweeping.backend.federation.facts,
        "events": sweeping.sampler.events,
        "count": tables.count,
        "seconds": sweeping.seconds,
    }
    checkpoints.write(folder, int(tables.evaluations.sum()), facts, arrays)


def _load(sweeping: Sweeping, found: checkpoints.Checkpoint, folder: Path) -> None:
    shape = {"experiment": dict, "data": Maybe(dict), "events": [dict], "count": COUNT, "seconds": NUMBER}
    facts = {"data": None, **found.facts}
    expect(facts, shape, found.path)
    check_data(folder, facts["data"], sweeping.backend.federation.facts)
    arrays = dict(found.arrays)
    sweeping.tables.fill(arrays, found.facts["count"], str(found.path))
    for name in ("slots", "at"):
        own = getattr(sweeping, name)
        if name not in arrays or arrays[name].shape != own.shape:
            raise SettingError(f"{found.path} does not fit: the points run in different groups than before")
        own[:] = arrays[name]
    sweeping.restore(found.facts["events"])
    saved = {name.removeprefix(_STATE): array for name, array in arrays.items() if name.startswith(_STATE)}
    runs = len(sweeping.slots) * sweeping.experiment.seeds
    sweeping.states = sweeping.backend.load(Saved(saved, {}), runs, sweeping.settings())
    sweeping.seconds_before = found.facts["seconds"]
