"""Calibrating the models of a run when it has ended, by the clients' validation samples."""

from __future__ import annotations

from typing import TypeVar

from pfedbred.data.federation import Federation
from pfedbred.data.population import Population
from pfedbred.engine.backend import Backend
from pfedbred.engine.calibration import least_samples
from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import Experiment
from pfedbred.runs.calibration import RunCalibration, calibrated
from pfedbred.runs.chosen import Chosen

S = TypeVar("S")


def check_coverage(experiment: Experiment, federation: Federation | Population) -> None:
    """Rejects a coverage for which there are too few samples, or for which the task has no sets."""
    level = experiment.coverage
    if level is None:
        return
    if experiment.kind.labels == "sets":
        raise SettingError(f"coverage is for classes and numbers, and the task is {experiment.kind.name}")
    held = federation.held if isinstance(federation, Population) else federation.validation
    if held is None:
        raise SettingError("coverage needs validation samples: keep some with validation=0.2")
    if isinstance(federation, Federation) and len(federation.parts["validation"].y) < least_samples(level):
        raise SettingError(
            f"coverage {level:g} needs at least {least_samples(level):,} validation samples across all clients, "
            f"but there are {len(federation.parts['validation'].y):,}: use a larger validation, or a lower coverage"
        )


def calibrate_models(backend: Backend[S], state: S, chosen: Chosen, coverage: float) -> RunCalibration:
    """Calibrates the models of the chosen rounds. All processes must call it."""
    models = [
        chosen.tree("global", (), backend.global_model(state)),
        chosen.tree("personal", (), backend.personal_model(state, 0)),
    ]
    validation, test = (backend.outputs(part, *models) for part in ("validation", "test"))
    return calibrated(validation, test, coverage)
