"""What a finished run leaves in its folder: data distribution, models, picture, and last its summary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.callbacks.choosing import keeps_models
from pfedbred.experiment.result import Run
from pfedbred.io.atomic import write_json, writing_into
from pfedbred.report import curves
from pfedbred.runs import saved_models
from pfedbred.runs.data_file import write_data
from pfedbred.runs.layout import CURVES, DATA, SUMMARY


class Outcome(Callback):
    """Writes the outcome of a run that came to its end."""

    def __init__(
        self,
        folder: Path,
        keep_models: bool | None = None,
        extra: Callable[[Run[Any]], dict[str, Any]] | None = None,
        warn: Callable[[str], None] = print,
    ) -> None:
        """``keep_models`` keeps the trained models, None if they are small; ``extra`` adds to the summary."""
        self._folder, self._keep_models, self._extra, self._warn = folder, keep_models, extra, warn

    def on_end(self, run: Run[Any]) -> None:
        """The summary is written last, because it marks the run as finished."""
        if run.stopped:
            return
        folder, backend = self._folder, run.backend
        if backend.samples is not None:
            write_data(backend.samples, folder / DATA)
        if keeps_models(self._keep_models, run.experiment, backend):
            if run.chosen is not None and run.chosen.models is None:
                self._warn("the models of the chosen rounds were not kept from the start of the run: none are written")
            else:
                saved_models.write_models(folder, run.experiment.plain(), backend, run.state, run.round, run.chosen)
        record = run.record()
        with writing_into(folder):
            curves.draw_run(record, folder / CURVES)
        write_json(folder / SUMMARY, {**record.summary, **(self._extra(run) if self._extra else {})})
