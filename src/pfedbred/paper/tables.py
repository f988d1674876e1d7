"""The paper's tables, and two beyond it."""

from __future__ import annotations

from pfedbred.bregman import priors
from pfedbred.paper import printed
from pfedbred.paper.columns import COLUMNS
from pfedbred.paper.table import Row, Table

_METHODS = (
    "fedavg",
    "fedavg+am",
    "fedem",
    "fedamp",
    "pfedme",
    "pfedme+ft",
    "pfedme+am",
    "per-fedavg",
    "per-fedavg+ft",
    "per-fedavg+am",
    "mg-meta",
    "mg-meta+ft",
    "mg-meta+am",
)

TABLE2 = Table(
    "table2",
    "Table 2: global and personal models",
    {name: Row(name) for name in _METHODS},
    tuple(COLUMNS),
    printed.TABLE2,
    models={"fedavg": "G", "fedavg+am": "G", "fedem": "GP", "fedamp": "P"},
)

ABLATION = Table(
    "ablation",
    "Table 3: ablation of the mean",
    {name: Row(name) for name in ("fo", "mfo")},
    tuple(COLUMNS),
    printed.ABLATION,
)

AGGREGATION = Table(
    "aggregation",
    "mg-meta by the number of clients averaged per round",
    {str(count): Row("mg-meta", {"aggregated": count}) for count in (10, 20, 50, 100)},
    ("femnist-dnn", "femnist-mclr", "fmnist-dnn", "fmnist-mclr"),
    printed.AGGREGATION,
)

PRIORS = Table(
    "priors",
    "Beyond the paper: mg-meta with every prior",
    {name: Row("mg-meta", {"settings": {"prior": name}}) for name in priors.PRIORS},
    ("mnist-mclr",),
)

_PER_FEDAVG = {f"one-step-{steps}": steps for steps in (20, 40)}
_PER_FEDAVG_COLUMNS = ("fmnist-mclr", "fmnist-dnn", "mnist-mclr", "mnist-dnn", "cifar10-cnn")

PER_FEDAVG = Table(
    "per-fedavg",
    "Beyond the paper: Per-FedAvg as FedAvg with one step before the test",
    {row: Row("reptile", {"settings": {"adapt_steps": 1, "R": steps}}) for row, steps in _PER_FEDAVG.items()},
    _PER_FEDAVG_COLUMNS,
    {
        (column, row, model): printed.TABLE2[column, "per-fedavg", model]
        for column in _PER_FEDAVG_COLUMNS
        for row in _PER_FEDAVG
        for model in "GP"
    },
)

TABLES = {table.name: table for table in (TABLE2, ABLATION, AGGREGATION, PRIORS, PER_FEDAVG)}
