"""Running a table of the paper: every method in every column, measured beside printed.

A cell is one run with all seeds, recorded in ``cells/TABLE/COLUMN/ROW.json``, or in ``ROW-splitSEED.json`` on another
split of the data. A cell recorded with the same settings is not run again, so an interrupted table can be resumed, and
its parts can be run on different days or in parallel processes. While a cell runs, the folder ``ROW.run`` beside its
record holds the checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

from pfedbred.errors import SettingError
from pfedbred.io.atomic import write_json, write_text
from pfedbred.paper.cells import Cell, read_cells
from pfedbred.paper.columns import ALL
from pfedbred.paper.jobs import run_jobs
from pfedbred.paper.markdown import markdown
from pfedbred.paper.records import Request, chosen
from pfedbred.paper.rows import Table
from pfedbred.paper.running import SharedTraining, run_training


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
    asked = markdown(table, [cell for cell in cells if cell.column in columns and cell.row in rows], rows)
    request.say(f"\n{asked}\ntable: {request.out / table.name}.md")
    return cells


def _run_missing(table: Table, columns: Sequence[str], rows: Sequence[str], request: Request) -> None:
    jobs = [
        partial(run_training, table, SharedTraining(column, split, first, tuple(also)))
        for column, split, (first, *also) in product(columns, table.splits, table.trainings(rows))
    ]
    problems = run_jobs(jobs, request)
    if len(problems) == len(columns) * len(table.splits) * len(rows):
        raise problems[0]
