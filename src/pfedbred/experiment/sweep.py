"""Sweeps: one experiment with many values of its hyper-parameters, in memory or into a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred import algorithms
from pfedbred import settings as settings_
from pfedbred.algorithms.base import Algorithm
from pfedbred.data.federation import Federation
from pfedbred.engine import devices, metrics
from pfedbred.engine.metrics import Metric
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment import samplers
from pfedbred.experiment.building import build_sweep, load_data
from pfedbred.experiment.callbacks.base import Callback, check_callbacks
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.resume import open_folder
from pfedbred.experiment.space import Range, Space
from pfedbred.experiment.sweep_folder import SweepFolder
from pfedbred.experiment.sweep_plan import SweepPlan
from pfedbred.experiment.sweep_result import Sweep
from pfedbred.experiment.sweeping import Sweeping
from pfedbred.io.folders import folder_path
from pfedbred.runs import layout
from pfedbred.settings.schedules import may_vary

_MEMORY = 4 * 2**30  # for the states of the points that run together
_VALIDATION = 0.2  # of each client's training samples, unless the data or the user decides it


def default_memory() -> int:
    """Bytes for the states of the points that run together: a step needs as much again."""
    return min(_MEMORY, devices.device_memory() // 2)


def sweep(
    experiment: Experiment,
    grid: Space,
    *,
    federation: Federation | None = None,
    points: int | None = None,
    sampler: str | None = None,
    halving: bool = False,
    choose_on_test: bool = False,
    metric: str | None = None,
    memory: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    observe: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Sweep:
    """Runs the experiment with many settings.

    The best point is chosen on validation samples: those of the data, those that the experiment keeps, or else a fifth
    of each client's training samples.

    Args:
      experiment: what to run; settings that are not in the grid are the same everywhere.
      grid: values for each setting, or a :class:`pfedbred.Range` to draw from.
      federation: custom data, in place of ``experiment.dataset``.
      points: how many points to draw, at random or by the sampler; by default every combination of the values.
      sampler: ``random``, or one of Optuna's: ``tpe``, ``qmc``, ``cmaes``, ``gp``.
      halving: whether the worse half of the points stops early, several times.
      choose_on_test: whether to choose on the test samples instead, whose figures are then optimistically biased.
      metric: what points are compared by, of the task's metrics and the experiment's; by default the task's first.
      memory: bytes that the states of points running together may take; by default 4 GiB, or half of the device's.
      out: folder for the sweep, as the command line writes it: configuration, checkpoints, outcome and picture.
        Without it nothing is written.
      resume: resume the interrupted sweep in ``out``, or start it if there is none.
      overwrite: replace the sweep in ``out``.
      callbacks: called around evaluations, and when a point has ended; see :class:`pfedbred.Callback`.
      observe: called after every evaluation with the number of rounds done, over all points, and their total.
      note: called with notes for the user.

    Raises:
      pfedbred.Stopped: a callback, such as :class:`pfedbred.Interruption`, has stopped the sweep before its end.
    """
    if resume and overwrite:
        raise SettingError("overwrite starts again and resume continues: give one of them")
    if out is None and (resume or overwrite):
        raise SettingError("resume and overwrite need a folder: give out=...")
    check_callbacks(callbacks)
    folder = folder_path(out)
    if resume and folder is not None and (folder / layout.SWEEP).exists():
        raise SettingError(f"{folder} holds a finished sweep: read its {layout.SWEEP}, or choose another out")
    plan = SweepPlan(grid, points, sampler, halving, choose_on_test, metric)
    sweeping = prepare(experiment, plan, federation=federation, memory=memory, note=note)
    callbacks = [*callbacks, Observed(observe)] if observe else callbacks
    if folder is None:
        return sweeping.run(callbacks)
    with open_folder(folder, overwrite=overwrite, resume=resume):
        return sweep_into(folder, sweeping, callbacks, resume=resume)


class Observed(Callback):
    """Tells a function how far a sweep is."""

    def __init__(self, observe: Callable[[int, int], None]) -> None:
        """``observe`` takes the number of rounds done, over all points, and their total."""
        self._observe = observe

    def on_sweep_pause(self, sweeping: Sweeping, stopping: str | None) -> None:
        """After every evaluation."""
        self._observe(sweeping.done, sweeping.total)


def sweep_into(folder: Path, sweeping: Sweeping, callbacks: Sequence[Callback] = (), *, resume: bool = False) -> Sweep:
    """Runs all points into a folder whose lock the caller holds, or resumes the sweep that is in it."""
    # The sweep is restored, and its outcome written, before another callback sees it.
    return sweeping.run([SweepFolder(folder, resume=resume), *callbacks])


def prepare(
    experiment: Experiment,
    plan: SweepPlan,
    *,
    federation: Federation | None = None,
    memory: int | None = None,
    note: Callable[[str], None] | None = None,
) -> Sweeping:
    """What :func:`sweep` does first: checks everything that is given, and reads the data."""
    started = time.perf_counter()
    if not isinstance(experiment, Experiment):
        raise SettingError("sweep takes an Experiment, such as pfedbred.Experiment(dataset='digits')")
    experiment = experiment.checked() if federation is None else experiment.on(federation)
    _check(experiment, plan.grid)
    chosen = samplers.get(plan.grid, plan.points, plan.sampler, experiment.seed)
    experiment, federation = _with_validation(experiment, federation, plan.choose_on_test, note)
    first = {**(experiment.settings or {}), **{name: _first(values) for name, values in plan.grid.items()}}
    experiment, backend = build_sweep(experiment.replaced(settings=first), federation)
    _check_metrics(experiment, plan.metric)
    if not len(backend.federation.test.y):
        raise SettingError("there are no test samples to compare the points by")
    compared_by = _metric(backend.plan.metrics, plan.metric)
    seconds = time.perf_counter() - started
    return Sweeping(experiment, backend, plan, chosen, compared_by, memory or default_memory(), seconds)


def _with_validation(
    experiment: Experiment, federation: Federation | None, on_test: bool, note: Callable[[str], None] | None
) -> tuple[Experiment, Federation | None]:
    """The experiment with validation samples, unless points are chosen on test samples or the data has its own."""
    if on_test or experiment.validation:
        return experiment, federation
    found = load_data(experiment) if federation is None else federation
    if not isinstance(found, Federation):
        raise SettingError("a sweep keeps all clients on the device at every point: use fewer clients, or store device")
    if found.validation is None:
        if note:
            note(f"points are chosen on {100 * _VALIDATION:.0f} % of each client's training samples; see --validation")
        experiment = experiment.replaced(validation=_VALIDATION)
    return experiment, found


def _metric(known: Sequence[Metric], name: str | None) -> Metric:
    """The metric of that name, or else the first."""
    by_name = {each.name: each for each in known}
    if name is not None and name not in by_name:
        raise SettingError(f"points cannot be compared by {name!r}{nearest(name, by_name)}")
    return known[0] if name is None else by_name[name]


def _first(values: Any) -> float:
    return float(values.low if isinstance(values, Range) else values[0])


def _check(experiment: Experiment, grid: Space) -> None:
    """Rejects what cannot be in a grid, and values that the setting does not allow."""
    if not isinstance(grid, Mapping):
        raise SettingError(f"a grid maps settings to their values, such as {{'eta': [0.01, 0.1]}}, not {grid!r}")
    if not grid:
        raise SettingError("a sweep needs a grid, such as --grid eta=0.01:0.5:8")
    if experiment.held_out_clients:
        raise SettingError("a sweep does not evaluate held-out clients: leave held_out_clients out")
    if experiment.executor == "loop":
        raise SettingError("a sweep is one compiled program; the executor loop has none")
    if isinstance(experiment.algorithm, Algorithm):
        raise SettingError("an Algorithm object has no settings to sweep: give its name or the function that builds it")
    known = settings_.declared(algorithms.builder(experiment.algorithm))
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or not len(values):
            raise SettingError(f"the grid of {name} must be a list of values or a pfedbred.Range, not {values!r}")
        if name not in known:
            raise SettingError(f"unknown setting {name!r}{nearest(name, known)}")
        annotation = known[name].annotation
        if not may_vary(annotation):
            numbers = [each for each, parameter in known.items() if may_vary(parameter.annotation)]
            raise SettingError(
                f"{name} decides how the program is built, and a sweep is one program; "
                f"a grid can have {', '.join(numbers)}"
            )
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            settings_.check(name, value, annotation)


def _check_metrics(experiment: Experiment, compared_by: str | None) -> None:
    """Rejects what a sweep would not record: of metrics, it records the one by which points are compared.

    The usual metrics of the task, which is known once there is data, are evaluated whatever is given.
    """
    usual = metrics.resolve(None, experiment.kind)
    others = {each.name for each in metrics.resolve(experiment.metrics, experiment.kind) if each not in usual}
    if others - {compared_by} or experiment.diagnostics:
        title = next((each.title for each in usual if each.name == compared_by), usual[0].title)
        raise SettingError(
            f"a sweep compares points by {title}: leave metrics and diagnostics out, and run the best point"
        )
