"""The paper's tables and figures, each by one command: ``pfedbred paper NAME``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pfedbred.paper import complexity as complexity_
from pfedbred.paper import figures
from pfedbred.paper.columns import ALL, COLUMNS, Federations
from pfedbred.paper.table import Request, fingerprint, run_table
from pfedbred.paper.tables import TABLES

__all__ = ["ALL", "ARTIFACTS", "COLUMNS", "Artifact", "Federations", "Request", "complexity_", "fingerprint"]


class Artifact(NamedTuple):
    """Something of the paper that can be made, and in a line what it is."""

    words: str
    make: Callable[[Request], object]


ARTIFACTS: dict[str, Artifact] = {
    **{name: Artifact(table.title, partial(run_table, table)) for name, table in TABLES.items()},
    "hyper": Artifact("eta by lambda: parallel coordinates and a heat map", figures.hyper),
    "deviation": Artifact("Delta G and Delta L by label on the first client", figures.deviation_),
    "noniid": Artifact("who has what: the distribution of the data", figures.noniid),
    "curves": Artifact("accuracy by round of the methods of Table 2", figures.curves),
    "complexity": Artifact("time and memory against N, T, R, K, M beside the paper's O(.)", complexity_.complexity),
}
