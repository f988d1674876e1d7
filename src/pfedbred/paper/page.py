"""The paper's part of the HTML page: tables of measured beside printed figures, curves of their cells, deviations."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pfedbred.errors import SettingError, is_file_name
from pfedbred.experiment.command import command
from pfedbred.io.shapes import COUNT, NUMBER, Maybe, Some, expect
from pfedbred.io.strict import read_json
from pfedbred.paper.cells import CELL
from pfedbred.paper.columns import ALL
from pfedbred.paper.deviation import DEVIATION
from pfedbred.paper.markdown import not_recorded
from pfedbred.paper.records import read_measured, record_file, rounded
from pfedbred.paper.tables import TABLES
from pfedbred.paper.tuned import GRIDS
from pfedbred.paper.tuned import TITLES as TUNED
from pfedbred.report.content import Content, add_federations, add_sweep, platform_name, read_federation
from pfedbred.report.page import Section

_TITLES = {**{name: table.title for name, table in TABLES.items()}, **TUNED}  # by NAME of NAME.json in a folder

_FIGURE = {
    **dict.fromkeys(("column", "row", "model"), str),
    **dict.fromkeys(("mean", "std", "paper"), Maybe(NUMBER)),
    **dict.fromkeys(("n", "rounds"), COUNT),
}
_ALSO = ("last", "last_std", "chosen", "chosen_std")  # missing in tables written earlier


def section() -> Section:
    """The paper's results, for ``pfedbred.report.page.write_page``."""
    script = (resources.files("pfedbred.paper") / "assets" / "paper.js").read_text(encoding="utf-8")
    return Section("paper result", gather, {"tables": "table", "deviations": "deviation"}, script)


def gather(folder: Path, content: Content) -> bool:
    """Adds what ``pfedbred paper`` wrote into a folder; returns whether there was anything."""
    found = False
    for name in _TITLES:
        if (folder / f"{name}.json").exists():
            _gather_table(folder, name, content)
            found = True
    for file in sorted(folder.glob("hyper-*.json")):
        add_sweep(file, file.stem, content, command)
        found = True
    for column in sorted((folder / "cells" / "deviation").glob("*")):
        found = _gather_deviation(column, content) or found
    return _gather_data(folder, content) or found


def _gather_data(folder: Path, content: Content) -> bool:
    """Adds the data distributions in ``noniid-*.json``, with the command for those of the paper's datasets."""
    datasets = [read_federation(file) for file in sorted(folder.glob("noniid-*.json"))]
    add_federations(datasets, content)
    first = {column.dataset: name for name, column in reversed(ALL.items())}
    columns = [first[each["name"]] for each in datasets if each["name"] in first]
    if columns:
        words = f"pfedbred paper noniid --columns {','.join(columns)} --out {shlex.quote(folder.resolve().name)}"
        content["commands"].append({"name": "Data distribution", "command": words, "settings": {}})
    return bool(datasets)


def _gather_table(folder: Path, name: str, content: Content) -> None:
    """Adds a table, column by column, and the commands that reproduce it."""
    figures = read_json(folder / f"{name}.json")
    expect(figures, Some(_FIGURE), folder / f"{name}.json")
    also = [{name: figure.get(name) for name in _ALSO} for figure in figures]
    expect(also, [dict.fromkeys(_ALSO, Maybe(NUMBER))], folder / f"{name}.json")
    by_column: dict[str, list[dict[str, Any]]] = {}
    for figure in figures:
        by_column.setdefault(figure["column"], []).append(figure)
    columns, rows = [], TABLES[name].rows if name in TABLES else GRIDS
    for key, cells in by_column.items():
        column = ALL.get(key)
        records = _records(folder, name, key, [cell["row"] for cell in cells])
        content["platforms"] += map(platform_name, records.values())
        notes = column.notes({row: each.get("data") for row, each in records.items()}) if column else []
        columns.append(
            {
                "title": column.title if column else key,
                "other_data": column.not_compared if column else None,
                "note": "; ".join(filter(None, [*notes, not_recorded(rows, [cell["row"] for cell in cells])])),
                "cells": [beside_paper(cell) for cell in cells],
                "curves": [_curves(row, record, cells) for row, record in records.items()],
            }
        )
    content["tables"].append({"title": _TITLES[name], "columns": columns})
    _add_commands(name, _TITLES[name], figures, folder, content)


def _add_commands(name: str, title: str, cells: Sequence[Mapping[str, Any]], folder: Path, content: Content) -> None:
    commands = [f"{each} --out {shlex.quote(folder.resolve().name)}" for each in paper_commands(name, cells)]
    content["commands"].append({"name": title, "command": "\n".join(commands), "settings": {}})


def _gather_deviation(folder: Path, content: Content) -> bool:
    """Adds the deviations of a column, if the folder has any, and the commands that reproduce them."""
    methods = {file.stem: read_json(file) for file in sorted(folder.glob("*.json"))}
    for name, each in methods.items():
        expect(each, DEVIATION, folder / f"{name}.json")
    if not methods:
        return False
    kept = {name: {kind: each[kind] for kind in ("global", "local")} for name, each in methods.items()}
    title = ALL[folder.name].title if folder.name in ALL else folder.name
    samples = next(iter(methods.values()))["samples"]
    content["deviations"].append({"title": title, "methods": kept, "samples": samples})
    content["platforms"] += map(platform_name, methods.values())
    cells = [
        {"column": folder.name, "row": name, "n": None, "rounds": each["fingerprint"]["rounds"]}
        for name, each in methods.items()
    ]
    _add_commands("deviation", f"Deviation: {title}", cells, folder.parents[2], content)
    return True


def _records(folder: Path, name: str, column: str, rows: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The records of a column's cells, by row; a cell may have none."""
    found = {}
    for row in dict.fromkeys(rows):
        table = TABLES.get(name)
        if table and row in table.rows:
            file = table.record_file(folder, column, row)
        else:
            file = record_file(folder, name, column, row)
        known = is_file_name(column) and is_file_name(row)  # else the path could lead elsewhere
        record = read_measured(file, CELL) if known else None
        if record is None:
            continue
        lengths = {len(record[model][kind]) for model in "GP" for kind in ("curve", "low", "high")}
        if lengths != {len(record["rounds"])}:
            raise SettingError(f"{file} is damaged: its curves have different numbers of rounds")
        found[row] = record
    return found


def _curves(row: str, record: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Accuracy by round for the models that the table shows in this row."""
    models = {cell["model"] for cell in cells if cell["row"] == row}
    found: dict[str, Any] = {"row": row, "rounds": record["rounds"], "seeds": len(record["G"]["best"])}
    for model in sorted(models & {"G", "P"}):
        series = {"mean": "curve", "low": "low", "high": "high"}
        # Two digits: more than a chart shows, and a page has tens of thousands of these numbers.
        found[model] = {name: rounded(record[model][kind], 2) for name, kind in series.items()}
    return found


def beside_paper(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A cell with its rounds, and its difference from the printed figure if both are for the same data."""
    column = ALL.get(cell["column"])
    (difference,) = rounded([column.difference(cell["mean"], cell["paper"]) if column else None], 2)
    kept = {name: cell.get(name) for name in ("row", "model", "mean", "std", "paper", "n", *_ALSO)}
    rounds = f"{cell['rounds']} of {column.rounds}" if column and _unusual_rounds(cell) else str(cell["rounds"])
    return {**kept, "rounds": rounds, "difference": difference}


def _unusual_rounds(cell: Mapping[str, Any]) -> int | None:
    """The rounds of a cell; None if they are its column's default."""
    column = ALL.get(cell["column"])
    return None if column and column.rounds == cell["rounds"] else cell["rounds"]


def paper_commands(name: str, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """The commands that reproduce exactly these cells: one for all columns with the same rows, seeds and rounds."""
    rows: dict[tuple[str, int | None, int | None], dict[str, None]] = {}
    for cell in cells:
        rows.setdefault((cell["column"], cell["n"], _unusual_rounds(cell)), {})[cell["row"]] = None
    columns: dict[tuple[str, int | None, int | None], list[str]] = {}
    for (column, seeds, rounds), names in rows.items():
        columns.setdefault((",".join(names), seeds, rounds), []).append(column)
    return [
        f"pfedbred paper {name} --columns {shlex.quote(','.join(alike))} --rows {shlex.quote(names)}"
        + (f" --seeds {seeds}" if seeds else "")
        + (f" --rounds {rounds}" if rounds else "")
        for (names, seeds, rounds), alike in columns.items()
    ]
