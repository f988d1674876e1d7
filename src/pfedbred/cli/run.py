"""``pfedbred run`` and ``compare``."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional

import typer
import yaml

from pfedbred import algorithms
from pfedbred import settings as settings_
from pfedbred.cli import options as options_
from pfedbred.cli.options import (
    CheckpointEvery,
    DryRun,
    File,
    KeepModels,
    Out,
    Overwrite,
    Resume,
    Settings,
    TimeLimit,
    chosen_folder,
    experiment_options,
    merged,
    run_name,
    scratch_folder,
    with_recorded,
)
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment.building import Built, build, load_data
from pfedbred.experiment.callbacks import Callback, Interruption, Patience
from pfedbred.experiment.callbacks.display import showing_progress
from pfedbred.experiment.callbacks.stopping import EXIT_CODES, parse_seconds, process_started
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.result import Run
from pfedbred.experiment.resume import check_unchanged, open_folder
from pfedbred.experiment.run import FolderOptions, run_into
from pfedbred.io.atomic import write_json, writing_into
from pfedbred.report import curves
from pfedbred.report.terminal import show_federation, show_outcome, show_rejections, warn_of_divergence
from pfedbred.runs import checkpoints, layout
from pfedbred.runs.config_file import write_config
from pfedbred.runs.record import RunRecord


@experiment_options()
def run_command(
    file: File = None,
    *,
    set_: Settings = None,
    out: Out = None,
    overwrite: Overwrite = False,
    checkpoint_every: CheckpointEvery = None,
    resume: Resume = False,
    time_limit: TimeLimit = None,
    patience: options_.Patience = None,
    dry_run: DryRun = False,
    keep_models: KeepModels = None,
    **options: Any,
) -> None:
    """Run one algorithm and write a run folder."""
    how = _How("run", FolderOptions(checkpoint_every, resume, keep_models), overwrite, time_limit, patience)
    given = with_recorded(out, resume, merged(file, options, set_))
    built = build(Experiment.from_mapping(given))
    experiment = built.experiment
    if dry_run:
        print(yaml.safe_dump(experiment.plain(), sort_keys=False), end="")
        return
    if resume and out and layout.started(out):
        check_unchanged(out, experiment.plain())
    with _opened(out, how, run_name(experiment, experiment.algorithm_name)) as folder:
        show_federation(built.backend, built.newcomers.clients if built.newcomers else 0)
        record = _run_each(folder, {"": built}, out, how)[0]
        _show([record])
    _show_place(folder)
    if record.diverged is not None:
        raise typer.Exit(1)


@experiment_options(without="algorithm")
def compare_command(
    file: File = None,
    *,
    algorithm: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--algorithms", help="names separated by commas, or 'all' [default: fedavg,pfedme,mg-meta]"),
    ] = None,
    set_: Settings = None,
    out: Out = None,
    overwrite: Overwrite = False,
    checkpoint_every: CheckpointEvery = None,
    resume: Resume = False,
    time_limit: TimeLimit = None,
    patience: options_.Patience = None,
    dry_run: DryRun = False,
    keep_models: KeepModels = None,
    **options: Any,
) -> None:
    """Run several algorithms on the same data and write one table."""
    how = _How("compare", FolderOptions(checkpoint_every, resume, keep_models), overwrite, time_limit, patience)
    if algorithm is not None:
        options["algorithms"] = algorithm
    given = with_recorded(out, resume, merged(file, options, set_))
    in_file = [given.pop(name) for name in ("algorithms", "algorithm") if name in given]
    names = _algorithm_names(in_file[0] if in_file else "fedavg,pfedme,mg-meta")
    shared = given.pop("settings", {})
    experiments = [
        Experiment.from_mapping({**given, "algorithm": name, "settings": own})
        for name, own in zip(names, _settings_of_each(names, shared), strict=True)
    ]
    built = _build_alike(experiments)
    if dry_run:
        print(yaml.safe_dump([each.experiment.plain() for each in built], sort_keys=False), end="")
        return
    first = built[0].experiment
    common = {name: value for name, value in first.plain().items() if name not in ("algorithm", "settings")}
    recorded = {"algorithms": names, **common, "settings": dict(shared)}
    if resume and out and layout.started(out):
        check_unchanged(out, recorded)
    with _opened(out, how, run_name(first, "compare")) as folder:
        show_federation(built[0].backend, built[0].newcomers.clients if built[0].newcomers else 0)
        with writing_into(folder):
            write_config(folder / layout.CONFIG, recorded, "compare")
        records = _run_each(folder, dict(zip(names, built, strict=True)), out, how)
        with writing_into(folder):
            write_json(folder / layout.TABLE, [record.summary for record in records])
            curves.draw_comparison(records, folder / layout.CURVES)
        _show(records)
    _show_place(folder)
    if all(record.diverged is not None for record in records):
        raise typer.Exit(1)


class _How(NamedTuple):
    """How a command runs its experiments."""

    command: str
    folder: FolderOptions
    overwrite: bool
    time_limit: str | None
    patience: int | None

    @property
    def again(self) -> str:
        """The options with which a run is to be resumed."""
        every, models = self.folder.checkpoint_every, self.folder.keep_models
        text = "" if every is None else f" --checkpoint-every {every}"
        text += "" if self.patience is None else f" --patience {self.patience}"
        return text + {None: "", True: " --keep-models", False: " --no-models"}[models]


def _build_alike(experiments: Sequence[Experiment]) -> list[Built[Any]]:
    """The experiments on the same data. If one of them must keep its clients off the device, all do: runs that are
    compared evaluate the same clients."""
    federation = load_data(experiments[0])
    built = [build(each, federation) for each in experiments]
    stores = {each.backend.store for each in built}
    if len(stores) == 1:
        return built
    store: Any = "file" if "file" in stores else "memory"
    return [build(dataclasses.replace(each.experiment, store=store), federation) for each in built]


def _algorithm_names(given: Any) -> list[str]:
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise SettingError(f"algorithms must be names such as fedavg,pfedme, not {given!r}")
    names = [name.strip() for name in names]
    if names == ["all"]:
        return list(algorithms.ALGORITHMS)
    if len(set(names)) != len(names):
        raise SettingError(f"an algorithm is named twice: {', '.join(names)}")
    return names


def _settings_of_each(names: Sequence[str], shared: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each algorithm takes the shared settings it has; a setting that none of them has is a mistake."""
    known = [settings_.declared(algorithms.factory(name)) for name in names]
    for setting in shared:
        if not any(setting in each for each in known):
            every = sorted({name for each in known for name in each})
            raise SettingError(f"none of these algorithms has a setting {setting!r}{nearest(setting, every)}")
    return [{name: value for name, value in shared.items() if name in each} for each in known]


@contextmanager
def _opened(out: Path | None, how: _How, name: str) -> Iterator[Path]:
    """The folder to run into."""
    if how.overwrite and how.folder.resume:
        raise SettingError("--overwrite starts again and --resume continues: give one of them")
    folder = chosen_folder(out, name)
    with open_folder(folder, overwrite=how.overwrite, resume=how.folder.resume):
        yield folder


def _run_each(folder: Path, built: Mapping[str, Built[Any]], out: Path | None, how: _How) -> list[RunRecord]:
    """Runs one experiment after another, each into its folder below; those finished before are read."""
    records = []
    source = out if scratch_folder() and out else folder
    saving = "" if how.folder.checkpoint_every == 0 else ", then saving"
    limit = None if how.time_limit is None else parse_seconds(how.time_limit)
    interruption = Interruption(limit, process_started())
    experiments = [each.experiment for each in built.values()]
    with interruption.listening(saving), showing_progress(experiments) as displays:
        for (name, each), display in zip(built.items(), displays, strict=True):
            if how.folder.resume and layout.finished(source / name):
                check_unchanged(source / name, each.experiment.plain())
                print(f"{source / name}: already finished")
                records.append(RunRecord.read(source / name))
                continue
            again = {"resume": how.folder.resume, "overwrite": how.overwrite}
            callbacks: list[Callback] = [display, interruption, *([Patience(how.patience)] if how.patience else [])]
            with open_folder(folder / name, **again) if name else nullcontext():
                options = dataclasses.replace(how.folder, source=source / name)
                done = run_into(folder / name, each, callbacks, options)
            _stop_here(done, source, how)
            if done.diverged is not None and checkpoints.files(folder / name):
                print(f"the last checkpoint before that: {checkpoints.files(folder / name)[0]}")
            records.append(done.record())
    return records


def _stop_here(done: Run[Any], source: Path, how: _How) -> None:
    """Ends the command if the run was interrupted."""
    if done.finished_early:
        print(f"{done.experiment.algorithm_name} finished after round {done.round}: {done.finished_early}")
    if done.stopped is None:
        return
    print(f"stopped ({done.stopped}) after round {done.round} of {done.experiment.rounds}")
    if how.folder.checkpoint_every != 0:
        print(f"to resume: pfedbred {how.command} --resume --out {shlex.quote(str(source))}{how.again}")
    raise typer.Exit(EXIT_CODES.get(done.stopped, 1))


def _show(records: Sequence[RunRecord]) -> None:
    summaries = [record.summary for record in records]
    show_outcome(summaries)
    show_rejections(summaries)
    warn_of_divergence(records)
    sys.stdout.flush()


def _show_place(folder: Path) -> None:
    print(f"run:     {folder}\npicture: {folder / layout.CURVES}")
