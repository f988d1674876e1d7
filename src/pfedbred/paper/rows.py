"""What a table consists of: its rows, and the files of its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp

from pfedbred.bregman import priors
from pfedbred.experiment.configuration import Experiment
from pfedbred.paper.columns import Column
from pfedbred.paper.printed import Printed
from pfedbred.paper.records import record_file

SplitSeed = int | None
"""The seed of a split; None is the dataset's own."""


class RecordSource(NamedTuple):
    """A row of another table that is the same experiment, so that its records serve both."""

    table: str
    row: str


class Row(NamedTuple):
    """A row of a table.

    Attributes:
      algorithm: the algorithm's name.
      options: options in which its experiment differs.
      strength: its prior's strength: lambda is ``strength`` divided by the prior's curvature at zero.
      source: the row whose records it shares.
    """

    algorithm: str
    options: Mapping[str, Any] = {}  # never mutated
    strength: float | None = None
    source: RecordSource | None = None

    def experiment(self, column: Column, *, seeds: int, rounds: int | None) -> Experiment:
        """The row's experiment in a column."""
        options = dict(self.options)
        if self.strength is not None:
            settings = options.get("settings", {})
            lam = self.strength / curvature_at_zero(settings["prior"])
            options["settings"] = {**settings, "lam": lam}
        return column.experiment(self.algorithm, seeds=seeds, rounds=rounds, **options)

    def trains_like(self, other: Row) -> bool:
        """Whether it is the other row with fine-tuning, which changes P in evaluations but not training."""
        return self.algorithm == f"{other.algorithm}+ft" and self[1:3] == other[1:3]


def curvature_at_zero(prior: str) -> float:
    """The curvature of a prior's penalty at zero: g''(s) s'(u)^2, for a parameter u whose natural parameter is s(u).

    Near zero the penalty of every family is quadratic: lambda times this curvature is the lambda of the spherical
    Gaussian that it equals there. s is u itself, except in the exponential family.
    """
    return float(priors.get(prior).curvature(jnp.zeros(())))


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
      name: the name of its files.
      title: its heading.
      rows: by name, in order.
      columns: names of the columns to run by default.
      printed: the paper's figures.
      models: which of G and P to show for a row; both if the row is not listed.
      about: lines that explain its rows.
      splits: the splits of the data; on each, a cell is run with all seeds.
      compared: for a row, the row it is compared with, in differences paired by split and seed.
      shows_fit: whether it ends with each row's distance from the printed figures.
      shows_seconds: whether it says how long each row took.
    """

    name: str
    title: str
    rows: Mapping[str, Row]
    columns: tuple[str, ...]
    printed: Printed = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    about: tuple[str, ...] = ()
    splits: tuple[SplitSeed, ...] = (None,)
    compared: Mapping[str, str] = field(default_factory=dict)
    shows_fit: bool = False
    shows_seconds: bool = False

    def trainings(self, rows: Sequence[str]) -> list[tuple[str, ...]]:
        """These rows in groups that share a training: a row, and the same row with fine-tuning."""
        found: dict[str, list[str]] = {}
        for row in rows:
            base = next((each for each in rows if self.rows[row].trains_like(self.rows[each])), row)
            found.setdefault(base, []).append(row)
        return [(base, *(row for row in group if row != base)) for base, group in found.items()]

    def record_file(self, out: Path, column: str, row: str, split: SplitSeed = None) -> Path:
        """The file of a cell's record on a split."""
        source = self.rows[row].source
        if split is not None:
            return record_file(out, self.name, column, f"{row}-split{split}")
        return record_file(out, *(source.table, column, source.row) if source else (self.name, column, row))
