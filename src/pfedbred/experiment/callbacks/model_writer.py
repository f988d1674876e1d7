"""Writes the models of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.result import Run
from pfedbred.runs import saved_models

_SMALL = 10**9  # bytes of models that are kept without asking


class ModelWriter(Callback):
    """Writes the trained models when a run has come to its end."""

    def __init__(self, folder: Path, keep: bool | None = None) -> None:
        """``keep`` is whether to; None if they are small."""
        self._folder, self._keep = folder, keep

    def on_end(self, run: Run[Any]) -> None:
        """Writes them, unless the run is to be resumed."""
        if not run.stopped and self._should_keep(run):
            saved_models.write_models(self._folder, run.experiment.plain(), run.backend, run.state, run.round)

    def _should_keep(self, run: Run[Any]) -> bool:
        if self._keep is not None:
            return self._keep
        size = run.backend.model_bytes()
        return size is not None and run.experiment.seeds * size <= _SMALL
