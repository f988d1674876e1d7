"""Loading data: from a name, a file, arrays or an object to a federation."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from pfedbred import settings as settings_
from pfedbred.data import prepared
from pfedbred.data.addresses import HUB, PFLLIB, address, is_file
from pfedbred.data.columns import Fill, Standardise
from pfedbred.data.datasets import DATASETS, Dataset
from pfedbred.data.federation import Federation
from pfedbred.data.partition import SPLITS, SplitFunction
from pfedbred.data.pool import TEST_FRACTION, Assignment, Pool, federate
from pfedbred.data.population import Population
from pfedbred.data.sources.hub_dataset import hub_pool
from pfedbred.data.sources.pfllib import pfllib_federation
from pfedbred.data.sources.user_files import pool_from_arrays, pool_from_dataset, pool_from_file
from pfedbred.errors import SettingError, nearest
from pfedbred.io.memory import host_memory
from pfedbred.settings.signatures import build_part, building

Name = str | os.PathLike[str]
Data = Federation | Population


def find(dataset: str | Dataset) -> tuple[Dataset, dict[str, Any]]:
    """The dataset of that name and the checked arguments in parentheses after it, as in ``synthetic(1, 1)``.

    A :class:`Dataset` is checked and returned as it is, with the default arguments.
    """
    if isinstance(dataset, Dataset):
        _check_dataset(dataset)
        return dataset, settings_.resolve_call(dataset.name, dataset.pool, [])
    name, arguments = settings_.parse_call("dataset", dataset)
    if name not in DATASETS:
        raise SettingError(f"unknown dataset {name!r}{nearest(name, DATASETS)}")
    return DATASETS[name], settings_.resolve_call(name, DATASETS[name].pool, arguments)


def _check_dataset(dataset: Dataset) -> None:
    """Rejects a user's dataset that cannot be loaded, before anything is read."""
    try:
        inspect.signature(dataset.pool).bind(None, None, 0)
    except (TypeError, ValueError) as problem:
        raise SettingError(f"a Dataset's pool must be a function of data_dir, clients and seed: {problem}") from None
    if not callable(dataset.paper):
        raise SettingError(f"the paper of the Dataset {dataset.name} must be a function, not {dataset.paper!r}")
    for name, hint in settings_.hints(Dataset).items():
        settings_.check(f"the {name} of the Dataset {dataset.name}", getattr(dataset, name), hint)


def find_split(
    split: str | SplitFunction, dataset: Dataset | None
) -> tuple[str, Callable[..., Assignment], dict[str, Any]]:
    """Name, function and checked arguments of a split, such as ``dirichlet(0.5)``; a function is named by its path."""
    if callable(split):
        module, name = getattr(split, "__module__", None), getattr(split, "__qualname__", type(split).__qualname__)
        return f"{module}.{name}" if module else name, split, {}
    if not isinstance(split, str):
        raise SettingError(f"split must be a name or a function that returns an Assignment, not {split!r}")
    name, arguments = settings_.parse_call("split", split)
    if name == "paper":
        if dataset is None:
            raise SettingError("the split paper is for named datasets and Dataset objects only")
        function = dataset.paper
    elif name in SPLITS:
        function = SPLITS[name]
    else:
        raise SettingError(f"unknown split {name!r}{nearest(name, ('paper', *SPLITS))}")
    return name, function, settings_.resolve_call(name, function, arguments, without=_NOT_IN_PARENTHESES)


_NOT_IN_PARENTHESES = ("clients", "labels_per_client", "seed", "test_fraction", "sizes", "slot_labels")


class Options(TypedDict, total=False):
    """The options of :func:`load`."""

    split: str | SplitFunction | None
    clients: int | None
    labels_per_client: int | None
    seed: int | None
    data_dir: str | None
    glove: str | None
    test_fraction: float | None
    client_column: str | None
    label_column: str | None
    image_column: str | None
    features: str | Sequence[str] | None
    task: str | None
    missing: Fill | None
    standardise: Standardise | None


@overload
def load(dataset: Name | Dataset | Federation | Callable[[], Federation], **options: Unpack[Options]) -> Federation: ...
@overload
def load(dataset: Population | Callable[[], Population], **options: Unpack[Options]) -> Population: ...
@overload
def load(dataset: Name | Dataset | Data | Callable[[], Data], **options: Unpack[Options]) -> Data: ...
def load(
    dataset: Any,
    *,
    split: str | SplitFunction | None = None,
    clients: int | None = None,
    labels_per_client: int | None = None,
    seed: int | None = None,
    data_dir: str | None = None,
    glove: str | None = None,
    test_fraction: float | None = None,
    client_column: str | None = None,
    label_column: str | None = None,
    image_column: str | None = None,
    features: str | Sequence[str] | None = None,
    task: str | None = None,
    missing: Fill | None = None,
    standardise: Standardise | None = None,
) -> Federation | Population:
    """Loads a dataset as a federation.

    Args:
      dataset: a name, which may have arguments as in ``synthetic(1, 1)``; ``hub:owner/name`` for any dataset of the
        public hub; ``pfllib:FOLDER`` for the files that PFLlib writes; the path of a prepared file (.fed) or of your
        own data; a :class:`Dataset`, with the options of a named one; or a Federation, a Population, or a function
        without arguments that returns one. These last, prepared files and PFLlib's files are already split, so they
        take no options about the split.
      split: ``paper``, ``column``, ``iid``, ``dirichlet(0.5)``, ``labels(3)``, ``quantity(0.5)``, or a function
        ``(pool, *, clients, seed, ...) -> Assignment``; by default ``paper`` for a named dataset or a
        Dataset, and ``column`` for your own files.
      clients: number of clients; by default the dataset's.
      labels_per_client: number of labels per client in the split ``paper``; by default the dataset's.
      seed: seed of the split; by default the dataset's.
      data_dir: the folder to search first for named datasets.
      glove: a GloVe file of word vectors, for texts.
      test_fraction: fraction of each client's samples for testing; by default a quarter, unless the split decides it.
      client_column: column of your file, or of the hub's dataset, with the client of each sample.
      label_column: the column with the labels.
      image_column: the column with the images, if they are the inputs.
      features: the columns to use as inputs, or their names separated by commas; by default all others.
      task: what the labels are for: regression reads them as numbers, multi-label as one column of 0 and 1 per label
        (names separated by commas in ``label_column``). By default whole numbers and texts are classes.
      missing: what fills the gaps of a table: the ``mean`` (by default) or ``median`` of the client's training samples.
      standardise: standardise a table's numbers by ``all`` clients' training samples (default), each ``client``'s, or
        ``none``.
    """
    if image_column is not None and features is not None:
        raise SettingError("image_column and features both name the inputs: give only one of them")
    if isinstance(features, str):
        features = [each.strip() for each in features.split(",")]
    columns: dict[str, Any] = {
        "client_column": client_column,
        "label_column": label_column,
        "features": [image_column] if image_column is not None else features,
    }
    options: dict[str, Any] = {
        "split": split,
        "clients": clients,
        "labels_per_client": labels_per_client,
        "glove": glove,
        "test_fraction": test_fraction,
        "missing": missing,
        "standardise": standardise,
    }
    given = {**options, "split_seed": seed, **columns}
    kind, rest = address(dataset)
    if isinstance(dataset, Federation | Population):
        _refuse_options(dataset.name, given)
        return dataset.for_task(task) if task else dataset
    if callable(dataset):
        made = build_part("dataset", dataset, {})
        if not isinstance(made, Federation | Population):
            raise SettingError(f"the dataset function must return a Federation, not a {type(made).__name__}")
        _refuse_options(made.name, given)
        return made.for_task(task) if task else made
    if is_file(dataset):
        path = Path(dataset)
        if path.suffix == prepared.SUFFIX:
            _refuse_options(str(path), given)
            ready = prepared.load(path)
            return ready.for_task(task) if task else ready
        pool = pool_from_file(path, **columns, task=task)
        _check_images(pool, image_column)
        return _split(pool, None, seed=seed or 0, **options)
    if kind == PFLLIB:
        _refuse_options(dataset, given)
        found = pfllib_federation(Path(rest))
        return found.for_task(task) if task else found
    if kind == HUB:
        pool = hub_pool(rest, data_dir, **columns, task=task)
        _check_images(pool, image_column)
        return _split(pool, None, seed=seed or 0, **options)
    if not isinstance(dataset, str | Dataset):
        raise SettingError(
            "dataset must be a name, a path, a Dataset, a Federation, a Population or a function returning one of the "
            f"last two, not {dataset!r}"
        )
    shown = dataset if isinstance(dataset, str) else dataset.name
    for name, value in columns.items():
        if value is not None:
            raise SettingError(f"{name} is for your own files and hub:OWNER/NAME, not for the dataset {shown!r}")
    known, arguments = find(dataset)
    seed = known.seed if seed is None else seed
    count = known.clients if clients is None else settings_.check("clients", clients, settings_.Count)
    if known.population:
        _refuse_too_large(known.population(count, seed, **arguments))
    pool = known.pool(data_dir, count, seed, **arguments)
    if not isinstance(pool, Pool):
        raise SettingError(f"the pool of the Dataset {shown} must return a Pool, not a {type(pool).__name__}")
    federation = _split(pool, known, seed=seed, **options)
    return federation.for_task(task) if task else federation


def _refuse_options(name: str, given: Mapping[str, Any]) -> None:
    for option, value in given.items():
        if value is not None:
            raise SettingError(f"{name} is already split: {option} cannot be changed")


def _check_images(pool: Pool, column: str | None) -> None:
    if column is not None and pool.x.ndim < 3:
        raise SettingError(f"{pool.name}: column {column!r} does not hold images; name other inputs with --features")


def _refuse_too_large(population: Population) -> None:
    needed, room = 2 * population.bytes, host_memory()  # twice, because the samples are finally copied by client
    if needed > room:
        raise SettingError(
            f"{population.name} with {population.clients:,} clients needs about {needed / 1e9:,.1f} GB, but only "
            f"{room / 1e9:,.1f} GB are available: use fewer clients, or participation sample"
        )


def population(
    dataset: Any,
    *,
    split: str | SplitFunction | None = None,
    clients: int | None = None,
    seed: int | None = None,
    data_dir: str | None = None,
    **others: Any,
) -> Population | None:
    """The clients of :func:`load`, generated on demand, if the data and the options allow it; None otherwise."""
    if isinstance(dataset, Population):
        return dataset
    if not isinstance(dataset, str | Dataset) or is_file(dataset) or address(dataset)[0]:
        return None
    if any(value is not None for value in others.values()):
        return None
    known, arguments = find(dataset)
    if known.population is None or split not in (None, "paper"):
        return None
    return known.population(clients or known.clients, known.seed if seed is None else seed, **arguments)


def from_arrays(
    x: Any, y: Any, client: Any = None, *, name: str = "custom", task: str | None = None, **options: Any
) -> Federation:
    """A federation from arrays of samples, labels and clients; without clients, give a ``split``.

    The options are ``split``, ``clients``, ``seed``, ``test_fraction``, ``glove`` and ``task`` of :func:`load`.

    Example:
      >>> import numpy as np, pfedbred
      >>> x, y, shop = np.eye(6), [0, 1, 0, 1, 0, 1], ["a", "a", "a", "b", "b", "b"]
      >>> pfedbred.from_arrays(x, y, shop).names
      ('a', 'b')
    """
    return _split(pool_from_arrays(x, y, client, name=name, task=task), None, **options)


def from_dataset(dataset: Any, *, name: str = "custom", **options: Any) -> Federation:
    """A federation from a `datasets.Dataset`: see :func:`load` for ``client_column`` and the other options."""
    columns = {key: options.pop(key, None) for key in ("client_column", "label_column", "features", "task")}
    return _split(pool_from_dataset(dataset, name=name, **columns), None, **options)


def _split(
    pool: Pool,
    known: Dataset | None,
    *,
    split: str | SplitFunction | None = None,
    clients: int | None = None,
    labels_per_client: int | None = None,
    seed: int = 0,
    glove: str | None = None,
    test_fraction: float | None = None,
    missing: Fill | None = None,
    standardise: Standardise | None = None,
) -> Federation:
    """The federation of a pool: passes on the options that the split takes, and rejects others that are given."""
    chosen = split or ("paper" if known else "column")
    name, function, arguments = find_split(chosen, known)
    shown = chosen if isinstance(chosen, str) else name
    parameters = inspect.signature(function).parameters
    if clients is None and known:
        clients = known.clients
    if clients is None and "clients" in parameters and parameters["clients"].default is inspect.Parameter.empty:
        raise SettingError(f"the split {shown} needs a number of clients")
    if clients is not None:
        settings_.check("clients", clients, settings_.Count)
    if (
        clients is not None and clients > len(pool.y) and not callable(split)
    ):  # before a split allocates memory for them
        raise SettingError(f"{pool.name} has {len(pool.y)} samples, too few for {clients} clients: use fewer clients")
    if labels_per_client is not None and "labels_per_client" not in parameters:
        raise SettingError(f"labels_per_client does not apply to the split {shown}; use labels({labels_per_client})")
    if test_fraction is not None and "test_fraction" not in parameters:
        raise SettingError(f"test_fraction cannot be chosen with the split {shown}")
    if test_fraction is not None and not 0 <= test_fraction < 1:
        raise SettingError(f"test_fraction must be at least 0 and below 1, not {test_fraction}")
    if test_fraction is not None and pool.is_test is not None:
        raise SettingError(f"{pool.name} already has separate test samples: test_fraction cannot be chosen")
    if labels_per_client is None and known:
        labels_per_client = known.labels_per_client
    if test_fraction is None and name != "paper":  # the splits of named datasets have their own defaults
        test_fraction = TEST_FRACTION
    options = {
        "clients": clients,
        "labels_per_client": labels_per_client,
        "seed": seed,
        "test_fraction": test_fraction,
    }
    options = {key: value for key, value in options.items() if key in parameters and value is not None}
    try:
        with building("split", chosen):
            assignment = function(pool, **options, **arguments)
    except ModuleNotFoundError as absent:
        raise SettingError(f"the split {shown} needs {absent.name}: pip install 'pfedbred[data]'") from None
    if not isinstance(assignment, Assignment):
        raise SettingError(f"the split {shown} must return an Assignment, not a {type(assignment).__name__}")
    about = {"split": shown, "seed": seed}
    return federate(pool, assignment, glove=glove, missing=missing, standardised=standardise, about=about)
