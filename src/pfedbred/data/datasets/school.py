"""School: exam scores of pupils, by school.

Source: the exam scores of the Inner London Education Authority, 1985 to 1987, as the literature on multi-task learning
encodes them: ``school/school.parquet`` with 28 features of the pupil and the school (year, sex, ethnic group, earlier
results, kind of school), y and school.

Natural clients: 139 schools with 22 to 251 pupils, of which a quarter is for testing. Features of a school are the same
for all of its pupils, so a school training alone cannot learn from them.

Usual model: mclr, which is linear regression here. Papers report the explained variance, R2 in percent, of random
divisions of 75 % and 25 %; ``benchmarks/regression.py`` does the same.

References: Goldstein, "Multilevel Modelling of Survey Data", The Statistician 40, 1991; Argyriou, Evgeniou and Pontil,
"Convex Multi-Task Feature Learning", Machine Learning 73, 2008.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.labels import read_labels
from pfedbred.data.partition.owners import column
from pfedbred.data.pool import TEST_FRACTION, Pool
from pfedbred.data.scaling import standardise
from pfedbred.data.sources.named_file import NamedFile
from pfedbred.errors import SettingError

FILE = NamedFile("school", "school/school.parquet", "the school data of multi-task learning (features, y, school)")


def school(data_dir: str | None, clients: int | None, seed: int) -> Pool:
    """Exam scores of pupils by 28 features, schools as clients."""
    table = FILE.read(data_dir)
    rows = table.column("features").to_pylist()
    try:
        x = np.asarray(rows, np.float32).reshape(len(rows), -1)
    except (TypeError, ValueError):
        raise SettingError(f"{table.name}: column 'features' must hold lists of numbers, all of one length") from None
    y, _, classes, task = read_labels(table.numbers(["y"])[:, 0], "regression", table.name)
    owner, owners = table.names("school")
    return Pool(
        "school", x, y, classes, owner=owner, owners=owners, normalise=standardise, origin=table.origin, task=task
    )


DATASET = Dataset(school, partial(column, test_fraction=TEST_FRACTION), models=("mclr",), task="regression")
