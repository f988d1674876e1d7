"""Writes metrics.jsonl while a run trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pfedbred.engine.history import Point
from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.progress import Progress
from pfedbred.experiment.result import Run
from pfedbred.io.atomic import writing_into
from pfedbred.runs.metrics_file import MetricsFile


class MetricsWriter(Callback):
    """A line of metrics.jsonl for every evaluation."""

    def __init__(self, folder: Path, keep: int = 0) -> None:
        """``keep`` is how many bytes of an existing file belong to the run that is resumed."""
        self._folder, self._keep = folder, keep
        self._file: MetricsFile | None = None

    @contextmanager
    def running(self, progress: Progress[Any]) -> Iterator[None]:
        """Opens the file, and makes sure at the end that it is on disk."""
        with writing_into(self._folder):
            self._file = MetricsFile(self._folder, self._keep)
        try:
            yield
            self.sync()
        finally:
            with writing_into(self._folder):
                self._file.close()

    def on_evaluation(self, progress: Progress[Any], point: Point) -> None:
        """Writes the line."""
        assert self._file is not None
        with writing_into(self._folder):
            self._file.write(point)

    def on_end(self, run: Run[Any]) -> None:
        """Makes sure that the file still holds what was written, before the run is marked as finished."""
        assert self._file is not None
        with writing_into(self._folder):
            self._file.check(content=True)

    def sync(self) -> dict[str, Any]:
        """Waits until all lines are on disk; returns what a checkpoint records about them."""
        assert self._file is not None
        with writing_into(self._folder):
            return self._file.sync()
