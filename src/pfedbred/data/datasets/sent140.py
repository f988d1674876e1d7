"""Sent140, from LEAF's files or the hub's."""

from __future__ import annotations

import numpy as np

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.leaf import by_groups
from pfedbred.data.pool import Pool
from pfedbred.data.sources.hub import Source, find_files, read_table
from pfedbred.data.sources.leaf import UserSamples, read_leaf
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
        found = found._replace(x=_tweets(found))
    else:
        table = read_table(SOURCE, files.parquet)
        x, y = table.texts("text"), (table.whole_numbers("sentiment") == 4).astype(np.int32)  # the hub has 0 and 4
        found = UserSamples(x, y, *table.names("user"), None, table.origin)
    raw = not files.leaf  # LEAF writes files after it has sampled the users
    return Pool("sent140", classes=2, labels=("negative", "positive"), raw=raw, **found._asdict())


def _tweets(samples: UserSamples) -> np.ndarray:
    """The texts in LEAF's rows [id, date, query, user, text, ...]."""
    for row, fields in enumerate(samples.x):
        if not isinstance(fields, list) or len(fields) < 5 or not isinstance(fields[4], str):
            raise SettingError(f"{samples.origin(row)}: expected the fields id, date, query, user, text")
    return np.array([fields[4] for fields in samples.x], object)


DATASET = Dataset(sent140, by_groups, clients=10, models=("lstm",))
