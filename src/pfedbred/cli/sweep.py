"""``pfedbred sweep``."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from pfedbred.cli import options as options_
from pfedbred.cli.options import File, Out, Overwrite, Settings
from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.resume import open_folder
from pfedbred.experiment.sweep import parse_grid, sweep
from pfedbred.io.atomic import write_json, writing_into
from pfedbred.report import heatmap
from pfedbred.report.terminal import progress, show_sweep
from pfedbred.runs import layout
from pfedbred.runs.config_file import write_config
from pfedbred.settings.assignments import assignment


@options_.with_options(options_.experiment_options())
def sweep_command(
    file: File = None,
    *,
    grid: Annotated[
        list[str] | None,
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
    experiment = Experiment.from_mapping(options_.merged(file, options, set_))
    name = experiment.algorithm_name
    chosen = options_.chosen_folder(out, options_.run_name(experiment, f"{name}-sweep"))
    with open_folder(chosen, overwrite=overwrite) as folder:
        with progress(f"{name}, {math.prod(map(len, values.values()))} points") as advance:
            finished = sweep(experiment, values, observe=advance)
        record = finished.record()
        with writing_into(folder):
            write_config(folder / layout.CONFIG, finished.experiment.plain(), "sweep --grid ...")
            write_json(folder / layout.SWEEP, record)
            heatmap.draw_points(record, folder / layout.HEATMAP)
    show_sweep(record)
    print(f"run:     {folder}\npicture: {folder / layout.HEATMAP}")
