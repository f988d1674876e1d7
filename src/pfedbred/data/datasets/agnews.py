"""AG News: news by topic.

Source: the hub's ``fancyzhx/ag_news`` (127,600 texts, training and test set together), or its test set alone as
``agnews_test/*.parquet`` (7,600), with the columns text and label.

Natural clients: none. By default each of the four labels is divided over 20 clients in Dirichlet(1) proportions and a
quarter of each client's texts is for testing, as in PFLlib.

Usual model: lstm, on the first 25 words of a text. Published figures to compare with: PFLlib's column "Dirichlet(1),
AG News" (FedAvg 87.12, Ditto 91.89, FedRep 92.25), with care: they are for all 127,600 texts and a different network.

Reference: Zhang, Zhao and LeCun, "Character-level Convolutional Networks for Text Classification", NeurIPS 2015.
"""

from __future__ import annotations

from functools import partial

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.general import dirichlet
from pfedbred.data.pool import Pool
from pfedbred.data.sources.hub import HubDataset
from pfedbred.data.sources.samples import table_pool
from pfedbred.data.sources.tables import TableRows

SOURCE = HubDataset("agnews", "fancyzhx/ag_news", "agnews", ("text", "label"), other_folder="agnews_test")
TOPICS = ("World", "Sports", "Business", "Sci/Tech")


def agnews(data_dir: str | None, clients: int, seed: int) -> Pool:
    """News by four topics."""
    return table_pool(SOURCE, data_dir, classes=4, read=TableRows.texts, labels=TOPICS)


DATASET = Dataset(agnews, partial(dirichlet, alpha=1.0), clients=20, models=("lstm",))
