"""Parkinson: the severity of the disease from recordings of the voice.

Source: the UCI repository's "Parkinsons Telemonitoring", ``parkinson/parkinsons_updrs.csv``.

Natural clients: 42 people with 101 to 168 recordings over half a year, of which a quarter is for testing. The label is
total_UPDRS, which was assessed three times and interpolated linearly in between. Features are the 16 measures of the
voice alone: the other score, motor_UPDRS, is all but the answer, and the time of the recording would give it away too.

Usual models: mclr, which is linear regression here, and dnn. Published figures to compare with: none with these
clients (papers draw recordings of all people at random).

Reference: Tsanas, Little, McSharry and Ramig, "Accurate Telemonitoring of Parkinson's Disease Progression by
Noninvasive Speech Tests", IEEE Transactions on Biomedical Engineering 57, 2010.
"""

from __future__ import annotations

from functools import partial

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.labels import read_labels
from pfedbred.data.partition.owners import column
from pfedbred.data.pool import TEST_FRACTION, Pool
from pfedbred.data.scaling import standardise
from pfedbred.data.sources.named_file import NamedFile
from pfedbred.data.sources.user_files import compact

FILE = NamedFile("parkinson", "parkinson/parkinsons_updrs.csv", "the UCI repository's Parkinsons Telemonitoring")
_NOT_OF_THE_VOICE = ("subject#", "age", "sex", "test_time", "motor_UPDRS", "total_UPDRS")


def parkinson(data_dir: str | None, clients: int | None, seed: int) -> Pool:
    """The total UPDRS score by 16 measures of the voice, people as clients."""
    table = FILE.read(data_dir)
    features = [each for each in table.columns if each not in _NOT_OF_THE_VOICE]
    y, _, classes, task = read_labels(table.numbers(["total_UPDRS"])[:, 0], "regression", table.name)
    owner, owners = table.names("subject#")
    return Pool(
        "parkinson",
        compact(table.numbers(features), table.name),
        y,
        classes,
        owner=owner,
        owners=owners,
        features=tuple(features),
        normalise=standardise,
        origin=table.origin,
        task=task,
    )


DATASET = Dataset(parkinson, partial(column, test_fraction=TEST_FRACTION), models=("mclr", "dnn"), task="regression")
