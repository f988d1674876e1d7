"""What a finished run leaves in its folder: data distribution, models, picture, and last its summary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.result import Run
from pfedbred.io.atomic import write_json, writing_into
from pfedbred.report import curves
from pfedbred.runs import saved_models
from pfedbred.runs.data_file import write_data
from pfedbred.runs.layout import CURVES, DATA, SUMMARY

_SMALL = 10**9  # bytes of models that are kept without asking


class Outcome(Callback):
    """Writes the outcome of a run that came to its end."""

    def __init__(
        self, folder: Path, keep_models: bool | None = None, extra: Callable[[Run[Any]], dict[str, Any]] | None = None
    ) -> None:
        """``keep_models`` keeps the trained models, None if they are small; ``extra`` adds to the summary."""
        self._folder, self._keep_models, self._extra = folder, keep_models, extra

    def on_end(self, run: Run[Any]) -> None:
        """The summary is written last, because it marks the run as finished."""
        if run.stopped:
            return
        folder, backend = self._folder, run.backend
        if backend.samples is not None:
            write_data(backend.samples, folder / DATA)
        if self._should_keep(run):
            saved_models.write_models(folder, run.experiment.plain(), run.backend, run.state, run.round)
        record = run.record()
        with writing_into(folder):
            curves.draw_run(record, folder / CURVES)
        write_json(folder / SUMMARY, {**record.summary, **(self._extra(run) if self._extra else {})})

    def _should_keep(self, run: Run[Any]) -> bool:
        if self._keep_models is not None:
            return self._keep_models
        size = run.backend.model_bytes()
        return size is not None and run.experiment.seeds * size <= _SMALL
