"""``pfedbred run`` and ``compare``."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from pfedbred import algorithms as algorithms_
from pfedbred import settings as settings_
from pfedbred.cli import options as options_
from pfedbred.cli.options import File, RunOptions
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment.building import Built, build, load_data
from pfedbred.experiment.callbacks import Callback, Interruption, Patience
from pfedbred.experiment.callbacks.display import showing_progress
from pfedbred.experiment.callbacks.stopping import EXIT_CODES, parse_seconds, process_started
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.resume import check_unchanged, open_folder
from pfedbred.experiment.run import FolderOptions, run_into
from pfedbred.io.atomic import write_json, writing_into
from pfedbred.report import curves
from pfedbred.report.terminal import show_federation, show_outcome, show_rejections, warn_of_divergence
from pfedbred.runs import checkpoints, layout
from pfedbred.runs.config_file import write_config
from pfedbred.runs.record import RunRecord


@options_.with_options([*options_.options_of(RunOptions), *options_.experiment_options()])
def run_command(file: File = None, **options: Any) -> None:
    """Run one algorithm and write a run folder."""
    how, given = _read(file, options)
    built = build(Experiment.from_mapping(given))
    plain = built.experiment.plain()
    if how.dry_run:
        print(yaml.safe_dump(plain, sort_keys=False), end="")
        return
    with _opened(how, built, plain, built.experiment.algorithm_name) as folder:
        records = _run_each(folder, {"": built}, how, "run")
        _show(records)
    _finish(folder, records)


@options_.with_options([*options_.options_of(RunOptions), *options_.experiment_options(without=("algorithm",))])
def compare_command(
    file: File = None,
    *,
    algorithms: Annotated[
        str | None, typer.Option(help="names separated by commas, or 'all' [default: fedavg,pfedme,mg-meta]")
    ] = None,
    **options: Any,
) -> None:
    """Run several algorithms on the same data and write one table."""
    how, given = _read(file, {"algorithms": algorithms, **options})
    in_file = [given.pop(name) for name in ("algorithms", "algorithm") if name in given]
    names = _algorithm_names(in_file[0] if in_file else "fedavg,pfedme,mg-meta")
    shared = given.pop("settings", {})
    experiments = [
        Experiment.from_mapping({**given, "algorithm": name, "settings": own})
        for name, own in zip(names, _settings_of_each(names, shared), strict=True)
    ]
    built = _build_alike(experiments)
    if how.dry_run:
        print(yaml.safe_dump([each.experiment.plain() for each in built], sort_keys=False), end="")
        return
    common = {k: value for k, value in built[0].experiment.plain().items() if k not in ("algorithm", "settings")}
    plain = {"algorithms": names, **common, "settings": dict(shared)}
    with _opened(how, built[0], plain, "compare") as folder:
        with writing_into(folder):
            write_config(folder / layout.CONFIG, plain, "compare")
        records = _run_each(folder, dict(zip(names, built, strict=True)), how, "compare")
        with writing_into(folder):
            write_json(folder / layout.TABLE, [record.summary for record in records])
            curves.draw_comparison(records, folder / layout.CURVES)
        _show(records)
    _finish(folder, records)


def _read(file: Path | None, options: dict[str, Any]) -> tuple[RunOptions, dict[str, Any]]:
    """How to run, and what: as the file, the options and, to resume, the run in the folder say."""
    how = RunOptions(**{name: options.pop(name) for name in RunOptions._fields})
    if how.time_limit is not None:
        parse_seconds(how.time_limit)  # rejected before the data is read
    return how, options_.with_recorded(how.out, how.resume, options_.merged(file, options, how.set_))


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
        return list(algorithms_.ALGORITHMS)
    if len(set(names)) != len(names):
        raise SettingError(f"an algorithm is named twice: {', '.join(names)}")
    return names


def _settings_of_each(names: Sequence[str], shared: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each algorithm takes the shared settings it has; a setting that none of them has is a mistake."""
    known = [settings_.declared(algorithms_.factory(name)) for name in names]
    for setting in shared:
        if not any(setting in each for each in known):
            every = sorted({name for each in known for name in each})
            raise SettingError(f"none of these algorithms has a setting {setting!r}{nearest(setting, every)}")
    return [{name: value for name, value in shared.items() if name in each} for each in known]


@contextmanager
def _opened(how: RunOptions, built: Built[Any], plain: Mapping[str, Any], what: str) -> Iterator[Path]:
    """The folder to run into, if the run in it may be resumed or replaced."""
    if how.overwrite and how.resume:
        raise SettingError("--overwrite starts again and --resume continues: give one of them")
    if how.resume and how.out and layout.started(how.out):
        check_unchanged(how.out, plain)
    folder = options_.chosen_folder(how.out, options_.run_name(built.experiment, what))
    with open_folder(folder, overwrite=how.overwrite, resume=how.resume):
        held_out = built.newcomers.clients if built.newcomers else 0
        show_federation(built.backend, held_out, built.experiment.aggregated or 0)
        yield folder


def _run_each(folder: Path, built: Mapping[str, Built[Any]], how: RunOptions, command: str) -> list[RunRecord]:
    """Runs one experiment after another, each into its folder below; those finished before are read."""
    records = []
    source = how.out if options_.scratch_folder() and how.out else folder
    saving = "" if how.checkpoint_every == 0 else ", then saving"
    limit = None if how.time_limit is None else parse_seconds(how.time_limit)
    interruption = Interruption(limit, process_started())
    experiments = [each.experiment for each in built.values()]
    with interruption.listening(saving), showing_progress(experiments) as displays:
        for (name, each), display in zip(built.items(), displays, strict=True):
            if how.resume and layout.finished(source / name):
                check_unchanged(source / name, each.experiment.plain())
                print(f"{source / name}: already finished")
                records.append(RunRecord.read(source / name))
                continue
            callbacks: list[Callback] = [display, interruption, *([Patience(how.patience)] if how.patience else [])]
            kept = FolderOptions(how.checkpoint_every, how.resume, how.keep_models, source=source / name)
            with open_folder(folder / name, overwrite=how.overwrite, resume=how.resume) if name else nullcontext():
                done = run_into(folder / name, each, callbacks, kept)
            if done.finished_early:
                print(f"{done.experiment.algorithm_name} finished after round {done.round}: {done.finished_early}")
            if done.stopped is not None:
                print(f"stopped ({done.stopped}) after round {done.round} of {done.experiment.rounds}")
                if how.checkpoint_every != 0:
                    print(f"to resume: pfedbred {command} --resume --out {shlex.quote(str(source))}{_repeated(how)}")
                raise typer.Exit(EXIT_CODES.get(done.stopped, 1))
            if done.diverged is not None and checkpoints.files(folder / name):
                print(f"the last checkpoint before that: {checkpoints.files(folder / name)[0]}")
            records.append(done.record())
    return records


def _repeated(how: RunOptions) -> str:
    """The options that no file records, to be given again when the run is resumed."""
    text = "" if how.checkpoint_every is None else f" --checkpoint-every {how.checkpoint_every}"
    text += "" if how.patience is None else f" --patience {how.patience}"
    return text + {None: "", True: " --keep-models", False: " --no-models"}[how.keep_models]


def _show(records: Sequence[RunRecord]) -> None:
    summaries = [record.summary for record in records]
    show_outcome(summaries)
    show_rejections(summaries)
    warn_of_divergence(records)
    sys.stdout.flush()


def _finish(folder: Path, records: Sequence[RunRecord]) -> None:
    print(f"run:     {folder}\npicture: {folder / layout.CURVES}")
    if all(record.diverged is not None for record in records):
        raise typer.Exit(1)
