"""Data: from a source to a pool of samples, through a split, to a federation."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred import settings as settings_
from pfedbred.data import prepared
from pfedbred.data.federation import Federation
from pfedbred.data.partition.paper import paper_split
from pfedbred.data.partition.splits import SPLITS, by_labels, column
from pfedbred.data.pool import Assignment, Pool, federate
from pfedbred.data.population import Population
from pfedbred.data.sources import hub
from pfedbred.data.sources.leaf import by_groups, by_writer
from pfedbred.data.sources.synthetic import by_client, synthetic_pool, synthetic_population
from pfedbred.data.sources.user_files import pool_from_arrays, pool_from_dataset, pool_from_file
from pfedbred.errors import SettingError, nearest
from pfedbred.settings.values import NonNegative


class Dataset(NamedTuple):
    """A named dataset.

    Attributes:
      pool: ``pool(data_dir, clients, seed, ...)`` reads or makes its samples; what follows may be given in
        parentheses, as in ``synthetic(1, 1)``.
      paper: what the split ``paper`` means for it.
      clients: how many it has if the user does not say; None if the data knows.
      labels_per_client: likewise, for splits by label.
      seed: of its usual split.
      population: ``population(clients, seed, ...)`` makes the same clients as the usual split, each on demand.
    """

    pool: Callable[..., Pool]
    paper: Callable[..., Assignment]
    clients: int | None = None
    labels_per_client: int | None = None
    seed: int = 0
    population: Callable[..., Population] | None = None


def digits(data_dir: str | None, clients: int, seed: int) -> Pool:
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""
    from sklearn.datasets import load_digits  # takes a second: only where it is used

    x, y = load_digits(return_X_y=True)
    return Pool("digits", (x / 16.0).astype(np.float32), y.astype(np.int32), 10)


def mnist(data_dir: str | None, clients: int, seed: int) -> Pool:
    """MNIST with true labels."""
    return hub.mnist_pool(data_dir, "mnist")


def mnist_paper(data_dir: str | None, clients: int, seed: int) -> Pool:
    """MNIST; its paper split has the label noise behind the paper's MNIST column."""
    return hub.mnist_pool(data_dir, "mnist-paper")


def fashion_mnist(data_dir: str | None, clients: int, seed: int) -> Pool:
    """Fashion-MNIST."""
    return hub.fashion_mnist_pool(data_dir)


def cifar10(data_dir: str | None, clients: int, seed: int) -> Pool:
    """CIFAR-10, pixels in [-1, 1]."""
    return hub.cifar10_pool(data_dir)


def femnist(data_dir: str | None, clients: int, seed: int) -> Pool:
    """FEMNIST: handwritten characters, every writer a client."""
    return hub.femnist_pool(data_dir)


def sent140(data_dir: str | None, clients: int, seed: int) -> Pool:
    """Sent140: tweets with their sentiment, the authors gathered into groups."""
    return hub.sent140_pool(data_dir)


def synthetic(
    data_dir: str | None, clients: int, seed: int, *, alpha: NonNegative = 1.0, beta: NonNegative = 1.0
) -> Pool:
    """Synthetic(alpha, beta): alpha is how much the clients' models differ, beta how much their inputs do."""
    return synthetic_pool(alpha, beta, clients, seed, "synthetic")


def synthetic_on_demand(clients: int, seed: int, *, alpha: float, beta: float) -> Population:
    """The same, client by client."""
    return synthetic_population(alpha, beta, clients, seed, "synthetic", TEST_FRACTION)


TEST_FRACTION = 0.25

DATASETS: dict[str, Dataset] = {
    "cifar10": Dataset(cifar10, partial(paper_split, sizes="cifar10"), clients=20, labels_per_client=3, seed=1),
    "digits": Dataset(digits, partial(by_labels, test_fraction=0.25), clients=20, labels_per_client=3),
    "fashion-mnist": Dataset(fashion_mnist, paper_split, clients=100, labels_per_client=2, seed=1),
    "femnist": Dataset(femnist, by_writer),
    "mnist": Dataset(mnist, paper_split, clients=100, labels_per_client=3, seed=1),
    "mnist-paper": Dataset(
        mnist_paper, partial(paper_split, slot_labels=True), clients=100, labels_per_client=3, seed=1
    ),
    "sent140": Dataset(sent140, by_groups, clients=10),
    "synthetic": Dataset(
        synthetic, partial(by_client, test_fraction=TEST_FRACTION), clients=100, population=synthetic_on_demand
    ),
}
"""Every named dataset. A new one is a function that reads its samples, and a line here."""


def is_file(dataset: str) -> bool:
    """Whether that is a path and not the name of a dataset."""
    if dataset in DATASETS or len(dataset) > 4000 or "\0" in dataset:
        return False
    known = (prepared.SUFFIX, ".npz", ".csv", ".parquet")
    return Path(dataset).suffix in known or "/" in dataset or os.path.isdir(dataset)  # False for a name too long


def find(dataset: str) -> tuple[Dataset, dict[str, Any]]:
    """The named dataset, and what stands in parentheses after its name, checked."""
    name, arguments = settings_.parse_call("dataset", dataset)
    if name not in DATASETS:
        raise SettingError(f"unknown dataset {name!r}{nearest(name, DATASETS)}")
    return DATASETS[name], settings_.resolve_call(name, DATASETS[name].pool, arguments)


def load(
    dataset: str,
    *,
    split: str | None = None,
    clients: int | None = None,
    labels_per_client: int | None = None,
    seed: int | None = None,
    data_dir: str | None = None,
    glove: str | None = None,
    test_fraction: float | None = None,
    client_column: str | None = None,
    label_column: str | None = None,
    features: Sequence[str] | None = None,
) -> Federation:
    """The federation of a dataset: by name, from a prepared file, or from data of one's own.

    Args:
      dataset: a name, possibly with arguments such as ``synthetic(1, 1)``; or a path.
      split: ``paper``, ``column``, ``iid``, ``dirichlet(0.5)``, ``labels(3)``, ``quantity(0.5)``; by default
        ``paper`` for a named dataset and ``column`` for data of one's own.
      clients: how many; the dataset's own number if not given.
      labels_per_client: for the split ``paper``; the dataset's own number if not given.
      seed: of the split; the dataset's own if not given.
      data_dir: where named datasets are looked for first.
      glove: a file of word vectors, for texts.
      test_fraction: of each client's samples; a quarter if not given and the split does not say itself.
      client_column: of a file of one's own: whose a sample is.
      label_column: of a file of one's own.
      features: the columns that are inputs; all others if not given.
    """
    columns = {"client_column": client_column, "label_column": label_column, "features": features}
    if is_file(dataset):
        if Path(dataset).suffix == prepared.SUFFIX:
            given = {"split": split, "clients": clients, "labels_per_client": labels_per_client, "split_seed": seed}
            for name, value in {**given, "glove": glove, "test_fraction": test_fraction, **columns}.items():
                if value is not None:
                    raise SettingError(f"{dataset} is split already: {name} cannot be chosen any more")
            return prepared.load(Path(dataset))
        pool = pool_from_file(Path(dataset), **columns)  # type: ignore[arg-type]
        return _split(pool, None, split, clients, labels_per_client, seed or 0, glove, test_fraction)
    for name, value in columns.items():
        if value is not None:
            raise SettingError(f"{name} is for a file of one's own, not for {dataset!r}")
    known, arguments = find(dataset)
    seed = known.seed if seed is None else seed
    pool = known.pool(data_dir, clients or known.clients, seed, **arguments)
    return _split(pool, known, split, clients, labels_per_client, seed, glove, test_fraction)


def population(
    dataset: str,
    *,
    split: str | None = None,
    clients: int | None = None,
    seed: int | None = None,
    labels_per_client: int | None = None,
    glove: str | None = None,
) -> Population | None:
    """The clients of :func:`load` made on demand, for data and options that allow it; None otherwise."""
    if is_file(dataset) or labels_per_client is not None or glove is not None:
        return None
    known, arguments = find(dataset)
    if known.population is None or split not in (None, "paper"):
        return None
    return known.population(clients or known.clients, known.seed if seed is None else seed, **arguments)


def _split(
    pool: Pool,
    known: Dataset | None,
    split: str | None,
    clients: int | None,
    labels_per_client: int | None,
    seed: int,
    glove: str | None,
    test_fraction: float | None,
) -> Federation:
    """Splits a pool as asked, or as is usual for it."""
    split = split or ("paper" if known else "column")
    name, function, arguments = find_split(split, known)
    options: dict[str, Any] = {"clients": clients, "labels_per_client": labels_per_client}
    if known:
        own = {"clients": known.clients, "labels_per_client": known.labels_per_client}
        options = {key: own[key] if value is None else value for key, value in options.items()}
    accepted = inspect.signature(function).parameters
    if options["clients"] is None and function is not column and known is None:
        raise SettingError(f"the split {split} needs a number of clients")
    if labels_per_client is not None and "labels_per_client" not in accepted:
        raise SettingError(f"labels_per_client is not for the split {split}; there is labels({labels_per_client})")
    if test_fraction is not None and ("test_fraction" not in accepted or not 0 <= test_fraction < 1):
        raise SettingError(f"test_fraction = {test_fraction} cannot be had with the split {split}")
    if test_fraction is not None and pool.is_test is not None:
        raise SettingError(f"{pool.name} is divided into training and test already: test_fraction cannot be chosen")
    if "test_fraction" in accepted and (test_fraction is not None or name != "paper"):
        options["test_fraction"] = TEST_FRACTION if test_fraction is None else test_fraction
    options = {key: value for key, value in options.items() if key in accepted}
    try:
        assignment = function(pool, seed=seed, **options, **arguments)
    except ModuleNotFoundError as missing:
        raise SettingError(f"the split {split} needs {missing.name}: pip install 'pfedbred[data]'") from None
    about = {"split": split, "seed": seed}
    return federate(pool, assignment, glove=glove, about=about)


def find_split(split: str, known: Dataset | None) -> tuple[str, Callable[..., Assignment], dict[str, Any]]:
    """The split of that name, and what stands in parentheses after it, checked."""
    name, arguments = settings_.parse_call("split", split)
    if name == "paper":
        if known is None:
            raise SettingError("the split paper is for the paper's own datasets")
        function = known.paper
    elif name in SPLITS:
        function = SPLITS[name]
    else:
        raise SettingError(f"unknown split {name!r}{nearest(name, ('paper', *SPLITS))}")
    return name, function, settings_.resolve_call(name, function, arguments, without=_GIVEN_TO_SPLITS)


_GIVEN_TO_SPLITS = ("clients", "labels_per_client", "seed", "test_fraction", "sizes", "slot_labels")


def from_arrays(x: Any, y: Any, client: Any = None, *, name: str = "custom", **options: Any) -> Federation:
    """A federation from arrays: samples, labels, and whose each sample is; or how to ``split`` them.

    Example:
      >>> import numpy as np, pfedbred
      >>> x, y, shop = np.eye(6), [0, 1, 0, 1, 0, 1], ["a", "a", "a", "b", "b", "b"]
      >>> pfedbred.from_arrays(x, y, shop).names
      ('a', 'b')
    """
    return _split_options(pool_from_arrays(x, y, client, name=name), **options)


def from_dataset(dataset: Any, *, name: str = "custom", **options: Any) -> Federation:
    """A federation from a `datasets.Dataset`: see :func:`load` for ``client_column`` and the other options."""
    columns = {key: options.pop(key, None) for key in ("client_column", "label_column", "features")}
    return _split_options(pool_from_dataset(dataset, name=name, **columns), **options)


def _split_options(
    pool: Pool,
    *,
    split: str | None = None,
    clients: int | None = None,
    seed: int = 0,
    test_fraction: float | None = None,
    glove: str | None = None,
) -> Federation:
    return _split(pool, None, split, clients, None, seed, glove, test_fraction)
