"""The fields of an experiment, in groups by what they decide. Every field is declared here and nowhere else.

A field's metadata says what the rest of the library needs to know of it:

    help         for the command line
    result       whether it can change a run's results: if not, a resumed run may have another value
    identifies   whether it is part of what identifies a result of the paper's tables
    later        whether it came after their first records: at its default it identifies nothing
    deployed     whether a real federation's run config may set it
    sent         whether it is sent to the clients of a real federation
    path         whether it is a path, recorded as an absolute one
    load         whether data is loaded with it: an option of :func:`pfedbred.load`
    node         whether a client of a real federation may set it in its node config
    parts        whether it names parts of the network
    predicts     whether it decides how trained models predict
    at_server    whether a real federation reads it, or what it needs, on the server's machine alone
    unfit        why an estimator refuses it, apart from the options of :func:`pfedbred.load`, which its table decides
    flag         another option of the command line for it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import optax

from pfedbred.aggregation import RULES
from pfedbred.algorithms.batch_statistics import BatchNorm
from pfedbred.algorithms.posterior import Posterior
from pfedbred.data.datasets import Dataset
from pfedbred.data.federation import Federation
from pfedbred.data.partition import SPLITS
from pfedbred.data.population import Population
from pfedbred.engine.metrics import METRICS, Metric, MetricLike
from pfedbred.engine.selection import SELECTIONS
from pfedbred.models import Model
from pfedbred.settings.values import Count, Fraction, Level, Minority, NonNegativeCount, Seed
from pfedbred.tasks import TaskKind


def option(
    default: Any,
    help: str = "",
    *,
    result: bool = True,
    identifies: bool = True,
    later: bool = False,
    deployed: bool = False,
    sent: bool = False,
    path: bool = False,
    load: bool = False,
    node: bool = False,
    parts: bool = False,
    predicts: bool = False,
    at_server: bool = False,
    unfit: str | None = None,
    flag: str | None = None,
) -> Any:
    """A field with its metadata. A mutable default is given as a function that makes it."""
    metadata = {
        "help": help,
        "result": result,
        "identifies": identifies,
        "later": later,
        "deployed": deployed,
        "sent": sent,
        "path": path,
        "load": load,
        "node": node,
        "parts": parts,
        "predicts": predicts,
        "at_server": at_server,
        "unfit": unfit,
        "flag": flag,
    }
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class DataOptions:
    """Which samples each client has."""

    dataset: str | Dataset | Federation | Population | Callable[..., Any] = option(
        "digits",
        "dataset by name (see 'pfedbred list datasets'), hub:OWNER/NAME, pfllib:FOLDER, or your own file",
        unfit="the table decides it",
    )
    split: str | Callable[..., Any] | None = option(
        None,
        f"how samples are divided among clients: paper, {', '.join(SPLITS)}, with settings in parentheses as in "
        "dirichlet(0.5); by default the dataset's usual split",
        load=True,
        node=True,
    )
    clients: Count | None = option(
        None,
        "number of clients to split the data over; by default the dataset's own",
        identifies=False,
        load=True,
        node=True,
    )
    labels_per_client: Count | None = option(
        None, "labels per client in the paper's split; by default the dataset's own", load=True, node=True
    )
    split_seed: Seed | None = option(
        None,
        "seed of the split, the same for all seeds of the run; by default the dataset's own",
        identifies=False,
        load=True,
        node=True,
    )
    data_dir: str | None = option(
        None,
        "folder with the data; by default $PFEDBRED_DATA, the cache, or a download",
        result=False,
        identifies=False,
        path=True,
        load=True,
        node=True,
    )
    client_column: str | None = option(
        None, "table column with each sample's client [default: client]", identifies=False, load=True
    )
    label_column: str | None = option(
        None, "table column with the labels [default: label or y]", identifies=False, load=True, node=True
    )
    image_column: str | None = option(
        None, "table column with the images, if they are the inputs", identifies=False, load=True
    )
    features: str | list[str] | None = option(
        None,
        "table columns used as inputs, separated by commas; by default all others",
        identifies=False,
        load=True,
        node=True,
    )
    glove: str | None = option(
        None, "file of word vectors, for text; by default the dataset's own, or learned ones", path=True, load=True
    )
    missing: Literal["mean", "median"] | None = option(
        None,
        "fill missing values with the client's training mean or median [default: mean]",
        identifies=False,
        load=True,
    )
    standardise: Literal["all", "client", "none"] | None = option(
        None,
        "standardise numeric columns over all clients (all), per client (client), or not at all (none) [default: all]",
        identifies=False,
        load=True,
    )
    held_out_clients: Fraction | list[str] | str | None = option(
        None,
        "clients held out of training, by name or number as in North,South, or a fraction of all; they join after the "
        "last round and are evaluated",
        flag="--hold-out",
        unfit="every client is trained: leave rows out of fit",
    )
    validation: Fraction | None = option(
        None,
        "fraction of each client's training samples held out for validation, to choose a round",
        deployed=True,
        sent=True,
        later=True,
    )


@dataclass(frozen=True)
class TaskOptions:
    """What is learned from the samples."""

    task: str | TaskKind | Callable[..., Any] | None = option(
        None,
        "classification, binary, multi-label or regression; by default inferred from the data",
        identifies=False,
        deployed=True,
        sent=True,
        predicts=True,
        unfit="the table decides it",
    )
    loss: str | Callable[..., Any] | None = option(
        None,
        "loss instead of the task's default: squared, absolute or huber for regression, or your own as module:name",
        identifies=False,
        deployed=True,
        sent=True,
    )
    class_weights: str | list[float] | None = option(
        None,
        "weights of the labels in the loss: numbers such as 1,5, or balanced to give all labels equal weight",
        identifies=False,
        deployed=True,
        sent=True,
        unfit="classifiers have class_weight",
    )


@dataclass(frozen=True)
class ModelOptions:
    """Which network."""

    model: str | Model | Callable[..., Any] = option(
        "mclr",
        "model by name (see 'pfedbred list models')",
        deployed=True,
        sent=True,
        predicts=True,
    )
    batch_norm: BatchNorm = option(
        "local",
        "for networks with batch norm: keep statistics per client (local), average them (average), or use group norm "
        "instead (group)",
        deployed=True,
        sent=True,
        later=True,
        predicts=True,
    )
    precision: Literal["float32", "bfloat16"] = option(
        "float32",
        "precision of the network's matrix products: float32, or bfloat16 (params, losses and averages stay float32)",
        deployed=True,
        sent=True,
        later=True,
        predicts=True,
    )
    start_from: Any = option(
        None,
        "initial params instead of random ones: a model written by 'pfedbred export', a safetensors file of params, or "
        "a run folder (its G)",
        deployed=True,
        later=True,
        at_server=True,
    )
    start_parts: str | list[str] | None = option(
        None,
        "load only these parts of start_from, such as conv1,conv2; the others are initialised at random",
        deployed=True,
        later=True,
        parts=True,
        at_server=True,
        unfit="start_from takes all params",
    )
    train_only: str | list[str] | None = option(
        None,
        "train only these parts of the network, such as output; the others stay frozen at start_from",
        later=True,
        parts=True,
        predicts=True,
        unfit="all params are trained",
    )


@dataclass(frozen=True)
class MethodOptions:
    """Which algorithm, with which hyper-parameters."""

    algorithm: Any = option(
        "mg-meta", "algorithm by name (see 'pfedbred list algorithms')", deployed=True, sent=True, predicts=True
    )
    settings: Any = option(dict, sent=True, predicts=True)
    local_optimizer: str | dict[str, Any] | optax.GradientTransformation | Callable[..., Any] = option(
        "sgd",
        "optax optimizer for local steps, by name: sgd(momentum=0.9), adam(clip=1, weight_decay=0.001)",
        deployed=True,
        sent=True,
        later=True,
    )
    keep_optimizer: bool = option(
        False, "clients keep their optimizer's state from round to round", deployed=True, sent=True, later=True
    )


@dataclass(frozen=True)
class ProtocolOptions:
    """How rounds go and how they are evaluated, whatever the algorithm."""

    rounds: Count = option(100, "rounds of training", deployed=True, sent=True, predicts=True)
    seeds: Count = option(1, "number of seeds, run side by side", unfit="an estimator runs a single seed, random_state")
    seed: NonNegativeCount = option(
        0,
        "first seed; the others follow it",
        deployed=True,
        sent=True,
        unfit="an estimator runs a single seed, random_state",
    )
    joining_rounds: Count = option(5, "rounds of local training for held-out clients when they join")
    participation: Literal["all", "sample"] = option(
        "all",
        "clients that train in a round: all (as in the paper), or only the sampled cohort (sample)",
        deployed=True,
        sent=True,
    )
    aggregated: Count | None = option(
        None, "number of clients averaged per round; by default a fifth of all, or all of at most ten", deployed=True
    )
    select: str | list[int] | Callable[..., Any] = option(
        "uniform",
        f"how the averaged clients are selected: {', '.join(SELECTIONS)}, or client numbers such as 0,3,5",
        deployed=True,
    )
    weights: Literal["data", "unbounded", "uniform"] | None = option(
        None,
        "averaging weights: by number of training samples, capped (data) or not (unbounded), or uniform [default: "
        "data; uniform with select by-data, which already accounts for size]",
        deployed=True,
    )
    screening: Literal["directions", "norms"] = option(
        "directions",
        "reject outlying updates by norm, direction (if the model has several outputs) and response to the server's "
        "steps (directions), or by norm alone (norms)",
        deployed=True,
        later=True,
    )
    aggregate: str | Callable[..., Any] = option(
        "mean",
        f"aggregation rule: {', '.join(RULES)}; all but mean are robust to faulty clients",
        deployed=True,
        later=True,
    )
    outliers: Minority = option(
        0.2, "fraction of a round's uploads that trimmed (at each end) and krum discard", deployed=True, later=True
    )
    batch_size: Count = option(20, "minibatch size", deployed=True, sent=True)
    last_batch: Literal["keep", "drop"] = option(
        "keep",
        "when training by epochs, keep or drop the smaller last minibatch",
        deployed=True,
        sent=True,
        later=True,
    )
    augment: str | Callable[..., Any] | None = option(
        None, "random augmentation of training images: crop, flip or crop-flip", deployed=True, sent=True, later=True
    )
    eval_every: Count = option(1, "rounds between evaluations", deployed=True)
    metrics: str | list[MetricLike] | Metric | Callable[..., Any] | None = option(
        None,
        f"metrics to evaluate, such as {','.join(list(METRICS)[2:5])} (see 'pfedbred list metrics'); by "
        "default those of the task",
        identifies=False,
        deployed=True,
        sent=True,
    )
    posterior: Posterior | None = option(
        None,
        "let personal models predict with a posterior: of their last layer by laplace or sgld (draws from it), or the "
        "ensemble of the run's seeds, when training is over",
        deployed=True,
        sent=True,
        later=True,
        predicts=True,
    )
    coverage: Level | None = option(
        None,
        "after training, calibrate probabilities on validation samples, and sets or intervals that "
        "contain the true label with this frequency, such as 0.9",
        identifies=False,
    )
    diagnostics: bool = option(
        False,
        "also record the method's diagnostics, such as update norms",
        identifies=False,
        deployed=True,
        sent=True,
    )


@dataclass(frozen=True)
class ExecutionOptions:
    """Where and how the program runs, and which clients are evaluated."""

    store: Literal["auto", "device", "memory", "file"] = option(
        "auto",
        "where client states are kept between rounds: device, memory or file; auto picks the first with enough room",
        identifies=False,
    )
    store_dir: str | None = option(
        None,
        "folder for the file of client states; by default the system's temporary folder",
        result=False,
        identifies=False,
        path=True,
    )
    scored_clients: Count | None = option(
        None,
        "number of clients to evaluate, a fixed random sample, if clients are not on the device [default: 1000]",
        identifies=False,
    )
    executor: str = option(
        "auto", "how clients run: auto, vmap, in-turn, or loop (slow reference)", result=False, identifies=False
    )
    chunk: Count | None = option(
        None,
        "number of clients that vmap runs at a time; by default all, or as many as fit into device memory",
        result=False,
        identifies=False,
    )


GROUPS = (DataOptions, TaskOptions, ModelOptions, MethodOptions, ProtocolOptions, ExecutionOptions)
