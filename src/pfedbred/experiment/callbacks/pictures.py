"""Draws the picture of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.result import Run
from pfedbred.io.atomic import writing_into
from pfedbred.report import curves
from pfedbred.runs.layout import CURVES


class Pictures(Callback):
    """Draws curves.png when a run has ended."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is the run folder."""
        self._folder = folder

    def on_end(self, run: Run[Any]) -> None:
        """Draws it, unless the run is to be resumed."""
        if not run.stopped:
            with writing_into(self._folder):
                curves.draw_run(run.record(), self._folder / CURVES)
