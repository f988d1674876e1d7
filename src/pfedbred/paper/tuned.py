"""Beyond the paper: every method with its step sizes and lambda tuned by a sweep, for a fair comparison.

The paper tunes nothing. Here the settings of each method are chosen by P (by G for FedAvg, which has no P) on a
validation split, a fifth of each client's training samples. Two tables show the methods with these settings:

tuned        on the data and seeds of Table 2, at the best round
validated    trained without the validation samples, on which the round is chosen too
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pfedbred.paper.columns import ALL
from pfedbred.paper.records import Request, chosen, load_or_sweep, record_file
from pfedbred.paper.rows import Row, Table
from pfedbred.paper.table import run_table
from pfedbred.runs.schema import point_score

TITLES = {
    "tuned": "Beyond the paper: settings tuned on validation samples",
    "validated": "Beyond the paper: settings and rounds chosen on validation samples",
}
_COLUMNS = ("mnist-mclr", "mnist-dnn", "fmnist-mclr", "fmnist-dnn")
_FRACTION, _SEED, _SEEDS = 0.2, 0, 2
_STEPS = [0.005, 0.01, 0.02, 0.05, 0.1]
_LAMBDAS = [5.0, 10.0, 15.0, 30.0, 60.0]

GRIDS: dict[str, dict[str, list[float]]] = {
    "fedavg": {"alpha": [0.002, *_STEPS, 0.2]},
    "fedem": {"alpha": [0.002, *_STEPS, 0.2]},
    "fedamp": {"alpha": _STEPS, "lam": [0.01, 0.1, 1.0]},
    "pfedme": {"alpha_m": _STEPS, "lam": _LAMBDAS},
    "per-fedavg": {"alpha": _STEPS, "alpha_m": _STEPS},
    "mg-meta": {"alpha_m": [0.01, 0.03, 0.1], "eta": [0.02, 0.05, 0.1], "lam": [15.0, 30.0, 60.0]},
}
"""The grid of each method; those with two or more settings have about the same number of points."""


def run_tuned(request: Request) -> None:
    """Sweeps on the validation split, then a table of the chosen settings on the test samples."""
    _run("tuned", request)


def run_validated(request: Request) -> None:
    """The same, with the validation samples held out of training to choose the round."""
    compared = {name: "mg-meta" for name in GRIDS if name != "mg-meta"}
    _run("validated", request, {"validation": _FRACTION}, compared=compared)


def _run(name: str, request: Request, options: Mapping[str, Any] = {}, **more: Any) -> None:
    asked = chosen("row", GRIDS, request.rows)
    for column in chosen("column", ALL, request.columns or _COLUMNS):
        wanted = asked if request.run else ()  # nothing else depends on the settings
        rows = {
            row: Row(row, {"settings": _best(column, row, request), **options} if row in wanted else {})
            for row in GRIDS
        }
        table = Table(name, TITLES[name], rows, (column,), models={"fedavg": "G", "fedem": "GP", "fedamp": "P"}, **more)
        run_table(table, dataclasses.replace(request, columns=[column], rows=asked))


def _best(column_name: str, name: str, request: Request) -> dict[str, float]:
    """The settings chosen for a method in a column: read if already swept, else swept."""
    column, grid = ALL[column_name], GRIDS[name]
    every = max(1, (request.rounds or column.rounds) // 20)
    experiment = column.experiment(name, seeds=_SEEDS, rounds=request.rounds, eval_every=every)
    first = {key: values[0] for key, values in grid.items()}
    experiment = dataclasses.replace(experiment, settings={**experiment.settings, **first})

    facts, new = load_or_sweep(
        record_file(request.out, "tuning", column_name, name),
        f"tuning {column_name} {name}",
        column,
        experiment,
        grid,
        lambda: request.federations.of(column).with_validation(_FRACTION, _SEED),
        request,
        validation=[_FRACTION, _SEED],
    )
    model = "global" if name == "fedavg" else "personal"
    # Records older than validation samples were measured with those as test samples.
    best = max(facts["points"], key=lambda point: point_score(point, model) or 0.0)
    found = {key: best[key] for key in grid}
    words = ", ".join(f"{key} = {value:g}" for key, value in found.items())
    request.say(f"tuned {column_name} {name}: {words}{'' if new else ', already done'}")
    return found
