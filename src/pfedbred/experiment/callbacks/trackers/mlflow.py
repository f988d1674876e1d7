"""MLflow: a database in the run folder, or a server."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pfedbred.experiment.callbacks.trackers.base import Ending, Start, Tracker, imported
from pfedbred.experiment.callbacks.trackers.content import ALWAYS, Measured

_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_QUANTILES = (0, 10, 25, 50, 75, 90, 100)
_MOST_METRICS, _MOST_PARAMS = 1000, 100  # of one request


class MLflow(Tracker):
    """MLflow: a database in the run folder, or what MLFLOW_TRACKING_URI names.

    MLflow has no histograms: quantiles over clients take their place.
    """

    name: ClassVar[str] = "mlflow"

    def __init__(self, folder: str | Path | None = None) -> None:
        """``folder`` is for a database and the artifacts.

        By default MLFLOW_TRACKING_URI says where to record; without it, ``tracking/mlflow`` in the run folder.
        """
        super().__init__(folder)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would send usage data to its developers,
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # and every new database to the console
        self._entities, self._tracking, *_ = imported(
            "mlflow", "mlflow.entities", "mlflow.tracking", "sqlalchemy", "alembic"
        )
        self._client: Any = None
        self._run = ""
        self._known = 0

    @property
    def needs_folder(self) -> bool:
        """Unless a server, or another database, is named."""
        return self._given is not None or not os.environ.get("MLFLOW_TRACKING_URI")

    def open(self, start: Start) -> str:
        """Creates a run, or sets it to running again."""
        address, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if start.folder is not None:
            address, artifacts = f"sqlite:///{start.folder / 'mlflow.db'}", (start.folder / "artifacts").as_uri()
        self._client = self._tracking.MlflowClient(address)
        self._known = 0
        if start.id is not None:
            self._run = start.id
            self._client.update_run(self._run, status="RUNNING")
            known = self._client.get_metric_history(self._run, ALWAYS)
            self._known = max((each.step for each in known), default=0)
            return self._run
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "pfedbred")
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name, artifacts)
        self._run = self._client.create_run(experiment, run_name=start.name).info.run_id
        params = [self._entities.Param(name, str(value)) for name, value in start.settings.items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._run, params=params[first : first + _MOST_PARAMS])
        return self._run

    def record(self, evaluation: Measured) -> None:
        """One metric for each number, unless the run died after they were recorded and before that was noted."""
        if evaluation.round <= self._known:
            return
        numbers = evaluation.numbers()
        for name, values in evaluation.clients.items():
            if values.size:
                found = np.percentile(values, _QUANTILES)
                numbers |= {f"{name}/q{q:03}": float(each) for q, each in zip(_QUANTILES, found, strict=True)}
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(name, each, now, evaluation.round) for name, each in numbers.items()]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + _MOST_METRICS])

    def finish(self, files: Sequence[Path]) -> None:
        """The files as artifacts, which MLflow shows."""
        for file in files:
            self._client.log_artifact(self._run, str(file))

    def close(self, ending: Ending) -> None:
        """Says how the run ended."""
        self._client.set_terminated(self._run, _STATUS[ending])
