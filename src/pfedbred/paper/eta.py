"""Beyond the paper: the memory's weight eta in mg, off, as printed, or chosen on validation samples.

The evidence cannot choose it (docs/priors.md), so it is one more setting that the trials of the fair comparison draw.
The row with the paper's eta is that comparison's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from pfedbred.engine.metrics import METRICS
from pfedbred.errors import SettingError
from pfedbred.experiment.space import Range
from pfedbred.io.atomic import write_json, write_text
from pfedbred.paper.fair import ARENAS, CONTENDERS, SPLITS, Arena, Contender, measured, recorded
from pfedbred.paper.fair_report import RecordsByMethod, shown
from pfedbred.paper.records import Request, chosen
from pfedbred.runs.statistics import estimate, paired_difference

_COLUMNS = ("heart", "landmine")
_MG = CONTENDERS["mg"]

ROWS: dict[str, tuple[str, str, Contender]] = {
    "0.05": ("fair", "mg", _MG),
    "off": ("eta", "off", dataclasses.replace(_MG, settings={"eta": 0.0})),
    "chosen": ("eta", "chosen", dataclasses.replace(_MG, space={**_MG.space, "eta": Range(0.005, 1.0, log=True)})),
}
"""By what eta is: the table and row of its records, and how it is measured. The first is what the others are compared
with."""


def run_eta(request: Request) -> None:
    """Runs what is missing, then writes all that is recorded to ``eta.md``."""
    arenas = chosen("column", ARENAS, request.columns or _COLUMNS)
    rows = chosen("row", ROWS, request.rows)
    if request.run:
        for arena, split, row in product(arenas, SPLITS, rows):
            table, name, contender = ROWS[row]
            measured(table, arena, split, name, contender, request)
    found = {
        arena: {row: recorded(table, arena, name, request) for row, (table, name, _) in ROWS.items()}
        for arena in ARENAS
    }
    complete = {
        arena: rows for arena, rows in found.items() if all(len(by_split) == len(SPLITS) for by_split in rows.values())
    }
    if not complete:
        raise SettingError(f"{request.out} has no complete column of eta")
    lines = [
        "# The memory's weight",
        "",
        "mg-meta with eta off, as printed (0.05), and drawn by the trials with the other settings, from 0.005 to 1: as",
        "many trials on the same validation samples, as in the [fair comparison](fair.md). Mean and 95 % interval over",
        "splits, differences by split. ≈: not distinguishable from 0.05. Reproduce with `pfedbred paper eta`.",
        "",
    ]
    for name, records in complete.items():
        lines += [f"## {ARENAS[name].title}", "", *_table(ARENAS[name], records), ""]
    write_json(request.out / "eta.json", {name: _plain(records) for name, records in complete.items()})
    write_text(request.out / "eta.md", "\n".join(lines))
    request.say("\n".join(["", *lines, f"table: {request.out / 'eta.md'}"]))


def _table(arena: Arena, records: RecordsByMethod) -> list[str]:
    metric = METRICS[arena.metric]
    scale = 100 if metric.percent else 1
    unit = f"{metric.title}{' (%)' if metric.percent else ''}"
    first = next(iter(ROWS))
    titles = ("eta", f"P, {unit}", "difference to 0.05", "G", "difference to 0.05", "chosen by split")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row, by_split in records.items():
        cells = []
        for model in ("P", "G"):
            own, other = _values(by_split, model), _values(records[first], model)
            less = paired_difference(own, other)
            apart = " ≈" if less.excludes_zero is False else ""
            cells += [shown(estimate(own), scale), "" if row == first else shown(less, scale) + apart]
        tuned = [f"{each['settings']['eta']:.3g}" for each in by_split.values() if row == "chosen"]
        lines.append(f"| {row} | {' | '.join(cells)} | {', '.join(tuned)} |")
    return lines


def _values(by_split: Mapping[int, Mapping[str, Any]], figure: str) -> np.ndarray:
    return np.array([[np.nan if value is None else value for value in each[figure]] for each in by_split.values()])


def _plain(records: RecordsByMethod) -> dict[str, Any]:
    return {row: {str(split): dict(each) for split, each in by.items()} for row, by in records.items()}
