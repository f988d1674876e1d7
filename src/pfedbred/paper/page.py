"""What the page shows of the paper: its tables, measured beside printed, with the curves of their cells; deviations."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfedbred.errors import SettingError, is_file_name
from pfedbred.io.shapes import COUNT, NUMBER, Maybe, Some, expect
from pfedbred.io.strict import read_json
from pfedbred.paper.columns import ALL
from pfedbred.paper.table import CELL, read_remembered
from pfedbred.paper.tables import TABLES
from pfedbred.paper.tuned import TITLE as TUNED
from pfedbred.runs.records import DEVIATION

TITLES = {**{name: table.title for name, table in TABLES.items()}, "tuned": TUNED}
"""Of the tables that can be in a folder, as NAME.json."""

_FIGURE = {
    **dict.fromkeys(("column", "row", "model"), str),
    **dict.fromkeys(("mean", "std", "paper"), Maybe(NUMBER)),
    **dict.fromkeys(("n", "rounds"), COUNT),
}


def measured_on(record: Mapping[str, Any]) -> str:
    """The platform of a record, for people."""
    facts = record["platform"]
    return f"{facts['device']} ({facts['backend']}), jax {facts['jax']}"


def gather_table(folder: Path, name: str, content: dict[str, Any]) -> None:
    """Adds a table, column by column, and the commands that make it."""
    figures = read_json(folder / f"{name}.json")
    expect(figures, Some(_FIGURE), folder / f"{name}.json")
    by_column: dict[str, list[dict[str, Any]]] = {}
    for figure in figures:
        by_column.setdefault(figure["column"], []).append(figure)
    columns = []
    for key, cells in by_column.items():
        column = ALL.get(key)
        records = _records(folder / "cells" / name, cells)
        content["platforms"] += map(measured_on, records.values())
        columns.append(
            {
                "title": column.title if column else key,
                "other_data": column.not_compared if column else None,
                "note": column.note if column else None,
                "cells": [beside_paper(cell) for cell in cells],
                "curves": [_curves(row, record, cells) for row, record in records.items()],
            }
        )
    content["tables"].append({"title": TITLES[name], "columns": columns})
    _add_commands(name, TITLES[name], figures, folder, content)


def _add_commands(
    name: str, title: str, cells: Sequence[Mapping[str, Any]], folder: Path, content: dict[str, Any]
) -> None:
    commands = [f"{each} --out {shlex.quote(folder.resolve().name)}" for each in paper_commands(name, cells)]
    content["commands"].append({"name": title, "command": "\n".join(commands), "settings": {}})


def gather_deviation(folder: Path, content: dict[str, Any]) -> bool:
    """Adds the deviations of a column, if the folder has any, and the command that makes them."""
    methods = {file.stem: read_json(file) for file in sorted(folder.glob("*.json"))}
    for name, each in methods.items():
        expect(each, DEVIATION, folder / f"{name}.json")
    if not methods:
        return False
    kept = {name: {kind: each[kind] for kind in ("global", "local")} for name, each in methods.items()}
    title = ALL[folder.name].title if folder.name in ALL else folder.name
    samples = next(iter(methods.values()))["samples"]
    content["deviations"].append({"title": title, "methods": kept, "samples": samples})
    content["platforms"] += map(measured_on, methods.values())
    cells = [
        {"column": folder.name, "row": name, "n": None, "rounds": each["fingerprint"]["rounds"]}
        for name, each in methods.items()
    ]
    _add_commands("deviation", f"Deviation: {title}", cells, folder.parents[2], content)
    return True


def _records(folder: Path, cells: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those of a column's cells that are kept, by row."""
    found = {}
    for column, row in dict.fromkeys((cell["column"], cell["row"]) for cell in cells):
        file = folder / column / f"{row}.json"
        known = is_file_name(column) and is_file_name(row)  # else it might lead elsewhere
        record = read_remembered(file, CELL) if known else None
        if record is None:
            continue
        lengths = {len(record[model][kind]) for model in "GP" for kind in ("curve", "low", "high")}
        if lengths != {len(record["rounds"])}:
            raise SettingError(f"{file} is damaged: its curves are not of the same rounds")
        found[row] = record
    return found


def _curves(row: str, record: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By round, of the models that the table shows of the row."""
    models = {cell["model"] for cell in cells if cell["row"] == row}
    found: dict[str, Any] = {"row": row, "rounds": record["rounds"], "seeds": len(record["G"]["best"])}
    for model in sorted(models & {"G", "P"}):
        series = {"mean": "curve", "low": "low", "high": "high"}
        found[model] = {name: [_short(each) for each in record[model][kind]] for name, kind in series.items()}
    return found


def _short(value: float | None) -> float | None:
    """Two digits are more than a picture shows, and a page has ten thousands of them."""
    return None if value is None else round(value, 2)


def beside_paper(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A figure, its difference from the printed one where they are of the same data, and its rounds."""
    column = ALL.get(cell["column"])
    compared = cell["paper"] is not None and cell["mean"] is not None and column and not column.not_compared
    difference = round(cell["mean"] - cell["paper"], 2) if compared else None
    kept = {name: cell[name] for name in ("row", "model", "mean", "std", "paper", "n")}
    rounds = f"{cell['rounds']} of {column.rounds}" if column and _of_its_own(cell) else str(cell["rounds"])
    return {**kept, "rounds": rounds, "difference": difference}


def _of_its_own(cell: Mapping[str, Any]) -> int | None:
    """The rounds of a cell, if they are not its column's."""
    column = ALL.get(cell["column"])
    return None if column and column.rounds == cell["rounds"] else cell["rounds"]


def paper_commands(name: str, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """What makes these cells of a table and no others: one command for columns with the same rows, seeds and rounds."""
    rows: dict[tuple[str, int | None, int | None], dict[str, None]] = {}
    for cell in cells:
        rows.setdefault((cell["column"], cell["n"], _of_its_own(cell)), {})[cell["row"]] = None
    columns: dict[tuple[str, int | None, int | None], list[str]] = {}
    for (column, seeds, rounds), names in rows.items():
        columns.setdefault((",".join(names), seeds, rounds), []).append(column)
    return [
        f"pfedbred paper {name} --columns {shlex.quote(','.join(alike))} --rows {shlex.quote(names)}"
        + (f" --seeds {seeds}" if seeds else "")
        + (f" --rounds {rounds}" if rounds else "")
        for (names, seeds, rounds), alike in columns.items()
    ]
