"""Writes the models of a finished run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.callbacks.choosing import keeps_models
from pfedbred.experiment.result import Run
from pfedbred.runs import saved_models


class ModelWriter(Callback):
    """Writes the trained models when a run has ended: of the chosen rounds, or else of the last."""

    def __init__(self, folder: Path, keep: bool | None = None, warn: Callable[[str], None] = print) -> None:
        """``keep`` is whether to keep them; None if they are small."""
        self._folder, self._keep, self._warn = folder, keep, warn

    def on_end(self, run: Run[Any]) -> None:
        """Writes them, unless the run is to be resumed."""
        if run.stopped or not keeps_models(self._keep, run.experiment, run.backend):
            return
        if run.chosen is not None and run.chosen.models is None:
            self._warn("the models of the chosen rounds were not kept from the start of the run: none are written")
            return
        options = run.experiment.plain(by_name=True)
        calibration = None if run.calibration is None else run.calibration.facts()
        saved_models.write_models(self._folder, options, run.backend, run.state, run.round, run.chosen, calibration)
