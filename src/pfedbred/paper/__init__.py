"""The paper's tables and figures, each made by one command: ``pfedbred paper NAME``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pfedbred.paper import pictures
from pfedbred.paper.columns import ALL, COLUMNS, Federations
from pfedbred.paper.complexity import run_complexity
from pfedbred.paper.eta import run_eta
from pfedbred.paper.fair import run_fair
from pfedbred.paper.records import Request
from pfedbred.paper.table import run_table
from pfedbred.paper.tables import TABLES
from pfedbred.paper.tuned import run_tuned, run_validated

__all__ = ["ALL", "ARTIFACTS", "COLUMNS", "TABLES", "Artifact", "Federations", "Request"]


class Artifact(NamedTuple):
    """A table or figure.

    Attributes:
      words: a one-line description.
      make: the function that makes it.
      has_rows: whether rows can be chosen.
      runs: whether it runs what is missing by default; None if it always does.
      in_jobs: whether its parts can run in parallel.
      tracked: whether its runs can be recorded with ``--track``.
    """

    words: str
    make: Callable[[Request], object]
    has_rows: bool = True
    runs: bool | None = None
    in_jobs: bool = False
    tracked: bool = False


ARTIFACTS: dict[str, Artifact] = {
    **{
        name: Artifact(table.title, partial(run_table, table), runs=True, in_jobs=True, tracked=True)
        for name, table in TABLES.items()
    },
    "tuned": Artifact(
        "Beyond the paper: every method with its settings tuned on validation samples",
        run_tuned,
        runs=True,
        in_jobs=True,
        tracked=True,
    ),
    "validated": Artifact(
        "Beyond the paper: the same, with the round chosen on validation samples",
        run_validated,
        runs=True,
        in_jobs=True,
        tracked=True,
    ),
    "fair": Artifact(
        "Beyond the paper: many methods and data sets, each tuned alike on validation samples",
        run_fair,
        runs=True,
        in_jobs=True,
    ),
    "eta": Artifact(
        "Beyond the paper: mg with eta off, as printed, or chosen on validation samples", run_eta, runs=True
    ),
    "hyper": Artifact(
        "accuracy by eta and lambda: parallel coordinates and a heat map",
        pictures.draw_hyper,
        has_rows=False,
        runs=True,
    ),
    "deviation": Artifact("Delta G and Delta L of the first client, by label", pictures.draw_deviation, runs=True),
    "noniid": Artifact("the data distribution: samples by client and label", pictures.draw_noniid, has_rows=False),
    "curves": Artifact("accuracy by round of the methods of Table 2", pictures.draw_curves, runs=False, tracked=True),
    "complexity": Artifact("time and memory against N, T, R, K and M, compared with the paper's O(.)", run_complexity),
}
