"""Writes checkpoints while a run trains."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from pfedbred.engine import devices
from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.callbacks.metrics_writer import MetricsWriter
from pfedbred.experiment.progress import Progress
from pfedbred.io.atomic import writing_into
from pfedbred.runs import checkpoints

if TYPE_CHECKING:
    from pfedbred.experiment.result import Run

_SECONDS = 60.0  # between checkpoints by default,
_SHARE = 30  # and at least this many times as long as the last one took


class Checkpoints(Callback):
    """A checkpoint every few rounds, or once a minute; before a run stops, and at its end on request."""

    def __init__(self, folder: Path, metrics: MetricsWriter, every: int | None = None, *, at_end: bool = False) -> None:
        """``every`` is in rounds, 0 for none, None for one a minute; ``at_end`` allows for more rounds later."""
        self._folder, self._metrics, self._every, self._at_end = folder, metrics, every, at_end
        self._saved_at = time.monotonic()
        self._progress: Progress[Any] | None = None
        self._saved_round: int | None = None

    @contextmanager
    def running(self, progress: Progress[Any]) -> Iterator[None]:
        """Saves before the first round, if the backend needs it."""
        self._progress = progress
        if progress.backend.checkpoint_always and progress.round == 0:
            self._save(progress)
        yield

    def most_rounds(self, progress: Progress[Any]) -> int:
        """Up to the next checkpoint, or for about a second."""
        if self._every:
            return self._every - progress.round % self._every
        return rounds_in_a_second(progress) if self._every is None else super().most_rounds(progress)

    def on_pause(self, progress: Progress[Any], stopping: str | None) -> None:
        """Saves if a checkpoint is due, or if the run is about to stop."""
        if devices.agreed(self._due(progress) or bool(stopping and self._every != 0)):
            self._save(progress)

    def on_end(self, run: Run[Any]) -> None:
        """Saves the end of a run that was completed, unless it is saved."""
        completed = run.stopped is None and run.diverged is None
        if self._at_end and self._every != 0 and completed and self._saved_round != run.round:
            assert self._progress is not None
            self._save(self._progress)

    def _due(self, progress: Progress[Any]) -> bool:
        backend = progress.backend
        if not backend.checkpoint_always and all(backend.rejections(progress.state).skipped_in_row):
            return False  # all seeds have stalled: the previous checkpoint may be better
        if self._every is None:
            return time.monotonic() - self._saved_at > max(_SECONDS, _SHARE * progress.save_seconds)
        return self._every > 0 and progress.round % self._every == 0

    def _save(self, progress: Progress[Any]) -> None:
        started = time.monotonic()
        saved = progress.backend.save(progress.state)
        chosen = progress.chosen.save() if progress.chosen else {}
        facts = {
            **saved.facts,
            "experiment": progress.experiment.plain(),
            "data": progress.backend.federation.facts,
            **self._metrics.sync(),
            "seconds": progress.seconds,
            "compile_seconds": progress.compile_seconds,
            "round_seconds": progress.typical_round_seconds,
        }
        if jax.process_index() == 0:
            with writing_into(self._folder):
                checkpoints.write(self._folder, progress.round, facts, {**saved.arrays, **chosen})
        self._saved_at, self._saved_round = time.monotonic(), progress.round
        progress.save_seconds = self._saved_at - started


def rounds_in_a_second(progress: Progress[Any]) -> int:
    """The number of rounds in about a second; 1 before the pace is known."""
    return max(1, int(1.0 / max(progress.pace, 1e-9))) if progress.pace else 1
