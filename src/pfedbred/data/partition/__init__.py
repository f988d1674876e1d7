"""Splits: which samples of a pool each client gets.

A split is a function ``(pool, *, clients, seed, test_fraction, ...) -> Assignment`` that takes only the options it
uses. The seed decides everything, and no sample is used twice. To add a split, write the function and add it to
``SPLITS``.
"""

from __future__ import annotations

from collections.abc import Callable

from pfedbred.data.partition.general import dirichlet, iid, labels, quantity
from pfedbred.data.partition.owners import column
from pfedbred.data.pool import Assignment

SplitFunction = Callable[..., Assignment]

SPLITS: dict[str, SplitFunction] = {
    "column": column,
    "dirichlet": dirichlet,
    "iid": iid,
    "labels": labels,
    "quantity": quantity,
}
"""The splits that work with any data, by name. ``paper`` stands for a different split for each named dataset."""
