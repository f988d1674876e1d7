"""Running a table of the paper: every method in every column, measured beside printed.

A cell is one run with all seeds, recorded in ``cells/TABLE/COLUMN/ROW.json``, or in ``ROW-splitSEED.json`` on another
split of the data. A cell that was recorded with the same settings is not run again, so an interrupted table
continues where it stopped, and its parts can be run on different days. While a cell runs, the folder ``ROW.run`` beside
its record holds the checkpoints.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from itertools import product
from pathlib import Path
from typing import Any

from pfedbred.engine.history import Point
from pfedbred.errors import SettingError
from pfedbred.experiment.building import Built, build
from pfedbred.experiment.callbacks import Callback, Interruption, Stopped
from pfedbred.experiment.progress import Progress
from pfedbred.experiment.result import Run
from pfedbred.experiment.resume import check_unchanged, open_folder
from pfedbred.experiment.run import FolderOptions, run_into
from pfedbred.io.atomic import write_json, write_text
from pfedbred.paper.cells import CELL, Cell, best_of, measured, read_cells
from pfedbred.paper.columns import ALL
from pfedbred.paper.markdown import markdown, mean_and_std_text
from pfedbred.paper.records import Request, chosen, fingerprint, load_or_measure
from pfedbred.paper.rows import Split, Table
from pfedbred.paper.splits import federation_of
from pfedbred.runs import layout, locks


def run_table(table: Table, request: Request) -> list[Cell]:
    """Runs the missing cells of a table, then writes all recorded ones to ``NAME.json`` and ``NAME.md``."""
    columns = chosen("column", ALL, request.columns or table.columns)
    rows = chosen("row", table.rows, request.rows)
    if request.run:
        _run_missing(table, columns, rows, request)
    cells = read_cells(table, request.out)
    if not cells:
        raise SettingError(f"{request.out} has no records of the table {table.name}")
    write_json(request.out / f"{table.name}.json", [cell.plain() for cell in cells])
    write_text(request.out / f"{table.name}.md", markdown(table, cells))
    asked = markdown(table, [cell for cell in cells if cell.column in columns and cell.row in rows])
    request.say(f"\n{asked}\ntable: {request.out / table.name}.md")
    return cells


def _run_missing(table: Table, columns: Sequence[str], rows: Sequence[str], request: Request) -> None:
    problems: list[SettingError] = []
    for column, split, row in product(columns, table.splits, rows):
        try:
            run_cell(table, column, row, request, split)
        except SettingError as problem:  # the other cells may still run
            problems.append(problem)
            request.say(f"{_name(table, column, row, split)}: cannot be run: {problem}")
    if len(problems) == len(columns) * len(table.splits) * len(rows):
        raise problems[0]


def _name(table: Table, column: str, row: str, split: Split) -> str:
    return f"{table.name} {column} {row}" + ("" if split is None else f", split {split}")


def run_cell(table: Table, column_name: str, row_name: str, request: Request, split: Split = None) -> dict[str, Any]:
    """The record of a cell: read if it was run with these settings, else run and written."""
    column, row = ALL[column_name], table.rows[row_name]
    experiment = row.experiment(column, seeds=request.seeds, rounds=request.rounds)
    file = table.record_file(request.out, column_name, row_name, split)
    name, work = _name(table, column_name, row_name, split), file.with_suffix(".run")
    held = ExitStack()  # holds the folder's lock until the record is written

    def measure() -> dict[str, Any]:
        request.stop_if_wanted(name)
        federation = federation_of(request.federations, column, split)
        asked = "aggregated" in row.options  # the row is about their number, which must not be adapted
        built = build(experiment if asked else column.fitted(experiment, federation), federation)
        held.enter_context(open_folder(work, resume=True))
        finished = _run(built, work, name, request)
        facts = {"column": column_name, "row": file.stem, "data": federation.facts}
        seconds = {"seconds": round(finished.total_seconds, 1)}
        return {**facts, "aggregated": finished.experiment.aggregated, **seconds, **measured(finished)}

    wanted = fingerprint(experiment.checked()) | ({} if split is None else {"split_seed": split})
    with held:
        record, new = load_or_measure(file, wanted, measure, CELL)
        if work.is_dir():  # its checkpoints are no longer needed
            with suppress(locks.InUse), nullcontext() if new else locks.locked(work):
                shutil.rmtree(work, ignore_errors=True)
    if request.federations.given and record.get("data", {}) not in (
        {},
        federation_of(request.federations, column, split).facts,
    ):
        raise SettingError(f"{file} was measured on other data, {record['data']}: choose another --out, or remove it")
    time_ = f"{record['seconds']:.0f} s" if new else "already done"
    figures = "  ".join(f"{model} {mean_and_std_text(*best_of(record[model]))}" for model in "GP")
    request.say(f"{name}: {figures}, {time_}")
    return record


class _Advance(Callback):
    """Moves the table's progress bar."""

    def __init__(self, advance: Callable[[int, int], None]) -> None:
        self._advance = advance

    def on_evaluation(self, progress: Progress[Any], point: Point) -> None:
        self._advance(point.round, progress.experiment.rounds)


def _run(built: Built[Any], folder: Path, name: str, request: Request) -> Run[Any]:
    """Runs an experiment, or resumes it from its folder."""
    rounds = built.experiment.rounds
    if layout.started(folder):
        try:
            check_unchanged(folder, built.experiment.plain())
        except SettingError as problem:
            raise SettingError(f"{problem}: choose another --out, or remove that folder") from None
    interruption = request.interruption or Interruption()
    listening = interruption.listening() if request.interruption else nullcontext()
    with listening, request.progress(name) as advance:
        how = FolderOptions(resume=True, outcome=False, warn=request.say)
        done = run_into(folder, built, [_Advance(advance), interruption], how)
    if done.stopped:
        raise Stopped(done.stopped, f"{name}: stopped ({done.stopped}) after round {done.round} of {rounds}")
    return done
