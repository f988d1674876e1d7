"""Landmine: mines and clutter in radar images.

Source: nine features of 14,820 places in the radar images of 29 fields: ``landmine/landmine.parquet``, with the columns
features, y and task.

Natural clients: 29 fields with 445 to 690 places each, of which a quarter is for testing. Only 6 % are mines: a model
that finds none is 94 % accurate, so the area under the ROC curve is measured too, as in every binary task.

Usual models: mclr and dnn. Published figures to compare with: none with this division (papers on multi-task learning
train on fewer places, of 19 or 29 fields).

Reference: Xue, Liao, Carin and Krishnapuram, "Multi-Task Learning for Classification with Dirichlet Process Priors",
JMLR 2007.
"""

from __future__ import annotations

from dataclasses import replace

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.owners import column
from pfedbred.data.pool import Pool
from pfedbred.data.scaling import standardise
from pfedbred.data.sources.hub import HubDataset
from pfedbred.data.sources.samples import table_pool
from pfedbred.data.sources.tables import TableRows

SOURCE = HubDataset("landmine", None, "landmine", ("features", "y", "task"))


def landmine(data_dir: str | None, clients: int | None, seed: int) -> Pool:
    """Mines (6 %) and clutter by nine radar features, fields as clients."""
    labels = ("clutter", "mine")
    pool = table_pool(SOURCE, data_dir, classes=2, read=TableRows.vectors, normalise=standardise, labels=labels)
    return replace(pool, task="binary")


DATASET = Dataset(landmine, column, models=("mclr", "dnn"), task="binary")
