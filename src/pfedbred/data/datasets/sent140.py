"""Sent140: the sentiment of tweets.

Source: the hub's ``stanfordnlp/sentiment140`` (1,600,000 tweets), a part of it as ``sent140/*/*.parquet`` with the
columns text, user and label (0 or 1), or LEAF's JSON files.

Clients: 10 groups of authors, whose shares of the authors are drawn from Dirichlet(0.5); a tenth of each group's tweets
is for testing. The paper uses LEAF's sample of 5 % of all tweets, 80,000, and of these the authors with three tweets or
more. The hub's tweets are sampled likewise. A table with no more tweets than LEAF samples is itself a sample and is
used whole: it may have a single tweet of a prolific author, so the same bound would keep few authors, and others than
the paper's. ``--split 'paper(3)'`` sets the bound nevertheless.

Word vectors: GloVe's, if the data folder has them (a file in a folder ``glove*``: text, or .npz with the arrays words
and vectors); they are not trained and not sent. The paper's have 50 dimensions; longer ones are reduced to their 50
leading principal components, which keeps the network's size. Words without a vector, and padding, have zeros, as in the
paper's experiments. Without such a file, or as ``sent140(learned)``, the vectors are learned.

Usual model: lstm. Published figures to compare with: the paper's, with care if the tweets are different ones.

References: Go, Bhayani and Huang, "Twitter Sentiment Classification using Distant Supervision", 2009; Pennington,
Socher and Manning, "GloVe: Global Vectors for Word Representation", EMNLP 2014.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.leaf import by_groups
from pfedbred.data.pool import Pool
from pfedbred.data.sources.hub import HubDataset, find_files, folders, read_table
from pfedbred.data.sources.leaf import UserSamples, read_leaf
from pfedbred.data.text import WordVectors
from pfedbred.errors import SettingError

SOURCE = HubDataset(
    "sent140",
    "stanfordnlp/sentiment140",
    "sent140",
    (),
    revision="refs/convert/parquet",
    leaf=True,
)
LEAF_SAMPLE = 80_000
"""Tweets in LEAF's sample of 5 %."""

_DIMENSIONS = 50
_VECTORS = (f"glove*/*{_DIMENSIONS}d*", "glove*/*.txt", "glove*/*.npz")


def sent140(data_dir: str | None, clients: int, seed: int, *, vectors: Literal["glove", "learned"] = "glove") -> Pool:
    """Sent140: tweets with their sentiment, groups of authors as clients."""
    files = find_files(SOURCE, data_dir)
    leaf = bool(files.leaf) and not files.parquet
    if leaf:
        found = read_leaf(files.leaf)
        found = found._replace(x=_tweets(found))
    else:
        table = read_table(SOURCE, files.parquet)
        # The hub's labels are 0 and 4.
        y = table.whole_numbers("sentiment") == 4 if "sentiment" in table.columns else table.whole_numbers("label")
        found = UserSamples(table.texts("text"), y.astype(np.int32), *table.names("user"), None, table.origin)
    raw = not leaf and len(found.y) > LEAF_SAMPLE  # LEAF's files hold users already sampled
    given = _word_vectors(data_dir) if vectors == "glove" else None
    return Pool("sent140", classes=2, labels=("negative", "positive"), raw=raw, vectors=given, **found._asdict())


def _word_vectors(data_dir: str | None) -> WordVectors | None:
    """The first file of word vectors in the data folders, those of 50 dimensions before others."""
    found = (path for folder in folders(data_dir) for pattern in _VECTORS for path in sorted(folder.glob(pattern)))
    return next((WordVectors(path, _DIMENSIONS) for path in found if path.suffix in (".txt", ".npz")), None)


def _tweets(samples: UserSamples) -> np.ndarray:
    """The texts in LEAF's rows [id, date, query, user, text, ...]."""
    for row, fields in enumerate(samples.x):
        if not isinstance(fields, list) or len(fields) < 5 or not isinstance(fields[4], str):
            raise SettingError(f"{samples.origin(row)}: expected the fields id, date, query, user, text")
    return np.array([fields[4] for fields in samples.x], object)


DATASET = Dataset(sent140, by_groups, clients=10, models=("lstm",))
