"""Weights & Biases, offline unless WANDB_MODE says otherwise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pfedbred.experiment.callbacks.trackers.base import Ending, Start, Tracker, imported
from pfedbred.experiment.callbacks.trackers.content import Measured
from pfedbred.runs import layout


class Wandb(Tracker):
    """Weights & Biases, offline unless WANDB_MODE says otherwise: upload the folder later with ``wandb sync``."""

    name: ClassVar[str] = "wandb"

    def __init__(self, folder: str | Path | None = None, **options: Any) -> None:
        """Records into a folder, by default ``tracking/wandb`` in the run folder.

        ``options`` are arguments of ``wandb.init``, such as ``project="mine"`` or ``mode="online"``.
        """
        super().__init__(folder)
        self._offline = (options.get("mode") or os.environ.get("WANDB_MODE") or "offline") == "offline"
        if self._offline:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would report its own errors to its developers
        (self._wandb,) = imported("wandb", "wandb")
        self._options = options
        self._run: Any = None
        self._round = 0

    def open(self, start: Start) -> str:
        """Starts a run; offline, a resumed run has another folder with the same run id."""
        self._round = start.round
        given = {
            "dir": str(start.folder),
            "project": os.environ.get("WANDB_PROJECT", "pfedbred"),
            "name": start.name,
            "mode": "offline" if self._offline else None,
            "reinit": "create_new",  # a run that the program itself may have open is not disturbed
            "settings": self._wandb.Settings(console="off", silent=True),
        }
        resumed = {} if start.id is None else {"id": start.id, "resume": "allow"}
        self._run = self._wandb.init(config=start.settings, **{**given, **self._options, **resumed})
        return str(self._run.id)

    def record(self, evaluation: Measured) -> None:
        """One step, whose number is that of the round."""
        self._round = evaluation.round
        content: dict[str, Any] = {**evaluation.numbers()}
        for name, values in evaluation.clients.items():
            if values.size:
                content[name] = self._wandb.Histogram(values)
        self._run.log(content, step=evaluation.round, commit=True)

    def finish(self, files: Sequence[Path]) -> None:
        """The picture, and the files as an artifact."""
        results = self._wandb.Artifact(f"results-{self._run.id}", type="results")
        for file in files:
            results.add_file(str(file), policy="immutable")  # no copy of it among the user's own files
            if file.name == layout.CURVES:
                self._run.log({file.stem: self._wandb.Image(str(file))}, step=self._round + 1)
        self._run.log_artifact(results)

    def close(self, ending: Ending) -> None:
        """Waits until everything is written."""
        self._run.finish(exit_code=int(ending == "failed"))
