"""Claims of order in results/README.md: the paired difference over seeds, with its 95 % interval, from the records.

    python benchmarks/claims.py [--results results] [--hyper]

Each line is one cell's record less another's, in points: at the best round of each seed, as the paper reports it, and
in the last round. A difference whose interval holds 0 cannot be told from none and is marked with ≈. The record of
`pfedbred paper hyper` has no values by seed: with --hyper its claim is measured anew, in 13 minutes of CPU.
"""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

import pfedbred
from pfedbred.experiment.sweep_result import MODELS
from pfedbred.paper.columns import ALL
from pfedbred.runs.figures import Figure
from pfedbred.runs.statistics import Estimate, paired_difference


class Claim(NamedTuple):
    """That ``row`` is above ``other`` in a column of a table, in G, in P, or in P of the worst tenth of the clients."""

    table: str
    column: str
    model: str
    row: str
    other: str
    keys: tuple[str, ...] = ("best", "final")


FIGURES: dict[str, Figure] = {"best round": "best", "last round": "last"}
_TENTH = ("worst_decile",)
CLAIMS = [
    *(
        Claim("table2", column, "P", "mg-meta", other)
        for column in ("mnist-mclr", "mnist-dnn", "fmnist-mclr", "fmnist-dnn", "cifar10-cnn")
        for other in ("pfedme", "per-fedavg")
    ),
    Claim("table2", "cifar10-cnn", "P", "mg-meta", "fedamp"),
    Claim("table2", "cifar10-cnn", "P", "mg-meta+am", "mg-meta"),
    Claim("table2", "cifar10-cnn", "P", "mg-meta+am", "per-fedavg+ft"),
    *(Claim("table2", column, "P", "mg-meta+am", "pfedme+am") for column in ("writers-mclr", "writers-dnn")),
    *(Claim("table2", column, "P", "mg-meta+am", "mg-meta+ft") for column in ("writers-mclr", "writers-dnn")),
    *(Claim("table2", "sent140-lstm", "P", "mg-meta", other) for other in ("per-fedavg", "fedamp", "pfedme")),
    *(Claim("table2", "sent140-lstm", "P", "mg-meta+am", other) for other in ("per-fedavg+am", "mg-meta", "pfedme+am")),
    *(Claim("table2", "sent140-lstm", "G", "mg-meta", other) for other in ("fedavg", "fedavg+am")),
    *(
        Claim("table2", column, "P", row, other, keys)
        for column, row, others in (
            ("mnist-true-mclr", "fedamp", ("fedem", "mg-meta+ft")),
            ("mnist-true-dnn", "mg-meta+am", ("mg-meta+ft", "fedamp")),
        )
        for other in others
        for keys in (("best", "final"), _TENTH)
    ),
    *(
        Claim("tuned", column, "P", row, other)
        for column in ("mnist-mclr", "mnist-dnn", "fmnist-mclr", "fmnist-dnn")
        for row, other in combinations(("mg-meta", "pfedme", "fedamp"), 2)
    ),
    Claim("tuned", "mnist-mclr", "P", "mg-meta", "fedem"),
    *(Claim("tuned", "mnist-dnn", "P", "fedem", other) for other in ("pfedme", "mg-meta")),
    *(
        Claim("validated", column, "P", "mg-meta", other, ("chosen",))
        for column in ("mnist-mclr", "mnist-dnn", "fmnist-mclr", "fmnist-dnn")
        for other in ("fedamp", "pfedme")
    ),
    Claim("validated", "mnist-dnn", "P", "fedem", "mg-meta", ("chosen",)),
    *(
        Claim("precision", column, model, f"{method}-bfloat16", f"{method}-float32")
        for column, method, models in (
            ("skewed-cnn", "fedavg", "G"),
            ("skewed-cnn", "mg-meta", "PG"),
            ("skewed-resnet18", "fedavg", "G"),
        )
        for model in models
    ),
    *(
        Claim("batch-norm", "skewed-resnet18", model, f"{method}-{choice}", f"{method}-local")
        for method, model, choice in (
            ("fedavg", "P", "average"),
            ("fedavg", "G", "group"),
            ("ditto", "P", "average"),
            ("ditto", "P", "group"),
            ("mg-meta", "P", "average"),
            ("mg-meta", "P", "group"),
        )
    ),
]


def difference(results: Path, claim: Claim, key: str) -> Estimate:
    """Of the two records, by seed, in points."""
    folder = results / "cells" / claim.table / claim.column
    records = [json.loads((folder / f"{row}.json").read_text()) for row in (claim.row, claim.other)]
    return paired_difference(*(record[claim.model][key] for record in records))


def shown(found: Estimate) -> str:
    """With its interval, marked if it cannot be told from 0."""
    return f"{found.mean:+.2f} ± {found.half_width:.2f}{'' if found.excludes_zero else ' ≈'}"


def hyper() -> None:
    """P and G of mg-meta on MNIST with MCLR, at eta = 1, less those with the paper's settings."""
    pfedbred.use_all_cores()
    experiment = ALL["mnist-mclr"].experiment("mg-meta", seeds=5, rounds=None, eval_every=10)
    tried = pfedbred.sweep(experiment, {"eta": [0.05, 1.0], "lam": [10.0, 15.0]}, choose_on_test=True)
    places = {tuple(point): place for place, point in enumerate(tried.points.tolist())}
    for lam in (10.0, 15.0):
        for model in MODELS:
            values = {name: 100 * tried.figure(figure, model) for name, figure in FIGURES.items()}
            figures = ", ".join(
                f"{name} {shown(paired_difference(each[places[1.0, lam]], each[places[0.05, 15.0]]))}"
                for name, each in values.items()
            )
            print(f"hyper mnist-mclr, {model}: eta 1, lam {lam:.0f} less eta 0.05, lam 15: {figures}", flush=True)


def main(results: Path = Path("results"), hyper_: Annotated[bool, typer.Option("--hyper")] = False) -> None:
    """Prints a line for each claim."""
    names = {
        "best": "best round",
        "final": "last round",
        "chosen": "chosen round",
        "worst_decile": "worst tenth, last round",
    }
    for claim in CLAIMS:
        figures = ", ".join(f"{names[key]} {shown(difference(results, claim, key))}" for key in claim.keys)
        print(f"{claim.table} {claim.column}, {claim.model}: {claim.row} less {claim.other}: {figures}")
    if hyper_:
        hyper()


if __name__ == "__main__":
    typer.run(main)
