"""The cells of a table: what their records hold, and the figures taken from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.engine.history import Which, has_validation
from pfedbred.engine.screening import stalled
from pfedbred.errors import SettingError
from pfedbred.experiment.result import Run
from pfedbred.io.shapes import COUNT, NUMBER, Maybe, Some, expect
from pfedbred.paper.columns import ALL, Facts
from pfedbred.paper.records import read_measured, rounded
from pfedbred.paper.rows import SplitSeed, Table
from pfedbred.runs.figures import places
from pfedbred.runs.schema import PLATFORM
from pfedbred.runs.statistics import evenly_spaced, mean_and_std, paired_difference

_CURVE = 100  # points of a curve in a record
_BY_SEED = ("best", "final", "client_mean", "worst_decile")

_OF_MODEL = {
    **{name: Some(Maybe(NUMBER)) for name in (*_BY_SEED, "curve", "low", "high")},
    "best_round": Some(COUNT),
    "finite": bool,
}
CELL = {"rounds": Some(COUNT), "seconds": NUMBER, "G": _OF_MODEL, "P": _OF_MODEL, "platform": PLATFORM}
"""What the record of a cell must hold; with validation samples, also the figures of the chosen round."""

_MODELS: dict[str, Which] = {"G": "global", "P": "personal"}


def measured(finished: Run[Any]) -> dict[str, Any]:
    """Accuracies of both models, by seed: the best and its round, the last, the chosen one if any; and the curve.

    Also, by seed, how many updates were rejected.
    """
    points = finished.points
    rounds = np.array([point.round for point in points])
    keep = evenly_spaced(len(rounds), _CURVE)
    rejected = [sum(times.values()) for times in finished.rejections.rejected]
    found: dict[str, Any] = {"rounds": rounds[keep].tolist(), "rejected": rejected}
    moving = not np.any(stalled(points[-1].rejections.skipped_in_row, finished.experiment.rounds))
    for name, model in _MODELS.items():
        accuracy, scores = 100 * finished.accuracy(model), points[-1].scores.of(model).test
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
        if has_validation(points):
            place = places(points, "chosen", "accuracy", model, {"accuracy": True})
            found[name]["chosen"] = rounded(accuracy[place, np.arange(len(place))])
            found[name]["chosen_round"] = rounds[place].tolist()
    return found


class Difference(NamedTuple):
    """A figure minus that of another row, paired by split and seed: the mean, and the half-width of its interval."""

    mean: float | None
    half_width: float | None


class Cell(NamedTuple):
    """The figures of one model in a cell; accuracies are in percent, None if the run diverged.

    ``mean`` and ``std`` are those of the best round, ``last`` of the last one, and ``chosen`` of the one best on
    validation samples, if there are any. ``n`` is the number of seeds on each of the ``splits``. ``data`` is what the
    first split's record says about its data.
    """

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
    last: float | None = None
    last_std: float | None = None
    chosen: float | None = None
    chosen_std: float | None = None
    splits: int = 1
    compared_with: str | None = None
    paired: Mapping[str, Difference] = {}  # by figure: best, final, chosen; never mutated
    data: Facts | None = None

    def plain(self) -> dict[str, Any]:
        """The cell as stored in the table's JSON file."""
        found = {**self._asdict(), "paired": {name: each._asdict() for name, each in self.paired.items()}}
        del found["data"]  # the records have it
        return found


def best_of(of_model: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Mean and standard deviation of the best accuracy over seeds; None if a loss was not finite."""
    return mean_and_std(of_model["best"]) if of_model["finite"] else (None, None)


RecordsBySplit = Mapping[SplitSeed, dict[str, Any]]
"""The records of a cell, by split."""


def read_cells(table: Table, out: Path) -> list[Cell]:
    """All measured figures, in the table's order, for the columns in which the table has its own records."""
    found: dict[tuple[str, str], RecordsBySplit] = {}
    for column in ALL:
        rows = {row: read_records(table, out, column, row) for row in table.rows}
        if any(split is not None or not table.rows[row].source for row, records in rows.items() for split in records):
            found |= {(column, row): records for row, records in rows.items() if records}
    return [_cell(table, column, row, model, found) for column, row in found for model in table.models.get(row, "PG")]


def read_records(table: Table, out: Path, column: str, row: str) -> RecordsBySplit:
    """The existing records of a cell."""
    found = {}
    for split in table.splits:
        file = table.record_file(out, column, row, split)
        record = read_measured(file, CELL)
        if record is None:
            continue
        for model in _MODELS:
            by_seed = (*_BY_SEED, "best_round", *(["chosen"] if "chosen" in record[model] else []))
            expect(record[model].get("chosen"), Maybe(Some(Maybe(NUMBER))), file, "'chosen'")
            if len({len(record[model][name]) for name in by_seed}) > 1:
                raise SettingError(f"{file} is damaged: its figures of {model} have different numbers of seeds")
        found[split] = record
    return found


def _cell(table: Table, column: str, row: str, model: str, found: Mapping[tuple[str, str], RecordsBySplit]) -> Cell:
    records = found[column, row]
    of_model = [record[model] for record in records.values()]
    first = next(iter(records.values()))

    def over_runs(name: str) -> tuple[float | None, float | None]:
        """Mean and standard deviation over all seeds and splits; None if one has no such figure."""
        values = [value for each in of_model for value in each.get(name, [None])]
        mean, std = rounded(mean_and_std(values), 2)
        return mean, std

    finite = all(each["finite"] for each in of_model)
    (mean, std), (last, last_std), (chosen, chosen_std) = (
        over_runs(name) if finite else (None, None) for name in ("best", "final", "chosen")
    )
    other = table.compared.get(row)
    there = found.get((column, other), {}) if other else {}
    differences = {name: _difference(records, there, model, name) for name in ("best", "final", "chosen")}
    return Cell(
        column,
        row,
        model,
        paper=table.printed.get((column, row, model)),
        mean=mean,
        std=std,
        n=len(first[model]["best"]),
        rounds=first["rounds"][-1],
        best_round=int(np.median([round_ for each in of_model for round_ in each["best_round"]])),
        seconds=round(sum(record["seconds"] for record in records.values()), 1),
        client_mean=over_runs("client_mean")[0],
        worst_decile=over_runs("worst_decile")[0],
        last=last,
        last_std=last_std,
        chosen=chosen,
        chosen_std=chosen_std,
        splits=len(records),
        compared_with=other if there else None,
        paired={name: each for name, each in differences.items() if each},
        data=records.get(table.splits[0], {}).get("data"),
    )


def _difference(records: RecordsBySplit, others: RecordsBySplit, model: str, figure: str) -> Difference | None:
    """The difference over common splits; None without any, or unless both have the figure for as many seeds on the same
    data.
    """
    both = [(record, others[split]) for split, record in records.items() if split in others]
    if any("data" in one and "data" in other and one["data"] != other["data"] for one, other in both):
        return None
    pairs = [(one[model], other[model]) for one, other in both]
    if not pairs or not all(each["finite"] and figure in each for pair in pairs for each in pair):
        return None
    if len({len(each[figure]) for pair in pairs for each in pair}) > 1:
        return None
    mine, theirs = (np.array([pair[side][figure] for pair in pairs], float) for side in (0, 1))
    return Difference(*rounded(paired_difference(mine, theirs)))
