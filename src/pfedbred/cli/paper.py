"""``pfedbred paper``: the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pfedbred import paper
from pfedbred.cli.options import Track
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment.callbacks import Interruption, Stopped, trackers
from pfedbred.experiment.callbacks.stopping import EXIT_CODES, parse_seconds, process_started
from pfedbred.io.folders import ensure_folder
from pfedbred.report import terminal


def paper_command(
    name: Annotated[str | None, typer.Argument(help="what to reproduce: see --list")] = None,
    *,
    columns: Annotated[
        str | None, typer.Option(help="columns of the tables, separated by commas; by default the paper's")
    ] = None,
    rows: Annotated[str | None, typer.Option(help="rows of the tables, separated by commas; by default all")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="number of seeds, run side by side")] = 5,
    rounds: Annotated[int | None, typer.Option(min=1, help="rounds of training; by default the paper's")] = None,
    run: Annotated[
        bool | None,
        typer.Option("--run/--no-run", help="run missing cells; by default yes, but no for curves"),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            min=1, help="methods of a table to run at once, each in its own process, if one alone does not fill the GPU"
        ),
    ] = 1,
    out: Annotated[Path, typer.Option(help="folder for records, tables and pictures")] = Path("results"),
    data_dir: Annotated[str | None, typer.Option(help="folder with the data")] = None,
    federations: Annotated[
        Path | None, typer.Option(help="folder of prepared federations such as mnist-paper.fed, used where they exist")
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            help="stop before this much time has passed: 90s, 30m or 1h30m; cells are saved, other parts finished",
            metavar="TIME",
        ),
    ] = None,
    track: Track = None,
    list_: Annotated[bool, typer.Option("--list", help="list what can be reproduced, and exit")] = False,
) -> None:
    """Reproduce a table or a figure of the paper.

    Finished parts are not run again.

    \b
    pfedbred paper --list
    pfedbred paper table2 --columns mnist-mclr --rows fedavg,mg-meta
    """
    if list_ or name is None:
        for each, artifact in paper.ARTIFACTS.items():
            print(f"{each:<12} {artifact.words}")
        print("\ncolumns:")
        for each, column in paper.ALL.items():
            print(f"  {each:<16} {column.title}, {column.rounds} rounds")
        return
    if name not in paper.ARTIFACTS:
        raise SettingError(f"the paper has no {name!r}{nearest(name, paper.ARTIFACTS)}")
    if rows and not paper.ARTIFACTS[name].has_rows:
        raise SettingError(f"--rows does not apply to {name}: it has no rows")
    if run is not None and paper.ARTIFACTS[name].runs is None:
        raise SettingError(f"--run and --no-run do not apply to {name}: it always runs what is missing")
    if jobs > 1 and not paper.ARTIFACTS[name].in_jobs:
        raise SettingError(f"--jobs does not apply to {name}: its parts are run one after the other")
    if track is not None and not paper.ARTIFACTS[name].tracked:
        raise SettingError(f"--track does not apply to {name}: its runs are not recorded one by one")
    recorded_with = trackers.parse(track)
    trackers.named(recorded_with)  # a missing package is reported before anything is run
    interruption = Interruption(parse_seconds(time_limit) if time_limit else None, process_started())
    ensure_folder(out)
    request = paper.Request(
        out,
        paper.Federations(data_dir, federations),
        columns=_names(columns),
        rows=_names(rows),
        seeds=seeds,
        rounds=rounds,
        run=bool(paper.ARTIFACTS[name].runs if run is None else run),
        jobs=jobs,
        track=recorded_with,
        say=lambda line: print(line, flush=True),
        progress=terminal.progress,
        interruption=interruption,
    )
    try:
        paper.ARTIFACTS[name].make(request)
    except Stopped as stopped:
        print(f"{stopped}\nto resume: run the same command again")
        raise typer.Exit(EXIT_CODES[stopped.reason]) from None


def _names(text: str | None) -> list[str] | None:
    return [each.strip() for each in text.split(",") if each.strip()] if text else None
