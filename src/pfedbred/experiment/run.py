"""Running an experiment, in memory or into a run folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax

from pfedbred.data.federation import Federation
from pfedbred.data.population import Population
from pfedbred.engine import Simulated, devices
from pfedbred.errors import SettingError
from pfedbred.experiment.building import Built, build
from pfedbred.experiment.callbacks.base import Callback, check_callbacks
from pfedbred.experiment.callbacks.checkpointing import Checkpoints
from pfedbred.experiment.callbacks.choosing import keeps_models
from pfedbred.experiment.callbacks.metrics_writer import MetricsWriter
from pfedbred.experiment.callbacks.model_writer import ModelWriter
from pfedbred.experiment.callbacks.outcome import OutcomeFiles
from pfedbred.experiment.callbacks.pictures import Pictures
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.loop import train
from pfedbred.experiment.references import write_experiment
from pfedbred.experiment.result import Run
from pfedbred.experiment.resume import (
    check_unchanged,
    has_more_rounds,
    latest_checkpoint,
    load_progress,
    open_folder,
    recorded_options,
    what_is_saved,
)
from pfedbred.io.atomic import WriteError, writing_into
from pfedbred.io.folders import folder_path
from pfedbred.runs import checkpoints, layout
from pfedbred.runs.config_file import read_config


def warn(message: str) -> None:
    """A line on standard error."""
    print(f"pfedbred: warning: {message}", file=sys.stderr)


class OutOfMemory(SettingError, MemoryError):
    """The error for exhausted memory. ``saved`` says what is saved of the run."""

    def __init__(self, saved: str = "") -> None:
        advice = "use fewer clients, seeds or local steps, a smaller batch_size or model, or store file"
        super().__init__(f"out of memory: {advice}{saved and f'; {saved}'}")


@dataclass(frozen=True)
class FolderOptions:
    """How a run is kept in its folder.

    Attributes:
      checkpoint_every: rounds between checkpoints; 0 for none, None for one a minute.
      resume: whether to resume the run in the folder.
      keep_models: whether to keep the trained models; None if they are small.
      outcome: whether to write what a finished run leaves: its summary, picture and models.
      source: the folder to resume from, if it is not the one written into.
      warn: is called with warnings.
      extra: more content for summary.json.
    """

    checkpoint_every: int | None = None
    resume: bool = False
    keep_models: bool | None = None
    outcome: bool = True
    source: Path | None = None
    warn: Callable[[str], None] = warn
    extra: Callable[[Run[Any]], dict[str, Any]] | None = None


def run(
    experiment: Experiment | None = None,
    *,
    federation: Federation | Population | None = None,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: int | None = None,
    keep_models: bool | None = None,
    **options: Any,
) -> Run[Simulated]:
    """Runs an experiment.

    Args:
      experiment: what to run; or give its fields as ``options``. Where a field takes a name, it also takes an object.
      federation: custom data, instead of ``dataset``.
      out: folder for the run, as the command line writes it: configuration, metrics, checkpoints, models, picture and
        summary. Without it nothing is written.
      callbacks: called around rounds; see :class:`pfedbred.Callback`.
      resume: resume the interrupted run in ``out``, or start it if there is none; with more ``rounds``, a finished run
        continues. Fields that are not given are those of the run in ``out``.
      overwrite: replace the run in ``out``.
      checkpoint_every: rounds between checkpoints; 0 for none, None for one a minute.
      keep_models: whether to keep the trained models in ``out``, and those of the round chosen on validation samples
        while it trains; by default if they are small.
      **options: fields of :class:`pfedbred.Experiment`.

    Example:
      >>> import pfedbred
      >>> result = pfedbred.run(algorithm="pfedme", settings={"lam": 15.0}, rounds=2, clients=10)
      >>> result.accuracy("personal").shape  # evaluations, seeds
      (2, 1)
    """
    if not isinstance(experiment, Experiment | None):
        raise SettingError("run takes an Experiment or keywords, such as pfedbred.run(dataset='digits')")
    if federation is not None and options.get("dataset", Experiment.dataset) != Experiment.dataset:
        raise SettingError("give either a dataset or a federation, not both")
    if experiment is not None and options:
        raise TypeError("give either an experiment or its fields, not both")
    if resume and overwrite:
        raise SettingError("overwrite starts again and resume continues: give one of them")
    if not isinstance(federation, Federation | Population | None):
        raise SettingError(f"federation takes data, such as pfedbred.load('digits'), not {federation!r}")
    if checkpoint_every is not None and (type(checkpoint_every) is not int or checkpoint_every < 0):
        raise SettingError(f"checkpoint_every must be a whole number of rounds >= 0, not {checkpoint_every!r}")
    check_callbacks(callbacks)
    folder = folder_path(out)
    if experiment is None:
        given = {**options, "dataset": federation} if federation is not None else options
        if resume and folder is not None and layout.started(folder):
            given = recorded_options(folder, given)
        experiment = Experiment.from_mapping(given)
    elif federation is not None:
        experiment = experiment.on(federation)
    if folder is None:
        if resume or overwrite:
            raise SettingError("resume and overwrite need a run folder: give out=...")
        return train(build(experiment, federation), callbacks, keep_models=keep_models)
    built = build(experiment, federation)
    if resume and layout.finished(folder):
        before = read_config(folder / layout.CONFIG)
        if not has_more_rounds(before, built.experiment.plain()):
            raise SettingError(
                f"{folder} holds a finished run: give it more rounds than {before.get('rounds')}, read it with "
                "pfedbred.RunRecord.read, or choose another out"
            )
    with open_folder(folder, overwrite=overwrite, resume=resume):
        how = FolderOptions(checkpoint_every, resume, keep_models)
        return run_into(folder, built, callbacks, how)


_DEFAULT = FolderOptions()
S = TypeVar("S")


def run_into(
    folder: Path, built: Built[S], callbacks: Sequence[Callback] = (), how: FolderOptions = _DEFAULT
) -> Run[S]:
    """Runs into a folder whose lock the caller holds, or resumes the run that is in it."""
    source = how.source or folder
    start, metrics_size = None, 0
    if how.resume and layout.started(source):
        before = read_config(source / layout.CONFIG)
        check_unchanged(source, built.experiment.plain(), before, more_rounds=True)
        if "screening" not in before:
            now = "updates are now also screened by direction, and averaging weights capped"
            how.warn(f"resuming a run of an earlier version: {now}")
        found = latest_checkpoint(source, how.warn)
        if found:
            start, metrics_size = load_progress(source, built, found)
    metrics = MetricsWriter(folder, keep=metrics_size if source == folder else 0)
    kept = keeps_models(how.keep_models, built.experiment, built.backend) if how.outcome else how.keep_models
    saver = Checkpoints(folder, metrics, how.checkpoint_every, at_end=how.outcome and bool(kept))
    outcome: list[Callback] = []
    if how.outcome:
        outcome = [ModelWriter(folder, kept, how.warn), Pictures(folder), OutcomeFiles(folder, how.extra)]
    try:
        with writing_into(folder):
            for each in (*layout.leftovers(folder), folder / layout.SUMMARY):  # a resumed run is not finished
                each.unlink(missing_ok=True)
            if source == folder:
                checkpoints.remove_after(folder, start.round if start else 0)
        write_experiment(folder / layout.CONFIG, built.experiment.plain(), "run")
        # The outcome is written before a user's callback sees the end, and a checkpoint after it has seen a pause.
        return train(built, [metrics, *outcome, *callbacks, saver], start, folder, kept)
    except WriteError as problem:
        raise SettingError(f"{problem}; {what_is_saved(source)}") from None
    except (MemoryError, jax.errors.JaxRuntimeError) as problem:
        if not devices.is_out_of_memory(problem):
            raise
        raise OutOfMemory(what_is_saved(source)) from problem
