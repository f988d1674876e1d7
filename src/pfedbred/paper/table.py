"""A table of the paper: every method in every column, measured beside printed.

A cell is one run with all seeds, recorded in ``cells/TABLE/COLUMN/ROW.json``. A cell that was recorded with the same
settings is not run again, so an interrupted table continues where it stopped, and its parts can be run on different
days. While a cell runs, the folder ``ROW.run`` beside its record holds the checkpoints.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.engine.history import Point
from pfedbred.engine.screening import stalled
from pfedbred.errors import SettingError
from pfedbred.experiment.building import Built, build
from pfedbred.experiment.callbacks import Callback, Interruption, Stopped
from pfedbred.experiment.progress import Progress
from pfedbred.experiment.result import Run
from pfedbred.experiment.resume import check_unchanged, open_folder
from pfedbred.experiment.run import FolderOptions, run_into
from pfedbred.io.atomic import write_json, write_text
from pfedbred.io.shapes import COUNT, NUMBER, Maybe, Some
from pfedbred.paper.columns import ALL, Column
from pfedbred.paper.printed import Printed
from pfedbred.paper.records import Request, chosen, fingerprint, load_or_measure, read_measured, record_file, rounded
from pfedbred.runs import layout, locks
from pfedbred.runs.schema import PLATFORM
from pfedbred.runs.statistics import evenly_spaced, mean_and_std

_CURVE = 100  # points of a curve in a record


class Row(NamedTuple):
    """A row of a table: an algorithm, and the options in which its experiment differs."""

    algorithm: str
    options: Mapping[str, Any] = {}  # never mutated


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
      name: of its files.
      title: its heading.
      rows: by name, in order.
      columns: names of the columns to run unless others are requested.
      printed: the paper's figures.
      models: which of G and P to show for a row; both if the row is not listed.
    """

    name: str
    title: str
    rows: Mapping[str, Row]
    columns: tuple[str, ...]
    printed: Printed = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)


class Cell(NamedTuple):
    """One figure of a table; accuracies are in percent, None if the run diverged."""

    column: str
    row: str
    model: str
    paper: float | None
    mean: float | None
    std: float | None
    n: int
    rounds: int
    best_round: int
    seconds: float
    client_mean: float | None
    worst_decile: float | None


def run_table(table: Table, request: Request) -> list[Cell]:
    """Runs the missing cells of a table, then writes all recorded ones to ``NAME.json`` and ``NAME.md``."""
    columns = chosen("column", ALL, request.columns or table.columns)
    rows = chosen("row", table.rows, request.rows)
    problems: list[SettingError] = []
    for column in columns:
        for row in rows:
            try:
                run_cell(table, column, row, request)
            except SettingError as problem:  # the other cells may still run
                problems.append(problem)
                request.say(f"{table.name} {column} {row}: cannot be run: {problem}")
    if len(problems) == len(columns) * len(rows):
        raise problems[0]
    cells = read_cells(table, request.out)
    write_json(request.out / f"{table.name}.json", [each._asdict() for each in cells])
    write_text(request.out / f"{table.name}.md", markdown(table, cells))
    asked = markdown(table, [cell for cell in cells if cell.column in columns and cell.row in rows])
    request.say(f"\n{asked}\ntable: {request.out / table.name}.md")
    return cells


def run_cell(table: Table, column_name: str, row_name: str, request: Request) -> dict[str, Any]:
    """The record of a cell: read if it was run with these settings, else run and written."""
    column, row = ALL[column_name], table.rows[row_name]
    experiment = column.experiment(row.algorithm, seeds=request.seeds, rounds=request.rounds, **row.options)
    file = record_file(request.out, table.name, column_name, row_name)
    name, work = f"{table.name} {column_name} {row_name}", file.with_suffix(".run")
    held = ExitStack()  # holds the folder's lock until the record is written

    def measure() -> dict[str, Any]:
        request.stop_if_wanted(name)
        federation = request.federations.of(column)
        asked = "aggregated" in row.options  # the row is about their number, which must not be adapted
        built = build(experiment if asked else column.fitted(experiment, federation), federation)
        held.enter_context(open_folder(work, resume=True))
        finished = _run(built, work, name, request)
        facts = {"column": column_name, "row": row_name, "data": federation.facts}
        seconds = {"seconds": round(finished.total_seconds, 1)}
        return {**facts, "aggregated": finished.experiment.aggregated, **seconds, **_measured(finished)}

    with held:
        record, new = load_or_measure(file, fingerprint(experiment.checked()), measure, CELL)
        if work.is_dir():  # its checkpoints are no longer needed
            with suppress(locks.InUse), nullcontext() if new else locks.locked(work):
                shutil.rmtree(work, ignore_errors=True)
    if request.federations.given and record.get("data", {}) not in ({}, request.federations.of(column).facts):
        raise SettingError(f"{file} was measured on other data, {record['data']}: choose another --out, or remove it")
    time_ = f"{record['seconds']:.0f} s" if new else "already done"
    figures = "  ".join(f"{model} {_mean_and_std(*best_of(record[model]))}" for model in "GP")
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


_OF_MODEL = {
    **{name: Some(Maybe(NUMBER)) for name in ("best", "client_mean", "worst_decile", "curve", "low", "high")},
    "best_round": Some(COUNT),
    "finite": bool,
}
CELL = {"rounds": Some(COUNT), "seconds": NUMBER, "G": _OF_MODEL, "P": _OF_MODEL, "platform": PLATFORM}


def _measured(finished: Run[Any]) -> dict[str, Any]:
    """Accuracies of both models: the best of each seed, its round, and the curve."""
    rounds = np.array([point.round for point in finished.points])
    keep = evenly_spaced(len(rounds), _CURVE)
    found: dict[str, Any] = {"rounds": rounds[keep].tolist()}
    last, in_row = finished.points[-1].scores, finished.points[-1].rejections.skipped_in_row
    moving = not np.any(stalled(in_row, finished.experiment.rounds))
    for name, model, scores in (("G", "global", last.global_.test), ("P", "personal", last.personal.test)):
        accuracy = 100 * finished.accuracy(model)  # type: ignore[arg-type]
        finite = moving and bool(np.isfinite(accuracy).all())
        found[name] = {
            "best": rounded(accuracy.max(axis=0)),
            "best_round": rounds[accuracy.argmax(axis=0)].tolist(),
            "final": rounded(accuracy[-1]),
            "client_mean": rounded(100 * np.nanmean(scores.client_accuracy, axis=1)),
            "worst_decile": rounded(100 * scores.worst_decile),
            "curve": rounded(accuracy[keep].mean(axis=1)),
            "low": rounded(accuracy[keep].min(axis=1)),
            "high": rounded(accuracy[keep].max(axis=1)),
            "finite": finite and bool(np.isfinite(scores.loss).all()),
        }
    return found


def best_of(of_model: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Mean and standard deviation of the best accuracy over seeds; None if a loss was not finite."""
    return mean_and_std(of_model["best"]) if of_model["finite"] else (None, None)


def read_cells(table: Table, out: Path) -> list[Cell]:
    """All measured figures, in the table's order."""
    cells = []
    for column in ALL:
        for row in table.rows:
            record = read_measured(record_file(out, table.name, column, row), CELL)
            if record is None:
                continue
            for model in table.models.get(row, "PG"):
                of_model = record[model]
                over_clients = [mean_and_std(of_model[kind])[0] for kind in ("client_mean", "worst_decile")]
                mean, std, client_mean, worst_decile = rounded([*best_of(of_model), *over_clients], 2)
                cells.append(
                    Cell(
                        column,
                        row,
                        model,
                        table.printed.get((column, row, model)),
                        mean,
                        std,
                        len(of_model["best"]),
                        record["rounds"][-1],
                        int(np.median(of_model["best_round"])),
                        record["seconds"],
                        client_mean,
                        worst_decile,
                    )
                )
    return cells


def markdown(table: Table, cells: Sequence[Cell]) -> str:
    """The table as Markdown: a section for each column, with measured and printed figures and their difference."""
    lines = [
        f"# {table.title}",
        "",
        "Test accuracy in percent: the best over the rounds, mean ± standard deviation over seeds. The mean over",
        "clients and the mean over the worst tenth of them are those of the last round.",
        "",
    ]
    for name in dict.fromkeys(cell.column for cell in cells):
        column = ALL[name]
        lines += [f"## {column.title}", ""]
        if column.not_compared:
            lines += [f"({_sentence(column.not_compared)}. The printed figures are for orientation only.)", ""]
        if column.note:
            lines += [f"({_sentence(column.note)}.)", ""]
        lines += [
            "| method | | measured | printed | difference | seeds | rounds | best round | client mean | worst tenth |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [_line(cell, column) for cell in cells if cell.column == name]
        lines.append("")
    return "\n".join(lines)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _mean_and_std(mean: float | None, std: float | None) -> str:
    return "diverged" if mean is None else f"{mean:.2f} ± {std:.2f}"


def _line(cell: Cell, column: Column) -> str:
    difference = column.difference(cell.mean, cell.paper)
    rest = ["" if each is None else f"{each:.2f}" for each in (cell.client_mean, cell.worst_decile)]
    parts = (
        *(cell.row, cell.model, _mean_and_std(cell.mean, cell.std)),
        "" if cell.paper is None else f"{cell.paper:.2f}",
        "" if difference is None else f"{difference:+.2f}",
        *map(str, (cell.n, cell.rounds, cell.best_round)),
        *rest,
    )
    return f"| {' | '.join(parts)} |"
