"""A table in memory as a federation: every row is for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pfedbred.data.columns import DataColumn, Fill, Standardise
from pfedbred.data.federation import Federation
from pfedbred.data.pool import Assignment, Pool, federate

NAME = "table"


def table_federation(
    x: np.ndarray,
    y: np.ndarray,
    number: np.ndarray,
    clients: Sequence[Any],
    *,
    classes: int,
    task: str,
    columns: Sequence[DataColumn],
    standardise: Standardise,
    missing: Fill | None,
) -> Federation:
    """The federation of these clients, without test samples.

    Args:
      x: a row for each sample: numbers, or the number of a category; NaN for a gap.
      y: the number of each sample's class, or the number to predict.
      number: the number of each sample's client.
      clients: the clients' names.
      classes: number of classes; 1 if numbers are predicted.
      task: classification or regression.
      columns: what the columns are.
      standardise: whether numbers are standardised over all clients, per client, or not at all.
      missing: what fills gaps.
    """
    names = tuple(column.name for column in columns)
    pool = Pool(NAME, x, y, classes, features=names, task=task, columns=tuple(columns))
    order = np.argsort(number, kind="stable")  # each client's rows in their order
    rows = np.split(order, np.searchsorted(number[order], np.arange(1, len(clients))))
    nothing = [np.zeros(0, np.int64)] * len(clients)
    assignment = Assignment(rows, nothing, names=tuple(map(str, clients)))
    return federate(pool, assignment, missing=missing, standardised=standardise, about={})
