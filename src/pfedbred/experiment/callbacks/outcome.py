"""Writes the outcome of a finished run: its data distribution, and its summary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.result import Run
from pfedbred.io.atomic import write_json
from pfedbred.runs.data_file import write_data
from pfedbred.runs.layout import DATA, SUMMARY


class OutcomeFiles(Callback):
    """Writes the outcome of a run that has ended: last of all, because the summary marks it as finished."""

    def __init__(self, folder: Path, extra: Callable[[Run[Any]], dict[str, Any]] | None = None) -> None:
        """``extra`` adds to the summary."""
        self._folder, self._extra = folder, extra

    def on_end(self, run: Run[Any]) -> None:
        """Writes it, unless the run is to be resumed."""
        if run.stopped:
            return
        if run.backend.samples is not None:
            write_data(run.backend.samples, self._folder / DATA)
        extra = self._extra(run) if self._extra else {}
        write_json(self._folder / SUMMARY, {**run.record().summary, **extra})
