"""Options that several commands share, and one option for each field of an experiment."""

from __future__ import annotations

import dataclasses
import inspect
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from pfedbred import algorithms, data
from pfedbred import settings as settings_
from pfedbred.cli import help_pages
from pfedbred.errors import SettingError, file_name, printable
from pfedbred.experiment import references
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.options import (
    DataOptions,
    ExecutionOptions,
    MethodOptions,
    ModelOptions,
    ProtocolOptions,
    TaskOptions,
)
from pfedbred.experiment.resume import recorded_options
from pfedbred.runs import layout
from pfedbred.runs.config_file import read_config
from pfedbred.settings.assignments import assignment

_PANELS: dict[type, str] = {
    DataOptions: help_pages.DATA,
    TaskOptions: help_pages.MODEL,
    ModelOptions: help_pages.MODEL,
    MethodOptions: help_pages.METHOD,
    ProtocolOptions: help_pages.TRAINING,
    ExecutionOptions: help_pages.EXECUTION,
}


def path(text: str) -> Path:
    """A path given by the user; an empty one, as from an unset variable, would be the current folder."""
    if not text:
        raise typer.BadParameter("it must not be empty")
    return Path(text)


File = Annotated[Path | None, typer.Argument(help="an experiment file in YAML; options given here override it")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="a hyper-parameter, such as lam=30; can be repeated; see 'pfedbred list mg-meta'",
        metavar="NAME=VALUE",
        rich_help_panel=help_pages.METHOD,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="folder for the results; by default a new one under runs/",
        parser=path,
        rich_help_panel=help_pages.OUTPUT,
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="replace the run in an existing folder", rich_help_panel=help_pages.OUTPUT)
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="resume the interrupted run in --out, or start it if there is none; with more --rounds, a finished "
        "run continues",
        rich_help_panel=help_pages.OUTPUT,
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        help="stop and save before this much time has passed: 90s, 30m or 1h30m",
        metavar="TIME",
        rich_help_panel=help_pages.OUTPUT,
    ),
]
Track = Annotated[
    str | None,
    typer.Option(
        help="also record with tensorboard, mlflow or wandb; several separated by commas",
        metavar="NAMES",
        rich_help_panel=help_pages.OUTPUT,
    ),
]


class RunOptions(NamedTuple):
    """How experiments are run: the options that ``run`` and ``compare`` share."""

    set_: Settings = None
    out: Out = None
    overwrite: Overwrite = False
    checkpoint_every: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="rounds between checkpoints; 0 for none [default: one a minute]",
            rich_help_panel=help_pages.OUTPUT,
        ),
    ] = None
    resume: Resume = False
    time_limit: TimeLimit = None
    patience: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="stop once P's validation accuracy (or RMSE; on test samples without --validation) has not improved "
            "for N evaluations",
            metavar="N",
            rich_help_panel=help_pages.OUTPUT,
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the resolved settings and exit", rich_help_panel=help_pages.OUTPUT)
    ] = False
    keep_models: Annotated[
        bool | None,
        typer.Option(
            "--keep-models/--no-models",
            help="keep the trained models in the run folder, for 'pfedbred export' [default: if under 1 GB]",
            rich_help_panel=help_pages.OUTPUT,
        ),
    ] = None
    track: Track = None


def with_options(added: Iterable[inspect.Parameter]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these options in place of its ``**options``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [each for each in inspect.signature(command, eval_str=True).parameters.values() if each.name != "options"]
        signature = inspect.Signature([*own, *added])
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        return command

    return decorate


def options_of(group: type[NamedTuple]) -> list[inspect.Parameter]:
    """One option for each field of the group."""
    return [_parameter(name, hint, group._field_defaults[name]) for name, hint in settings_.hints(group).items()]


def experiment_options(group: type = Experiment, *, without: Sequence[str] = ()) -> list[inspect.Parameter]:
    """One option for each field of an experiment, or of one group of its fields."""
    hints = settings_.hints(group)
    return [
        _experiment_option(field, hints[field.name])
        for field in dataclasses.fields(group)
        if field.metadata["help"] and field.name not in without
    ]


def _experiment_option(field: dataclasses.Field[Any], hint: Any) -> inspect.Parameter:
    flags = [f"--{field.name.replace('_', '-')}", *filter(None, [field.metadata["flag"]])]
    kind = bool if hint is bool else int if settings_.is_whole_number(hint) else str
    default = "" if field.default is None or hint is bool else f" [default: {field.default}]"
    panel = next(title for group, title in _PANELS.items() if field.name in group.__annotations__)
    text = field.metadata["help"] + default
    option = typer.Option(*flags, help=text, show_default=False, rich_help_panel=panel)
    return _parameter(field.name, Annotated[kind | None, option], None)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def merged(file: Path | None, options: Mapping[str, Any], assignments: Sequence[str] | None) -> dict[str, Any]:
    """The experiment file, overridden by the options given, overridden by --set."""
    given = _in_file(file) if file else {}
    given.update({name: value for name, value in options.items() if value is not None})
    settings = given.get("settings")
    if settings is not None and not isinstance(settings, dict):
        raise SettingError(f"settings must map names to values, not {settings!r}")
    if settings and file and options.get("algorithm"):
        known = algorithms.declared(references.resolve(options["algorithm"], "algorithm"))
        foreign = [name for name in settings if name not in known]
        if foreign:
            note(f"{options['algorithm']} has no {', '.join(foreign)}: ignored in {file}")
        settings = {name: value for name, value in settings.items() if name in known}
    own = [assignment(text) for text in assignments or ()]
    for name, _ in own:
        if sum(name == other for other, _ in own) > 1:
            raise SettingError(f"--set {name} is given more than once")
    given["settings"] = {**(settings or {}), **dict(own)}
    return given


def _in_file(file: Path) -> dict[str, Any]:
    """The options in an experiment file."""
    text = str(file)
    if "=" in text and not os.path.exists(file):  # False for a name too long
        raise SettingError(f"{text!r} is no file; settings are given as --set {shlex.quote(text)}")
    return read_config(file)


def with_recorded(out: Path | None, resume: bool, given: dict[str, Any]) -> dict[str, Any]:
    """To resume, options that are not given are those of the run in the folder."""
    if not resume:
        return given
    if out is None:
        raise SettingError("--resume needs --out, the folder of the run to resume")
    return recorded_options(out, given) if layout.started(out) else given


def note(words: str) -> None:
    """A note on standard error about something that is not an error, but may be unintended."""
    print(f"pfedbred: note: {printable(words)}", file=sys.stderr)


def note_ignored(asked: Experiment, used: Experiment) -> None:
    """A note if a choice of batch norm does not apply to the network."""
    if asked.batch_norm != used.batch_norm:
        note(f"{used.model_name} has no batch norm: --batch-norm {asked.batch_norm} has no effect")


def run_name(experiment: Experiment, what: str) -> str:
    """A name for a folder: dataset, model and method."""
    return f"{file_name(data.short_name(experiment.dataset_name))}-{experiment.model_name}-{what}"


_scratch: tempfile.TemporaryDirectory[str] | None = None


def write_to_scratch() -> None:
    """Makes this process, one of several of a run but not the first, write into a temporary folder."""
    global _scratch
    _scratch = tempfile.TemporaryDirectory(prefix="pfedbred-")


def scratch_folder() -> Path | None:
    """The temporary folder of a process that is not the first; None in the first."""
    return Path(_scratch.name) if _scratch else None


def chosen_folder(out: Path | None, name: str) -> Path:
    """Where to write: as requested, or a new name under runs/."""
    return scratch_folder() or out or layout.free_name(Path("runs"), file_name(name, 200))
