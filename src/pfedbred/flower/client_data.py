"""A client's data, as its SuperNode's ``--node-config`` describes it.

dataset       a file (.npz, .csv, .parquet), a prepared federation (.fed), or a dataset by name
partition-id which client of the dataset it is, if there are several
name the client's display name; by default its node's number
home          the folder in which it keeps its state
columns a file that describes a table's columns, the same for all clients: pfedbred data columns
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred import data
from pfedbred import settings as settings_
from pfedbred.data import TEST_FRACTION, prepared
from pfedbred.data.columns import read_columns
from pfedbred.data.federation import Federation, check_classes
from pfedbred.data.pool import divide, federate
from pfedbred.data.sources.user_files import pool_from_file
from pfedbred.errors import NoSamples, SettingError, file_name, nearest, printable
from pfedbred.experiment.configuration import Experiment, field_names

_DATA_KEYS = {name.replace("_", "-"): name for name in field_names(node=True)}
_OPTIONS: dict[str, type] = {
    "dataset": str,
    "partition-id": int,
    "name": str,
    "home": str,
    **{
        key: int if settings_.is_whole_number(settings_.hints(Experiment)[name]) else str
        for key, name in _DATA_KEYS.items()
    },
    "columns": str,
    "num-partitions": int,  # the name of ``clients`` in Flower's examples
}


class Node(NamedTuple):
    """A client, as its node config describes it.

    Attributes:
      name: its display name.
      home: its folder.
      options: the whole config.
    """

    name: str
    home: Path
    options: Mapping[str, Any]


def node(config: Mapping[str, Any], number: int) -> Node:
    """The client of a node, by its config and number."""
    for name, value in config.items():
        if name not in _OPTIONS:
            raise SettingError(f"--node-config: unknown {name!r}{nearest(name, _OPTIONS)}")
        if not isinstance(value, _OPTIONS[name]) or isinstance(value, bool):
            raise SettingError(f"--node-config: {name} must be {_OPTIONS[name].__name__}, not {value!r}")
    called = str(config.get("name") or f"node-{number}")
    kept = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    default = kept / "pfedbred" / "clients" / file_name(called)
    return Node(printable(called, 100), _path(config["home"]) if config.get("home") else default, config)


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~ of an unknown user
        raise SettingError(f"{text!r} is not a valid path") from None


def load(
    node: Node, home: Path, task: str | None = None, validation: float | None = None
) -> tuple[Federation, int | None]:
    """The client's samples as a federation of one, and which client of the dataset it is, if there are several.

    The ``task`` says how to read labels. In a named dataset, ``validation`` samples are held out of every client,
    because standardisation uses the training samples of all of them; for other data see :func:`with_validation`.
    """
    own, place = _load(node, home, task, validation)
    return own if task is None else own.for_task(task), place


def _load(node: Node, home: Path, task: str | None, validation: float | None) -> tuple[Federation, int | None]:
    given = node.options
    dataset = given.get("dataset")
    if not dataset:
        raise NoSamples("there is no data: --node-config needs dataset=...")
    if data.is_file(dataset) and Path(dataset).suffix != prepared.SUFFIX:
        return _from_file(_path(dataset), given, task), None
    place = given.get("partition-id")
    if data.is_file(dataset):
        own, place = _one_of(prepared.load(_path(dataset)), place, dataset)
        if "features" in given and own.features is None:
            raise SettingError(f"features names columns, but {dataset} has no column names")
        return own.ordered(_features(given) or own.features or (), dataset), place
    if "features" in given:
        raise SettingError(f"features names columns of a table, but {dataset} is not one")
    divided = {**given, "validation": validation} if validation else given
    kept = home / f"data-{digest(divided)}{prepared.SUFFIX}"  # splitting takes time, and may need the network
    if kept.exists():
        return prepared.load(kept), place
    options: dict[str, Any] = {name: given.get(key) for key, name in _DATA_KEYS.items()}
    clients, seed = options.pop("clients") or given.get("num-partitions"), options.pop("split_seed")
    whole = data.load(dataset, clients=clients, seed=seed, **options)
    if validation:
        whole = whole.with_validation(validation, _split_seed(node))
    own, place = _one_of(whole, place, dataset)
    prepared.save(own, kept)
    return own, place


def _from_file(path: Path, given: Mapping[str, Any], task: str | None) -> Federation:
    """All samples of a file, a quarter of them for testing."""
    label = given.get("label-column")
    columns = read_columns(_path(given["columns"])) if "columns" in given else None
    if columns and path.suffix == ".npz":
        raise SettingError(f"columns is for a table; {path} has one array x")
    pool = pool_from_file(
        path, client_column=None, label_column=label, features=_features(given), task=task, columns=columns
    )
    if pool.owners and len(pool.owners) > 1:
        raise SettingError(f"{path} holds the samples of {len(pool.owners)} clients: give each node its own file")
    rows = np.arange(len(pool.y))
    seed = settings_.check("split-seed", given.get("split-seed", 0), settings_.Seed)
    assignment = divide([rows], TEST_FRACTION, np.random.default_rng(seed))
    return federate(pool, assignment, about={"split": "own"})


def _features(given: Mapping[str, Any]) -> list[str] | None:
    return [each.strip() for each in given["features"].split(",")] if "features" in given else None


def _one_of(whole: Federation, place: int | None, dataset: str) -> tuple[Federation, int | None]:
    if place is None:
        if whole.clients > 1:
            raise SettingError(f"{dataset} holds {whole.clients} clients: --node-config needs partition-id=NUMBER")
        return whole, None
    if not 0 <= place < whole.clients:
        raise SettingError(f"{dataset} has no client {place}: partition-id is from 0 to {whole.clients - 1}")
    return whole.take(np.asarray([place])), place


def digest(given: Mapping[str, Any]) -> str:
    """Identifies a client's data by its node config."""
    facts = {name: value for name, value in given.items() if name not in ("name", "home")}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def relabelled(own: Federation, classes: int, labels: list[str] | None) -> Federation:
    """The data with its labels numbered as in the whole federation."""
    check_classes(classes)
    if own.label_kind != "classes":
        return own
    if labels is None:
        if own.classes > classes:
            raise SettingError(f"there is a label {own.classes - 1}, but the federation's are 0 to {classes - 1}")
        return dataclasses.replace(own, classes=classes, labels=own.labels if own.classes == classes else None)
    mine = own.labels or tuple(map(str, range(own.classes)))
    used = np.unique(np.concatenate([split.y for split in own.parts.values()]))
    unknown = [mine[i] for i in used if mine[i] not in labels]
    if unknown:
        raise SettingError(f"the label {unknown[0]!r} is not one of the federation's: {', '.join(labels)}")
    new = np.asarray([labels.index(each) if each in labels else 0 for each in mine], np.int32)
    return own.each_part(lambda split: split._replace(y=new[split.y]), classes=classes, labels=tuple(labels))


def with_validation(own: Federation, node: Node, fraction: float | None, number: int) -> Federation:
    """The client's data with the fraction of validation samples that the server asks for; existing ones are kept.

    They are those of a simulation in which the client of that number has the same samples. For a file of the client's
    own they do not depend on the number, which is not yet known when the client introduces itself.
    """
    if not fraction:
        return dataclasses.replace(own, validation=None)
    if own.refit is not None:
        number = 0
    return own if own.validation is not None else own.with_validation(fraction, _split_seed(node), [number])


def _split_seed(node: Node) -> int:
    """The seed that splits the data: the node's, or else that of a named dataset."""
    dataset, seed = node.options.get("dataset"), node.options.get("split-seed")
    if seed is None:
        return 0 if data.is_file(dataset) or data.address(dataset)[0] else data.find(str(dataset))[0].seed
    return settings_.check("split-seed", seed, settings_.Seed)


def vocabulary_of(own: Federation) -> str | None:
    """A checksum of the vocabulary, if the samples are texts."""
    return hashlib.sha256("\n".join(own.text.vocabulary).encode()).hexdigest() if own.text else None
