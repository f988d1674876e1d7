"""``pfedbred run``, ``compare`` and ``sweep``."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
import yaml

from pfedbred import algorithms, data
from pfedbred import settings as settings_
from pfedbred.engine import Simulation
from pfedbred.errors import SettingError, file_name, nearest
from pfedbred.experiment.configuration import Experiment, Prepared
from pfedbred.experiment.keeping import Keeping, as_it_was, begun, finished, one_line, opened, refuse_changes, run_into
from pfedbred.experiment.loop import Run
from pfedbred.experiment.stopping import CODES, Stopping, process_begun, seconds
from pfedbred.experiment.sweep import parse_grid, sweep
from pfedbred.report import curves, heatmap
from pfedbred.report.terminal import (
    progress,
    show_federation,
    show_outcome,
    show_sweep,
    tell_of_sick_clients,
    warn_of_divergence,
    watching,
)
from pfedbred.runs import checkpoints, records
from pfedbred.settings.assignments import assignment

File = Annotated[Optional[Path], typer.Argument(help="an experiment file in YAML; options given here override it")]  # noqa: UP045
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", help="a hyper-parameter, such as lam=30; repeat for more", metavar="NAME=VALUE"),
]
Out = Annotated[Path | None, typer.Option("--out", help="folder for the results; a free name under runs/ if not given")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace the run in an existing folder")]
KeepModels = Annotated[
    Optional[bool],  # noqa: UP045
    typer.Option(
        "--keep-models/--no-models",
        help="keep the trained models in the run folder, for 'pfedbred export' [default: if under 1 GB]",
        show_default=False,
    ),
]
CheckpointEvery = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        min=0,
        help="rounds between checkpoints, 0 for none [default: one a minute]",
        show_default=False,
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="go on with the run in --out where it stopped, or begin it if there is none")
]
TimeLimit = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="stop and save before so much time has passed: 90s, 30m or 1h30m", metavar="TIME"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the resolved settings and stop")]


def _experiment_options(*, without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command one option for each field of Experiment, so that a field is declared in one place."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [each for each in inspect.signature(command, eval_str=True).parameters.values() if each.name != "options"]
        added = []
        hints = settings_.hints(Experiment)
        for field in dataclasses.fields(Experiment):
            if field.name in ("settings", without):
                continue
            kind = int if settings_.is_whole_number(hints[field.name]) else str
            default = "" if field.default is None else f" [default: {field.default}]"
            option = typer.Option(
                f"--{field.name.replace('_', '-')}", help=field.metadata["help"] + default, show_default=False
            )
            annotation = Annotated[Optional[kind], option]  # type: ignore[valid-type]  # noqa: UP045
            added.append(
                inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            )
        signature = inspect.Signature([*own, *added])
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        return command

    return decorate


@_experiment_options(without="")
def run_command(
    file: File = None,
    *,
    set_: Settings = None,
    out: Out = None,
    overwrite: Overwrite = False,
    checkpoint_every: CheckpointEvery = None,
    resume: Resume = False,
    time_limit: TimeLimit = None,
    dry_run: DryRun = False,
    keep_models: KeepModels = None,
    **options: Any,
) -> None:
    """Run one algorithm and write a run folder."""
    keeping = _keeping(checkpoint_every, time_limit, resume, keep_models)
    given = _as_before(out, resume, _merged(file, options, set_))
    prepared = Experiment.from_mapping(given).prepare()
    experiment = prepared.experiment
    if dry_run:
        print(yaml.safe_dump(records.plain(experiment), sort_keys=False), end="")
        return
    if resume and out and begun(out):
        refuse_changes(out, records.plain(experiment))
    with _opened(out, overwrite, resume, _run_name(experiment, experiment.algorithm), keeping) as folder:
        show_federation(prepared)
        done, summary = _run_each("run", folder, {"": prepared}, keeping)[0]
        show_outcome([summary])
        tell_of_sick_clients([summary])
        warn_of_divergence([done])
    _show_place(folder)
    if done.diverged is not None:
        raise typer.Exit(1)


@_experiment_options(without="algorithm")
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
    dry_run: DryRun = False,
    keep_models: KeepModels = None,
    **options: Any,
) -> None:
    """Run several algorithms on the same data and write one table."""
    keeping = _keeping(checkpoint_every, time_limit, resume, keep_models)
    if algorithm is not None:
        options["algorithms"] = algorithm
    given = _as_before(out, resume, _merged(file, options, set_))
    in_file = [given.pop(name) for name in ("algorithms", "algorithm") if name in given]
    names = _algorithm_names(in_file[0] if in_file else "fedavg,pfedme,mg-meta")
    shared = given.pop("settings", {})
    experiments = [
        Experiment.from_mapping({**given, "algorithm": name, "settings": own})
        for name, own in zip(names, _settings_of_each(names, shared), strict=True)
    ]
    federation = experiments[0].federation()
    prepared = _same_store([experiment.prepare(federation) for experiment in experiments], federation)
    experiments = [each.experiment for each in prepared]
    if dry_run:
        print(yaml.safe_dump([records.plain(each) for each in experiments], sort_keys=False), end="")
        return
    first = experiments[0]
    common = {name: value for name, value in records.plain(first).items() if name not in ("algorithm", "settings")}
    options = {"algorithms": names, **common, "settings": dict(shared)}
    if resume and out and begun(out):
        refuse_changes(out, options)
    with _opened(out, overwrite, resume, _run_name(first, "compare"), keeping) as folder:
        show_federation(prepared[0])
        with one_line(folder):
            records.write_config(folder, options, "compare")
        runs = _run_each("compare", folder, dict(zip(names, prepared, strict=True)), keeping)
        summaries = [summary for _, summary in runs]
        with one_line(folder):
            records.write_json(folder / "table.json", summaries)
            curves.draw_comparison([done for done, _ in runs], folder / "curves.png")
        show_outcome(summaries)
        tell_of_sick_clients(summaries)
        warn_of_divergence([done for done, _ in runs])
    _show_place(folder)
    if all(done.diverged is not None for done, _ in runs):
        raise typer.Exit(1)


@_experiment_options(without="")
def sweep_command(
    file: File = None,
    *,
    grid: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--grid", help="values of a hyper-parameter, such as eta=0.01:0.5:8 or lam=5,15; repeat for more"),
    ] = None,
    set_: Settings = None,
    out: Out = None,
    overwrite: Overwrite = False,
    **options: Any,
) -> None:
    """Run one algorithm with many values of its hyper-parameters, as one program, and show the best."""
    values = parse_grid(grid or [])
    for name, _ in map(assignment, set_ or ()):
        if name in values:
            raise SettingError(f"{name} is in the grid and in --set: give it once")
    experiment = Experiment.from_mapping(_merged(file, options, set_))
    folder = _folder(out, overwrite, _run_name(experiment, f"{experiment.algorithm}-sweep"))
    with progress(f"{experiment.algorithm}, {math.prod(map(len, values.values()))} points") as advance:
        finished = sweep(experiment, values, observe=advance)
    with one_line(folder):
        facts = records.write_sweep(finished, folder)
        heatmap.draw_points(facts, folder / "heatmap.png")
    show_sweep(finished)
    print(f"run:     {folder}\npicture: {folder / 'heatmap.png'}")


def _merged(file: Path | None, options: Mapping[str, Any], assignments: Sequence[str] | None) -> dict[str, Any]:
    """The experiment file, overridden by the options given, overridden by --set."""
    given = records.read_config(file) if file else {}
    given.update({name: value for name, value in options.items() if value is not None})
    settings = given.get("settings")
    if settings is not None and not isinstance(settings, dict):
        raise SettingError(f"settings must be names with values, not {settings!r}")
    if settings and file and options.get("algorithm"):
        known = settings_.declared(algorithms.factory(options["algorithm"]))
        foreign = [name for name in settings if name not in known]
        if foreign:
            note = f"{options['algorithm']} has no {', '.join(foreign)}: left out of {file}'s settings"
            print(f"pfedbred: note: {note}", file=sys.stderr)
        settings = {name: value for name, value in settings.items() if name in known}
    own = [assignment(text) for text in assignments or ()]
    for name, _ in own:
        if sum(name == other for other, _ in own) > 1:
            raise SettingError(f"--set {name} is given more than once")
    given["settings"] = {**(settings or {}), **dict(own)}
    return given


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
    """Each algorithm takes the shared settings it knows; one that none of them knows is a mistake."""
    known = [settings_.declared(algorithms.factory(name)) for name in names]
    for setting in shared:
        if not any(setting in each for each in known):
            every = sorted({name for each in known for name in each})
            raise SettingError(f"none of these algorithms has a setting {setting!r}{nearest(setting, every)}")
    return [{name: value for name, value in shared.items() if name in each} for each in known]


def stay_silent() -> None:
    """All processes do the same; the first one speaks and writes, the others into nothing."""
    global _elsewhere
    _elsewhere = tempfile.TemporaryDirectory(prefix="pfedbred-")
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  (until the process ends)


_elsewhere: tempfile.TemporaryDirectory[str] | None = None


def _folder(out: Path | None, overwrite: bool, name: str) -> Path:
    return records.make_folder(_place(out, name), overwrite)


def _place(out: Path | None, name: str) -> Path:
    return Path(_elsewhere.name) if _elsewhere else out or records.free_name(Path("runs"), file_name(name, 200))


def _data_name(experiment: Experiment) -> str:
    """The dataset as part of a folder's name."""
    return file_name(Path(experiment.dataset).stem if data.is_file(experiment.dataset) else experiment.dataset)


def _show_place(folder: Path) -> None:
    print(f"run:     {folder}\npicture: {folder / 'curves.png'}")


def _run_name(experiment: Experiment, what: str) -> str:
    return f"{_data_name(experiment)}-{experiment.model}-{what}"


def _keeping(every: int | None, time_limit: str | None, resume: bool, models: bool | None) -> Keeping:
    limit = None if time_limit is None else seconds(time_limit)
    return Keeping(every, Stopping(limit, process_begun()), resume, models=models, warn=_warn)


def _warn(message: str) -> None:
    print(f"pfedbred: warning: {message}", file=sys.stderr)


def _as_before(out: Path | None, resume: bool, given: dict[str, Any]) -> dict[str, Any]:
    """To resume, what is not given is as it was."""
    if not resume:
        return given
    if out is None:
        raise SettingError("--resume needs --out, the folder of the run to go on with")
    if not begun(out):
        return given
    before = records.read_config(out / "config.yaml")
    old = before.get("settings") if before.get("algorithm") == given.get("algorithm", before.get("algorithm")) else {}
    if old is not None and not isinstance(old, dict):
        raise SettingError(f"{out / 'config.yaml'}: settings must be names with values, not {old!r}")
    return {**before, **given, "settings": {**(old or {}), **given["settings"]}}


@contextmanager
def _opened(out: Path | None, overwrite: bool, resume: bool, name: str, keeping: Keeping) -> Iterator[Path]:
    """The folder to run into."""
    if overwrite and resume:
        raise SettingError("--overwrite begins again and --resume goes on: give one of them")
    keeping.overwrite = overwrite
    if _elsewhere:
        keeping.source = out
    with opened(_place(out, name), overwrite=overwrite, resume=resume) as folder:
        yield folder


def _way(keeping: Keeping) -> str:
    """The options that a run is to go on with."""
    every = "" if keeping.every is None else f" --checkpoint-every {keeping.every}"
    return every + {None: "", True: " --keep-models", False: " --no-models"}[keeping.models]


def _run_each(
    command: str, folder: Path, prepared: Mapping[str, Prepared], keeping: Keeping
) -> list[tuple[Run, dict[str, Any]]]:
    """Runs one after another, each into its folder below, with its summary; those finished before are read."""
    results = []
    source = keeping.source or folder
    saving = "" if keeping.every == 0 else ", then saving"
    with keeping.stopping.listening(saving), watching([each.experiment for each in prepared.values()]) as watchers:
        for (name, each), watcher in zip(prepared.items(), watchers, strict=True):
            if keeping.resume and finished(source / name):
                refuse_changes(source / name, records.plain(each.experiment))
                print(f"{source / name}: finished before")
                results.append(as_it_was(source / name, each))
                continue
            again = {"resume": keeping.resume, "overwrite": keeping.overwrite}
            with opened(folder / name, **again) if name else nullcontext():
                done = run_into(folder / name, each, watcher, dataclasses.replace(keeping, source=source / name))
            if done.stopped:
                print(f"stopped ({done.stopped}) after round {done.round} of {each.experiment.rounds}")
                if keeping.every != 0:
                    print(f"to go on: pfedbred {command} --resume --out {shlex.quote(str(source))}{_way(keeping)}")
                raise typer.Exit(CODES[done.stopped])
            if done.diverged is not None and checkpoints.files(folder / name):
                print(f"the last checkpoint before that: {checkpoints.files(folder / name)[0]}")
            results.append((done, records.summary(done)))
    return results


def _same_store(prepared: list[Prepared], federation: Any) -> list[Prepared]:
    """Runs that are compared score the same clients: if one of them must be streamed, all are."""
    stores = [each.simulation.store for each in prepared if not isinstance(each.simulation, Simulation)]
    if not stores or len(stores) == len(prepared):
        return prepared
    store: Any = "file" if "file" in stores else "memory"
    return [dataclasses.replace(each.experiment, store=store).prepare(federation) for each in prepared]
