"""``pfedbred sweep``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer

from pfedbred.cli import options as options_
from pfedbred.cli.help_pages import SWEEP
from pfedbred.cli.options import File, Out, Overwrite, Resume, Settings, TimeLimit, Track
from pfedbred.cli.run import Around
from pfedbred.errors import SettingError
from pfedbred.experiment import samplers
from pfedbred.experiment.callbacks import Stopped, trackers
from pfedbred.experiment.callbacks.stopping import EXIT_CODES
from pfedbred.experiment.command import command
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.resume import open_folder
from pfedbred.experiment.sweep import Observed, prepare, sweep_into
from pfedbred.experiment.sweep_folder import check_same
from pfedbred.experiment.sweep_plan import SweepPlan
from pfedbred.report.sweeps import show_sweep
from pfedbred.report.terminal import progress
from pfedbred.runs import layout
from pfedbred.runs.schema import read_sweep
from pfedbred.settings.assignments import assignment


class PlanOptions(NamedTuple):
    """Which points are tried, and how they are chosen."""

    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            help="values of a hyper-parameter, such as eta=0.01:0.5:8 or lam=5,15, or a range to draw from, eta=0:0.5 "
            "or lam=log:0.1:100; can be repeated",
            rich_help_panel=SWEEP,
        ),
    ] = None
    random: Annotated[
        int | None,
        typer.Option("--random", min=1, help="number of points to draw at random", metavar="N", rich_help_panel=SWEEP),
    ] = None
    points: Annotated[
        int | None,
        typer.Option(min=1, help="number of points for the sampler to choose", metavar="N", rich_help_panel=SWEEP),
    ] = None
    sampler: Annotated[
        str | None,
        typer.Option(
            help=f"how points are chosen: {', '.join(samplers.SAMPLERS)} (all but random are Optuna's)",
            rich_help_panel=SWEEP,
        ),
    ] = None
    halving: Annotated[
        bool | None,
        typer.Option(
            "--halving", help="successive halving: repeatedly stop the worse half of the points", rich_help_panel=SWEEP
        ),
    ] = None
    choose_on_test: Annotated[
        bool | None,
        typer.Option(
            "--choose-on-test",
            help="choose on the test samples; the reported figures are then optimistically biased",
            rich_help_panel=SWEEP,
        ),
    ] = None


@options_.with_options([*options_.options_of(PlanOptions), *options_.experiment_options()])
def sweep_command(
    file: File = None,
    *,
    set_: Settings = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    time_limit: TimeLimit = None,
    track: Track = None,
    **options: Any,
) -> None:
    """Try many settings of one algorithm, as one program.

    The best point is chosen on validation samples.

    \b
    pfedbred sweep --algorithm mg-meta --grid lam=5,15,30 --grid eta=0.01:0.5:8
    pfedbred sweep --algorithm ditto --grid lam=log:0.01:10 --grid alpha=log:0.003:0.3 --random 20
    """
    if overwrite and resume:
        raise SettingError("--overwrite starts again and --resume continues: give one of them")
    interruption, recording = Around.read(time_limit, track)
    asked = {name: options.pop(name) for name in PlanOptions._fields}
    given = options_.with_recorded(out, resume, options_.merged(file, options, set_))
    plan = _plan(asked, given.pop("sweep", None))
    for name, _ in map(assignment, set_ or ()):
        if name in plan.grid:
            raise SettingError(f"{name} is in the grid and in --set: give it once")
    experiment = Experiment.from_mapping(given)
    name = experiment.algorithm_name
    if resume and out and (out / layout.SWEEP).exists():
        check_same(out, experiment, plan)
        print(f"{out}: already finished")
        _show(read_sweep(out / layout.SWEEP))
        return
    notes: list[str] = []
    sweeping = prepare(experiment, plan, note=notes.append)  # rejects what it must before there is a folder
    chosen = options_.chosen_folder(out, options_.run_name(experiment, f"{name}-sweep"))
    with open_folder(chosen, overwrite=overwrite, resume=resume) as folder, interruption.listening():
        for each in notes:
            options_.note(each)
        callbacks = [interruption, *trackers.placed(recording, trackers.Group(folder.name, folder))]
        try:
            with progress(f"{name} sweep") as advance:
                finished = sweep_into(folder, sweeping, [Observed(advance), *callbacks], resume=resume)
        except Stopped as stopped:
            again = "" if track is None else f" --track {shlex.quote(track)}"
            print(f"{stopped}\nto resume: pfedbred sweep --resume --out {shlex.quote(str(out or folder))}{again}")
            raise typer.Exit(EXIT_CODES.get(stopped.reason, 1)) from None
        options_.note_ignored(experiment, finished.experiment)
    _show(read_sweep(folder / layout.SWEEP))
    print(f"run:     {folder}\npicture: {folder / layout.HEATMAP}")


def _show(record: Mapping[str, Any]) -> None:
    """The table of the points, and the command that runs the best one."""
    show_sweep(record)
    experiment = record["experiment"]
    words = command({**experiment, "settings": {**experiment["settings"], **record["best"]}})
    if words:
        print(f"to run the best point: {words}")


def _plan(asked: Mapping[str, Any], recorded: Any) -> SweepPlan:
    """How points are chosen: as requested, else as in the file of an earlier sweep."""
    new = dict(asked)
    drawn = new.pop("random")
    if drawn is not None:
        if new["points"] is not None or new["sampler"] not in (None, samplers.RANDOM):
            raise SettingError("--random draws points at random: leave --points and --sampler out")
        new |= {"points": drawn, "sampler": samplers.RANDOM}
    return SweepPlan.read(recorded, {name: value for name, value in new.items() if value is not None})
