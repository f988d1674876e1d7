"""Calibrating the models of a run when it has ended, by the clients' validation samples."""

from __future__ import annotations

from typing import TypeVar

from pfedbred.data.federation import Federation, Part
from pfedbred.data.population import Population
from pfedbred.engine.backend import Backend
from pfedbred.engine.calibration import least_samples
from pfedbred.engine.evaluation import Outputs
from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.ensembling import as_ensembles, first_seed
from pfedbred.runs.calibration import RunCalibration, calibrated
from pfedbred.types import Tree

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
        raise SettingError("coverage needs validation samples: keep some for validation (validation 0.2)")
    if isinstance(federation, Federation) and len(federation.parts["validation"].y) < least_samples(level):
        raise SettingError(
            f"coverage {level:g} needs at least {least_samples(level):,} validation samples across all clients, "
            f"but there are {len(federation.parts['validation'].y):,}: use a larger validation, or a lower coverage"
        )


def calibrate_models(backend: Backend[S], models: tuple[Tree, Tree], coverage: float, ensemble: bool) -> RunCalibration:
    """Calibrates G by seed, and P by seed and client; with ``ensemble`` each client's one of all seeds instead of P.

    All processes must call it.
    """
    global_, personal = models

    def outputs(part: Part) -> Outputs:
        found = backend.outputs(part, global_, personal)
        if ensemble:
            together = backend.outputs(part, first_seed(global_), as_ensembles(personal))
            found = found._replace(personal=together.personal)
        return found

    return calibrated(outputs("validation"), outputs("test"), coverage)
