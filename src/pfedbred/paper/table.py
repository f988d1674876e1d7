"""A table of the paper: every method in every column, measured beside printed.

Each cell is a run over all seeds and leaves a file, ``cells/TABLE/COLUMN/ROW.json``. A cell whose file says that it was
run with the same settings is not run again, so that an interrupted table goes on where it stopped, and so that its
parts can be run on different days. While a cell is run there is a folder ``ROW.run`` beside it with its checkpoints.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.engine.screening import stalled
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment import keeping
from pfedbred.experiment.configuration import Experiment, Prepared
from pfedbred.experiment.loop import Run
from pfedbred.experiment.stopping import Stopped, Stopping
from pfedbred.io import strict
from pfedbred.io.shapes import COUNT, NUMBER, Maybe, Some, expect
from pfedbred.paper.columns import ALL, Column, Federations
from pfedbred.paper.printed import Printed
from pfedbred.runs import locks, records

_CURVE = 100  # points of a curve that are kept


class Row(NamedTuple):
    """A method of a table: its algorithm, and what is different in its experiment."""

    algorithm: str
    options: Mapping[str, Any] = {}  # never changed


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
      name: of its files.
      title: for people.
      rows: by name, in order.
      columns: names of those it has if none are asked for.
      printed: the paper's figures.
      models: which of G and P it shows of a row; both if it does not say.
    """

    name: str
    title: str
    rows: Mapping[str, Row]
    columns: tuple[str, ...]
    printed: Printed = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def _silently(what: str) -> Iterator[Callable[[int, int], None]]:
    yield lambda done, total: None


@dataclass(frozen=True)
class Request:
    """What was asked for: where to write, which parts, how long; and who is told of it and may stop it."""

    out: Path
    federations: Federations
    columns: Sequence[str] | None = None
    rows: Sequence[str] | None = None
    seeds: int = 5
    rounds: int | None = None
    say: Callable[[str], None] = print
    progress: Callable[[str], AbstractContextManager[Callable[[int, int], None]]] = _silently
    stopping: Stopping | None = None


class Cell(NamedTuple):
    """One figure of a table; accuracies in percent, None where a run diverged."""

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


def chosen(what: str, known: Sequence[str] | Mapping[str, Any], asked: Sequence[str] | None) -> list[str]:
    """The names asked for, checked; all if none are."""
    for name in asked or ():
        if name not in known:
            raise SettingError(f"there is no {what} {name!r}{nearest(name, list(known))}")
    return list(asked) if asked else list(known)


def run_table(table: Table, request: Request) -> list[Cell]:
    """Runs what is missing of a table and writes ``NAME.json`` and ``NAME.md`` of all that is there."""
    columns = chosen("column", ALL, request.columns or table.columns)
    rows = chosen("row", table.rows, request.rows)
    problems: list[SettingError] = []
    for column in columns:
        for row in rows:
            try:
                run_cell(table, column, row, request)
            except SettingError as problem:  # the other cells can be had
                problems.append(problem)
                request.say(f"{table.name} {column} {row}: cannot be run: {problem}")
    if len(problems) == len(columns) * len(rows):
        raise problems[0]
    cells = read_cells(table, request.out)
    records.write_json(request.out / f"{table.name}.json", [each._asdict() for each in cells])
    (request.out / f"{table.name}.md").write_text(markdown(table, cells), encoding="utf-8")
    asked = markdown(table, [cell for cell in cells if cell.column in columns and cell.row in rows])
    request.say(f"\n{asked}\ntable: {request.out / table.name}.md")
    return cells


def cell_file(table: Table, column: str, row: str, out: Path) -> Path:
    """Where a cell is kept."""
    return out / "cells" / table.name / column / f"{row}.json"


def run_cell(table: Table, column_name: str, row_name: str, request: Request) -> dict[str, Any]:
    """The record of a cell: read if it has been run with these settings, else run and written."""
    column, row = ALL[column_name], table.rows[row_name]
    experiment = column.experiment(row.algorithm, seeds=request.seeds, rounds=request.rounds, **row.options)
    file = cell_file(table, column_name, row_name, request.out)
    name, work = f"{table.name} {column_name} {row_name}", file.with_suffix(".run")
    held = ExitStack()  # the folder's lock, until the record is written

    def measure() -> dict[str, Any]:
        proceed(request, name)
        federation = request.federations.of(column)
        asked = "aggregated" in row.options  # a row that is about their number has just that, or cannot be had
        prepared = (experiment if asked else column.fitted(experiment, federation)).prepare(federation)
        held.enter_context(keeping.opened(work, resume=True))
        finished = _run(prepared, work, name, request)
        facts = {"column": column_name, "row": row_name, "data": federation.facts}
        seconds = {"seconds": round(finished.total_seconds, 1)}
        return {**facts, "aggregated": finished.experiment.aggregated, **seconds, **_measured(finished)}

    with held:
        record, new = remembered(file, fingerprint(experiment.resolved()), measure, CELL)
        if work.is_dir():  # its checkpoints are of no more use
            with suppress(locks.InUse), nullcontext() if new else locks.locked(work):
                shutil.rmtree(work, ignore_errors=True)
    if request.federations.given and record.get("data", {}) not in ({}, request.federations.of(column).facts):
        raise SettingError(f"{file} is of other data, {record['data']}: choose another --out, or remove it")
    time_ = f"{record['seconds']:.0f} s" if new else "done before"
    request.say(f"{name}: {_figures(record)}, {time_}")
    return record


def proceed(request: Request, name: str) -> None:
    """Asks whether there is time to begin with that."""
    reason = request.stopping.wanted() if request.stopping else None
    if reason:
        raise Stopped(reason, f"{name}: not begun ({reason})")


def _run(prepared: Prepared, folder: Path, name: str, request: Request) -> Run:
    """Runs an experiment, from where it stopped if that is in the folder."""
    rounds = prepared.experiment.rounds
    if keeping.begun(folder):
        try:
            keeping.refuse_changes(folder, records.plain(prepared.experiment))
        except SettingError as problem:
            raise SettingError(f"{problem}: choose another --out, or remove that folder") from None
    stopping = request.stopping or Stopping()
    how = keeping.Keeping(resume=True, outcome=False, stopping=stopping, warn=request.say)
    listening = stopping.listening() if request.stopping else nullcontext()
    with listening, request.progress(name) as advance:
        done = keeping.run_into(folder, prepared, lambda point: advance(point.round, rounds), how)
    if done.stopped:
        raise Stopped(done.stopped, f"{name}: stopped ({done.stopped}) after round {done.round} of {rounds}")
    return done


def remembered(
    file: Path, wanted: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]], shape: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    """What the file says, or what is measured and then written there; and whether it is new.

    A file that was measured with other settings is left alone: hours of work may be in it. What it must hold at least
    is the ``shape``.
    """
    done = read_remembered(file, shape)
    if done is not None:
        other = [name for name in {*wanted, *done["fingerprint"]} if done["fingerprint"].get(name) != wanted.get(name)]
        if other:
            words = ", ".join(
                f"{name} {done['fingerprint'].get(name)}, not {wanted.get(name)}" for name in sorted(other)
            )
            raise SettingError(f"{file} was made with other settings ({words}): choose another --out, or remove it")
        return done, False
    begun = time.perf_counter()
    measured = measure()
    record = {
        "seconds": round(time.perf_counter() - begun, 1),
        **measured,
        "fingerprint": wanted,
        "revision": records.revision(),
        "platform": records.platform_facts(),
    }
    _write(file, record)
    return record, True


_OF_MODEL = {
    **{name: Some(Maybe(NUMBER)) for name in ("best", "client_mean", "worst_decile", "curve", "low", "high")},
    "best_round": Some(COUNT),
    "finite": bool,
}
CELL = {"rounds": Some(COUNT), "seconds": NUMBER, "G": _OF_MODEL, "P": _OF_MODEL, "platform": records.PLATFORM}


def read_remembered(file: Path, shape: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a record says, which must have that shape; None if there is none."""
    if not file.exists():
        return None
    try:
        record = strict.read_json(file)
        expect(record, {"fingerprint": dict, **shape}, file)
    except SettingError as problem:
        raise SettingError(f"{file} is damaged: remove it, and it is made again ({problem})") from None
    return record


def fingerprint(experiment: Experiment) -> dict[str, Any]:
    """What decides a cell's figures: not where the data was found or how the program ran."""
    plain = records.plain(experiment)
    if plain["aggregate"] == "mean":  # of which records say nothing: there was nothing else once
        del plain["aggregate"], plain["outliers"]
    for name in ("data_dir", "executor", "chunk", "store", "store_dir", "scored_clients", "clients", "split_seed"):
        plain.pop(name)
    return plain


def _measured(finished: Run) -> dict[str, Any]:
    """Accuracies of both models: the best of each seed, when it was, and the curve."""
    rounds = np.array([point.round for point in finished.points])
    keep = np.unique(np.linspace(0, len(rounds) - 1, min(_CURVE, len(rounds))).round().astype(int))
    found: dict[str, Any] = {"rounds": rounds[keep].tolist()}
    last, in_row = finished.points[-1].scores, finished.points[-1].health.in_row
    moving = not np.any(stalled(in_row, finished.experiment.rounds))
    for name, model, scores in (("G", "global", last.global_.test), ("P", "personal", last.personal.test)):
        accuracy = 100 * finished.accuracy(model)  # type: ignore[arg-type]
        sound = moving and bool(np.isfinite(accuracy).all())
        found[name] = {
            "best": rounded(accuracy.max(axis=0)),
            "best_round": rounds[accuracy.argmax(axis=0)].tolist(),
            "final": rounded(accuracy[-1]),
            "client_mean": rounded(100 * np.nanmean(scores.client_accuracy, axis=1)),
            "worst_decile": rounded(100 * scores.worst_decile),
            "curve": rounded(accuracy[keep].mean(axis=1)),
            "low": rounded(accuracy[keep].min(axis=1)),
            "high": rounded(accuracy[keep].max(axis=1)),
            "finite": sound and bool(np.isfinite(scores.loss).all()),
        }
    return found


def rounded(values: np.ndarray, digits: int = 3) -> list[float | None]:
    """For JSON, which has no NaN."""
    return [round(float(each), digits) if np.isfinite(each) else None for each in values]


def _write(file: Path, record: Mapping[str, Any]) -> None:
    """Beside and then in its place: a cell is there whole or not at all."""
    lines = (f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in record.items())
    beside = file.with_name(f"{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        os.replace(beside, file)
    except OSError as problem:
        raise SettingError(f"cannot write {file}: {problem.strerror}") from None


def _figures(record: Mapping[str, Any]) -> str:
    parts = []
    for model in ("G", "P"):
        mean, std = best_of(record[model])
        parts.append(f"{model} diverged" if mean is None else f"{model} {mean:.2f} ± {std:.2f}")
    return "  ".join(parts)


def best_of(of_model: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Mean and deviation over seeds of the best accuracy; None if a loss stopped being a number."""
    return _mean_std(of_model["best"]) if of_model["finite"] else (None, None)


def _mean_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Over seeds, with the sample standard deviation; None where a seed diverged."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return None, None
    return float(np.mean(numbers)), float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0


def read_record(table: Table, column: str, row: str, out: Path) -> dict[str, Any] | None:
    """What a cell's file says, if it has been run."""
    return read_remembered(cell_file(table, column, row, out), CELL)


def read_cells(table: Table, out: Path) -> list[Cell]:
    """All figures that have been measured, in the table's order."""
    cells = []
    for column in ALL:
        for row in table.rows:
            record = read_record(table, column, row, out)
            if record is None:
                continue
            for model in table.models.get(row, "PG"):
                of_model = record[model]
                mean, std = best_of(of_model)
                cells.append(
                    Cell(
                        column,
                        row,
                        model,
                        table.printed.get((column, row, model)),
                        _round(mean),
                        _round(std),
                        len(of_model["best"]),
                        record["rounds"][-1],
                        int(np.median(of_model["best_round"])),
                        record["seconds"],
                        _round(_mean_std(of_model["client_mean"])[0]),
                        _round(_mean_std(of_model["worst_decile"])[0]),
                    )
                )
    return cells


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def markdown(table: Table, cells: Sequence[Cell]) -> str:
    """Measured beside printed with the difference, a column of the paper in each section."""
    lines = [
        f"# {table.title}",
        "",
        "Test accuracy in percent: the best over the rounds, mean ± standard deviation over seeds. The mean over",
        "clients, and over the tenth of them for whom it is lowest, are at the end.",
        "",
    ]
    for name in dict.fromkeys(cell.column for cell in cells):
        column = ALL[name]
        lines += [f"## {column.title}", ""]
        if column.not_compared:
            lines += [f"({column.not_compared}: the printed figures are for orientation.)", ""]
        if column.note:
            lines += [f"({column.note})", ""]
        lines += [
            "| method | | measured | printed | difference | seeds | rounds | best round | mean client | worst tenth |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [_line(cell, column) for cell in cells if cell.column == name]
        lines.append("")
    return "\n".join(lines)


def _line(cell: Cell, column: Column) -> str:
    measured = "diverged" if cell.mean is None else f"{cell.mean:.2f} ± {cell.std:.2f}"
    printed = "" if cell.paper is None else f"{cell.paper:.2f}"
    compared = cell.paper is not None and cell.mean is not None and column.not_compared is None
    difference = f"{cell.mean - cell.paper:+.2f}" if compared else ""  # type: ignore[operator]
    rest = ["" if each is None else f"{each:.2f}" for each in (cell.client_mean, cell.worst_decile)]
    parts = (
        cell.row,
        cell.model,
        measured,
        printed,
        difference,
        str(cell.n),
        str(cell.rounds),
        str(cell.best_round),
        *rest,
    )
    return f"| {' | '.join(parts)} |"
