"""Heart disease: patients of four hospitals, with many gaps.

Source: the UCI repository's "Heart Disease" (Cleveland, Hungary, Switzerland, Long Beach VA), as one table
``heart/heart_disease_4_hospitals.csv`` with the usual 13 features, num and hospital.

Natural clients: four hospitals with 123 to 303 patients, of which a quarter is for testing. They differ in their
patients (36 % are sick in Hungary, 93 % in Switzerland) and in what they measure: 99 % of Hungary's values of ca are
missing, and all of Switzerland's cholesterol values, recorded as 0. Gaps are filled by hospital and marked.

Usual model: mclr, a logistic regression. The label is whether num, the grade of the disease, is above 0.

Reference: Detrano et al., "International Application of a New Probability Algorithm for the Diagnosis of Coronary
Artery Disease", American Journal of Cardiology 64, 1989.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from pfedbred.data.columns import DataColumn, as_category
from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.owners import column
from pfedbred.data.pool import TEST_FRACTION, Pool
from pfedbred.data.sources.named_file import NamedFile
from pfedbred.data.sources.table_features import features_of

FILE = NamedFile("heart", "heart/heart_disease_4_hospitals.csv", "the UCI repository's Heart Disease as one table")
_KINDS = ("cp", "restecg", "slope", "thal")  # numbers that are codes: of a kind of pain, curve or defect
_NEVER_ZERO = ("chol", "trestbps")


def heart(data_dir: str | None, clients: int | None, seed: int) -> Pool:
    """Patients of four hospitals, sick or not, with gaps; hospitals as clients."""
    table = FILE.read(data_dir)
    x, columns = features_of(table, [each for each in table.columns if each not in ("num", "hospital")])
    described = []
    for place, each in enumerate(columns):
        if each.name in _NEVER_ZERO:
            x[x[:, place] == 0, place] = np.nan
        if each.name in _KINDS:
            present = ~np.isnan(x[:, place])
            kinds, x[present, place] = np.unique(x[present, place], return_inverse=True)
            each = DataColumn(each.name, tuple(map(as_category, kinds.tolist())))
        described.append(each)
    owner, owners = table.names("hospital")
    return Pool(
        "heart",
        x,
        (table.whole_numbers("num") > 0).astype(np.int32),
        2,
        owner=owner,
        owners=owners,
        labels=("healthy", "sick"),
        origin=table.origin,
        task="binary",
        columns=tuple(described),
    )


DATASET = Dataset(heart, partial(column, test_fraction=TEST_FRACTION), models=("mclr",), task="binary")
