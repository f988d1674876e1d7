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
from pfedbred.data.federation import Federation
from pfedbred.data.partition import SPLITS
from pfedbred.data.population import Population
from pfedbred.engine.metrics import METRICS, Given, Metric
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
    }
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class DataOptions:
    """Which samples each client has."""

    dataset: str | Federation | Population | Callable[..., Any] = option(
        "digits", "dataset by name (see 'pfedbred list datasets'), hub:OWNER/NAME, pfllib:FOLDER, or your own file"
    )
    split: str | Callable[..., Any] | None = option(
        None,
        f"how samples are split over clients: paper, {', '.join(SPLITS)}, with settings in parentheses as in "
        "dirichlet(0.5); by default the dataset's usual split",
        load=True,
        node=True,
    )
    clients: Count | None = option(
        None,
        "clients to split the data over; by default the dataset's own number",
        identifies=False,
        load=True,
        node=True,
    )
    labels_per_client: Count | None = option(
        None, "labels per client in the paper's split; by default the dataset's own number", load=True, node=True
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
        None, "column of a table with each sample's client [default: client]", identifies=False, load=True
    )
    label_column: str | None = option(
        None, "column of a table with the labels [default: label or y]", identifies=False, load=True, node=True
    )
    image_column: str | None = option(
        None, "column of a table with the images that are the inputs", identifies=False, load=True
    )
    features: str | list[str] | None = option(
        None,
        "columns of a table that are the inputs, separated by commas; by default all others",
        identifies=False,
        load=True,
        node=True,
    )
    glove: str | None = option(
        None, "file of word vectors, for text; by default those of the dataset, or learned ones", path=True, load=True
    )
    missing: Literal["mean", "median"] | None = option(
        None,
        "what fills the gaps of a table, of the client's training samples: mean or median [default: mean]",
        identifies=False,
        load=True,
    )
    standardise: Literal["all", "client", "none"] | None = option(
        None,
        "numbers of a table by the training samples of all clients, of each client, or none [default: all]",
        identifies=False,
        load=True,
    )
    held_out_clients: Fraction | None = option(
        None, "fraction of the clients kept out of training; they join at the end and are evaluated"
    )
    validation: Fraction | None = option(
        None,
        "fraction of each client's training samples kept out of training, to choose a round by",
        deployed=True,
        sent=True,
        later=True,
    )


@dataclass(frozen=True)
class TaskOptions:
    """What is learned from the samples."""

    task: str | TaskKind | Callable[..., Any] | None = option(
        None,
        "classification, binary, multi-label, or regression for numbers; by default what the data is for",
        identifies=False,
        deployed=True,
        sent=True,
    )
    loss: str | Callable[..., Any] | None = option(
        None,
        "loss in place of the task's own: squared, absolute or huber for numbers, or a function as module:name",
        identifies=False,
        deployed=True,
        sent=True,
    )
    class_weights: str | list[float] | None = option(
        None,
        "weights of the labels in the loss: numbers such as 1,5, or balanced, so that all labels count alike",
        identifies=False,
        deployed=True,
        sent=True,
    )


@dataclass(frozen=True)
class ModelOptions:
    """Which network."""

    model: str | Model | Callable[..., Any] = option(
        "mclr", "model by name (see 'pfedbred list models')", deployed=True, sent=True
    )
    batch_norm: BatchNorm = option(
        "local",
        "batch norm, in networks that have it: with each client's statistics (local) or averaged ones (average), or "
        "replaced by group norm (group)",
        deployed=True,
        sent=True,
        later=True,
    )
    precision: Literal["float32", "bfloat16"] = option(
        "float32",
        "of the network's products: float32, or bfloat16 with params, losses and averages still in float32",
        deployed=True,
        sent=True,
        later=True,
    )
    start_from: Any = option(
        None,
        "params to start from in place of random ones: a model made by 'pfedbred export', or a run's folder (its G)",
        deployed=True,
        later=True,
    )
    start_parts: str | list[str] | None = option(
        None,
        "take only these parts of start_from, such as conv1,conv2, and draw the others at random",
        deployed=True,
        later=True,
        parts=True,
    )
    train_only: str | list[str] | None = option(
        None,
        "train only these parts of the network, such as output; the others stay as in start_from, one copy for all",
        later=True,
        parts=True,
    )


@dataclass(frozen=True)
class MethodOptions:
    """Which algorithm, with which hyper-parameters."""

    algorithm: Any = option("mg-meta", "algorithm by name (see 'pfedbred list algorithms')", deployed=True, sent=True)
    settings: Any = option(dict, sent=True)
    local_optimizer: str | dict[str, Any] | optax.GradientTransformation | Callable[..., Any] = option(
        "sgd",
        "optimizer of local steps, an optax one by name: sgd(momentum=0.9), adam(clip=1, weight_decay=0.001)",
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

    rounds: Count = option(100, "rounds of training", deployed=True, sent=True)
    seeds: Count = option(1, "how many seeds to run side by side")
    seed: NonNegativeCount = option(0, "the first seed; the others follow it", deployed=True, sent=True)
    joining_rounds: Count = option(5, "rounds of local training for a held-out client that joins")
    participation: Literal["all", "sample"] = option(
        "all",
        "who trains in a round: all clients (as in the paper), or only the sampled cohort",
        deployed=True,
        sent=True,
    )
    aggregated: Count | None = option(
        None, "clients whose uploads a round averages; by default a fifth of them", deployed=True
    )
    select: str | list[int] | Callable[..., Any] = option(
        "uniform",
        f"how the averaged clients are selected: {', '.join(SELECTIONS)}, or client numbers such as 0,3,5",
        deployed=True,
    )
    weights: Literal["data", "unbounded", "uniform"] | None = option(
        None,
        "averaging weights: by training samples, capped (data) or not (unbounded), or uniform [default: data; with "
        "select by-data uniform, as size would count twice]",
        deployed=True,
    )
    screening: Literal["directions", "norms"] = option(
        "directions",
        "reject updates out of line with the others by norm, direction (of models with several outputs) and response "
        "to the server's steps, or by norm alone",
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
        0.2, "fraction of a round's uploads that trimmed (at each end) and krum drop", deployed=True, later=True
    )
    batch_size: Count = option(20, "samples in a minibatch", deployed=True, sent=True)
    last_batch: Literal["keep", "drop"] = option(
        "keep",
        "the smaller last minibatch of a pass, in training by epochs: keep or drop it",
        deployed=True,
        sent=True,
        later=True,
    )
    augment: str | Callable[..., Any] | None = option(
        None, "random changes to training images: crop, flip or crop-flip", deployed=True, sent=True, later=True
    )
    eval_every: Count = option(1, "rounds between evaluations", deployed=True)
    metrics: str | list[Given] | Metric | Callable[..., Any] | None = option(
        None,
        f"metrics on the test samples, such as {','.join(list(METRICS)[2:5])} (see 'pfedbred list metrics'); by "
        "default the task's",
        identifies=False,
        deployed=True,
        sent=True,
    )
    posterior: Posterior | None = option(
        None,
        "make predictions of personal models with a posterior of their last layer: laplace",
        deployed=True,
        sent=True,
        later=True,
    )
    coverage: Level | None = option(
        None,
        "calibrate the models by validation samples when training is over: probabilities, and sets or intervals that "
        "hold the true label this often, such as 0.9",
        identifies=False,
    )
    diagnostics: bool = option(
        False,
        "also record the methods' diagnostics, such as the norm of updates",
        identifies=False,
        deployed=True,
        sent=True,
    )


@dataclass(frozen=True)
class ExecutionOptions:
    """Where and how the program runs, and which clients are evaluated."""

    store: Literal["auto", "device", "memory", "file"] = option(
        "auto",
        "where clients are kept between their rounds: device, memory or file; auto picks the first that fits",
        identifies=False,
    )
    store_dir: str | None = option(
        None,
        "folder for the file of client states; by default the system's for temporary files",
        result=False,
        identifies=False,
        path=True,
    )
    scored_clients: Count | None = option(
        None,
        "clients to evaluate, a fixed random sample, where clients are not on the device [default: 1000]",
        identifies=False,
    )
    executor: str = option(
        "auto", "how clients run: auto, vmap, in-turn, or loop (slow reference)", result=False, identifies=False
    )
    chunk: Count | None = option(
        None,
        "clients that vmap runs at a time; by default all, or as many as the device has memory for",
        result=False,
        identifies=False,
    )


GROUPS = (DataOptions, TaskOptions, ModelOptions, MethodOptions, ProtocolOptions, ExecutionOptions)
