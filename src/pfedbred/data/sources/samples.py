"""Pools of named datasets: a table with a column of samples, one of labels and optionally one of clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pfedbred.data.pool import Pool
from pfedbred.data.scaling import FitScaling
from pfedbred.data.sources.hub import HubDataset, find_files, read_table
from pfedbred.data.sources.pool_cache import cached
from pfedbred.data.sources.tables import TableRows


def table_pool(
    source: HubDataset,
    data_dir: str | None,
    *,
    classes: int,
    read: Callable[[TableRows, str], np.ndarray] | None = None,
    normalise: FitScaling | None = None,
    labels: Sequence[str] | None = None,
    parts: Sequence[str] = (),
) -> Pool:
    """The samples of all files of a dataset with the columns (samples, label) or (samples, label, client).

    Args:
      source: the dataset.
      data_dir: see :func:`~pfedbred.data.sources.hub.find_files`.
      classes: number of labels.
      read: ``read(table, column)`` returns the samples; by default the column holds images, which are decoded once and
        kept as bytes.
      normalise: how samples become inputs.
      labels: names of the labels.
      parts: prefixes of the names of the files to read; by default all are read.
    """
    paths = [path for path in find_files(source, data_dir).paths if not parts or path.name.startswith(tuple(parts))]

    def pool() -> Pool:
        table = read_table(source, paths)
        column, label, *clients = source.columns
        x, y = (read or TableRows.images)(table, column), table.whole_numbers(label)
        owner, owners = table.names(clients[0]) if clients else (None, None)
        return Pool(source.name, x, y, classes, owner=owner, owners=owners, normalise=normalise, origin=table.origin)

    made = pool() if read else cached(source, paths, pool)
    return replace(made, labels=tuple(labels) if labels else None)
