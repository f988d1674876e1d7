"""The paper's tables, and some beyond it."""

from __future__ import annotations

from pfedbred.bregman import priors
from pfedbred.paper import printed
from pfedbred.paper.columns import COLUMNS
from pfedbred.paper.rows import RecordSource, Row, Table

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
_MODELS = {"fedavg": "G", "fedavg+am": "G", "fedem": "GP", "fedamp": "P"}
_IMAGES = ("mnist-mclr", "mnist-dnn", "fmnist-mclr", "fmnist-dnn")

TABLE2 = Table(
    "table2",
    "Table 2: global and personal models",
    {name: Row(name) for name in _METHODS},
    tuple(COLUMNS),
    printed.TABLE2,
    models=_MODELS,
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

FO_STEP = Table(
    "fo-step",
    "fo with the paper's eta_alpha, and with twice as much",
    {
        "eta_a=0.01": Row("fo", source=RecordSource("ablation", "fo")),
        "eta_a=0.02": Row("fo", {"settings": {"eta_a": 0.02}}),
    },
    _IMAGES,
    compared={"eta_a=0.02": "eta_a=0.01"},
)

SPLITS = Table(
    "splits",
    "Beyond the paper: Table 2 on three splits of the data",
    {name: Row(name, source=RecordSource("table2", name)) for name in _METHODS},
    _IMAGES,
    {(column, row, model): figure for (column, row, model), figure in printed.TABLE2.items() if column in _IMAGES},
    models=_MODELS,
    splits=(None, 2, 3),
    compared={name: "mg-meta" for name in _METHODS if name != "mg-meta"},
)

_STRENGTHS = (15.0, 1.0, 0.1)

PRIORS = Table(
    "priors",
    "Beyond the paper: mg-meta with every prior, at the same strength",
    {
        f"{name}-{strength:g}": Row("mg-meta", {"settings": {"prior": name}}, strength)
        for strength in _STRENGTHS
        for name in priors.PRIORS
    }
    | {"bernoulli-3.75": Row("mg-meta", {"settings": {"prior": "bernoulli"}}, 3.75)},
    ("mnist-mclr", "fmnist-mclr"),
    about=(
        "A row is a prior and its strength: lambda times the curvature of its penalty at zero, which is 1/4 for the",
        "Bernoulli family and 1 for the others. bernoulli-3.75 has the Gaussian's lambda, 15.",
    ),
    compared={
        f"{name}-{strength:g}": f"gaussian-{strength:g}"
        for strength in _STRENGTHS
        for name in priors.PRIORS
        if name != "gaussian"
    }
    | {"bernoulli-3.75": "gaussian-15"},
)

_PER_FEDAVG = ("per-fedavg", "per-fedavg+ft", "per-fedavg+am")
_VARIANTS: dict[str, tuple[Row, str]] = {  # with the row of Table 2 that a variant may explain
    **{name: (Row(name, source=RecordSource("table2", name)), name) for name in _PER_FEDAVG},
    **{
        name.replace("per-fedavg", "two-steps"): (Row(name, {"settings": {"adapt_steps": 2}}), name)
        for name in _PER_FEDAVG
    },
    **{
        f"one-step-{steps}": (Row("reptile", {"settings": {"adapt_steps": 1, "R": steps}}), "per-fedavg")
        for steps in (20, 40)
    },
}
_PER_FEDAVG_COLUMNS = ("fmnist-mclr", "fmnist-dnn", "mnist-mclr", "mnist-dnn", "cifar10-cnn")

PER_FEDAVG = Table(
    "per-fedavg",
    "Beyond the paper: variants of Per-FedAvg",
    {name: row for name, (row, _) in _VARIANTS.items()},
    _PER_FEDAVG_COLUMNS,
    {
        (column, name, model): printed.TABLE2[column, meant, model]
        for column in _PER_FEDAVG_COLUMNS
        for name, (_, meant) in _VARIANTS.items()
        for model in "GP"
    },
    about=(
        "per-fedavg: the method's own definition, one step before the test. two-steps: as the paper's appendix has it.",
        "one-step-20 and one-step-40: FedAvg with 20 and 40 local steps, and one step before the test.",
    ),
    shows_fit=True,
)

FEDEM = Table(
    "fedem",
    "FedEM by the number of components",
    {
        f"M={count}": Row(
            "fedem", {"settings": {"M": count}}, source=RecordSource("table2", "fedem") if count == 3 else None
        )
        for count in (2, 3, 5)
    },
    _IMAGES,
    {(column, f"M={count}", "G"): printed.TABLE2[column, "fedem", "G"] for column in _IMAGES for count in (2, 3, 5)},
)

_STEP = {"alpha": 0.05}
_DEEP = {"fedavg": _STEP, "ditto": _STEP, "mg-meta": {**_STEP, "eta_a": 0.05, "R": 5}}  # 20, 40 and 35 gradients

BATCH_NORM = Table(
    "batch-norm",
    "Beyond the paper: batch normalisation, its statistics kept by clients or averaged, and group normalisation",
    {
        f"{name}-{choice}": Row(name, {"settings": settings, "batch_norm": choice, "precision": "bfloat16"})
        for name, settings in _DEEP.items()
        for choice in ("local", "average", "group")
    },
    ("skewed-resnet18",),
    about=(
        "A row is a method and its --batch-norm. G of FedAvg is evaluated with the average of all clients' statistics;",
        "its P has the same params and, with local, each client's own statistics. Products in bfloat16.",
    ),
    compared={f"{name}-{choice}": f"{name}-local" for name in _DEEP for choice in ("average", "group")},
)

PRECISION = Table(
    "precision",
    "Beyond the paper: products in float32 and in bfloat16",
    {
        f"{name}-{precision}": Row(name, {"settings": _DEEP[name], "batch_norm": "group", "precision": precision})
        for name in ("fedavg", "mg-meta")
        for precision in ("float32", "bfloat16")
    },
    ("skewed-cnn", "skewed-resnet18"),
    about=("ResNet-18 has group normalisation. Seconds are those of all seeds, evaluations and compilation included.",),
    models={f"fedavg-{precision}": "G" for precision in ("float32", "bfloat16")},
    compared={f"{name}-bfloat16": f"{name}-float32" for name in ("fedavg", "mg-meta")},
    shows_seconds=True,
)

TABLES = {
    table.name: table
    for table in (
        TABLE2,
        ABLATION,
        AGGREGATION,
        FO_STEP,
        PER_FEDAVG,
        FEDEM,
        PRIORS,
        SPLITS,
        BATCH_NORM,
        PRECISION,
    )
}
