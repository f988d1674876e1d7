"""Sent140, from LEAF's files or the hub's."""

from __future__ import annotations

import numpy as np

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.leaf import by_groups
from pfedbred.data.pool import Pool
from pfedbred.data.sources.hub import Source, find_files, read_table
from pfedbred.data.sources.leaf import LeafSamples, read_leaf
from pfedbred.errors import SettingError

SOURCE = Source(
    "sent140",
    "stanfordnlp/sentiment140",
    "sent140",
    ("text", "user", "sentiment"),
    revision="refs/convert/parquet",
    leaf=True,
)


def sent140(data_dir: str | None, clients: int, seed: int) -> Pool:
    """Sent140: tweets with their sentiment, the authors in groups."""
    files = find_files(SOURCE, data_dir)
    if files.leaf:
        found = read_leaf(files.leaf)
        x, y = _tweets(found), found.y
        owner, owners, is_test, origin = found.owner, found.owners, found.is_test, found.origin
    else:
        table = read_table(SOURCE, files.parquet)
        x, y = table.texts("text"), (table.whole_numbers("sentiment") == 4).astype(np.int32)  # the hub has 0 and 4
        (owner, owners), is_test, origin = table.names("user"), None, table.origin
    return Pool(
        "sent140",
        x,
        y,
        classes=2,
        owner=owner,
        owners=owners,
        is_test=is_test,
        labels=("negative", "positive"),
        origin=origin,
        raw=not files.leaf,  # LEAF writes files after it has sampled the users
    )


def _tweets(samples: LeafSamples) -> np.ndarray:
    """The texts in LEAF's rows [id, date, query, user, text, ...]."""
    for row, fields in enumerate(samples.x):
        if not isinstance(fields, list) or len(fields) < 5 or not isinstance(fields[4], str):
            raise SettingError(f"{samples.origin(row)}: expected the fields id, date, query, user, text")
    return np.array([fields[4] for fields in samples.x], object)


DATASET = Dataset(sent140, by_groups, clients=10)
