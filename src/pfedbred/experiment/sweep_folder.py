"""A sweep in its folder: config.yaml, checkpoints while it runs, and its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pfedbred.engine.backend import Saved
from pfedbred.errors import SettingError
from pfedbred.experiment.callbacks.stopping import Stopped
from pfedbred.experiment.resume import check_data, check_unchanged
from pfedbred.experiment.sweep import Sweeping
from pfedbred.io.atomic import write_json, writing_into
from pfedbred.io.shapes import COUNT, NUMBER, Maybe, expect
from pfedbred.report import heatmap
from pfedbred.runs import checkpoints, layout
from pfedbred.runs.config_file import write_config

_SECONDS = 60.0  # between checkpoints, and at least
_SHARE = 30  # this many times as long as the last one took
_STATE = "state."


class SweepFolder:
    """Keeps a sweep in a folder whose lock the caller holds; see :class:`pfedbred.experiment.sweep.Keeper`."""

    def __init__(
        self,
        folder: Path,
        plan: Mapping[str, Any],
        *,
        resume: bool = False,
        stop: Callable[[], str | None] = lambda: None,
        warn: Callable[[str], None] = print,
    ) -> None:
        """``plan`` is how points are chosen, as plain values; ``stop`` tells why to stop now, if there is a reason."""
        self._folder, self._plan, self._resume, self._stop, self._warn = folder, dict(plan), resume, stop, warn
        self._saved_at, self._took = time.monotonic(), 0.0

    def restore(self, sweeping: Sweeping) -> None:
        """Restores a sweep that was interrupted; writes config.yaml."""
        plain = {**sweeping.experiment.plain(), "sweep": self._plan}
        found = None
        if self._resume and layout.started(self._folder):
            check_unchanged(self._folder, plain)
            found = checkpoints.latest(self._folder, self._warn)
        if found:
            _load(sweeping, found, self._folder)
            check_unchanged(self._folder, plain, found.facts["experiment"])
        with writing_into(self._folder):
            for each in layout.leftovers(self._folder):
                each.unlink(missing_ok=True)
            checkpoints.remove_after(self._folder, found.round if found else 0)
            write_config(self._folder / layout.CONFIG, plain, "sweep")

    def pause(self, sweeping: Sweeping) -> None:
        """Writes a checkpoint if one is due, or if the sweep is about to stop."""
        reason = self._stop()
        if reason or time.monotonic() - self._saved_at > max(_SECONDS, _SHARE * self._took):
            started = time.monotonic()
            with writing_into(self._folder):
                _save(sweeping, self._folder, {**sweeping.experiment.plain(), "sweep": self._plan})
            self._saved_at = time.monotonic()
            self._took = self._saved_at - started
        if reason:
            ended = int(sweeping.tables.ended.sum())
            raise Stopped(reason, f"stopped ({reason}) with {ended} of {sweeping.sampler.total} points done")

    def finish(self, record: Mapping[str, Any]) -> None:
        """Writes the outcome; checkpoints are no longer needed."""
        with writing_into(self._folder):
            write_json(self._folder / layout.SWEEP, {**record, "plan": self._plan})
            heatmap.draw_points({**record, "plan": self._plan}, self._folder / layout.HEATMAP)
            for each in checkpoints.files(self._folder):
                checkpoints.remove(each)


def _save(sweeping: Sweeping, folder: Path, plain: Mapping[str, Any]) -> None:
    tables = sweeping.tables
    assert sweeping.states is not None
    arrays = {f"{_STATE}{name}": array for name, array in sweeping.backend.save(sweeping.states).arrays.items()}
    arrays |= {**tables.arrays(), "slots": sweeping.slots, "at": sweeping.at}
    facts = {
        "experiment": plain,
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
