"""An experiment: everything that decides a run, as data."""

from __future__ import annotations

import dataclasses
import math
import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred import aggregation, algorithms, data, models, tasks
from pfedbred import settings as settings_
from pfedbred.algorithms import local_optimizers
from pfedbred.algorithms.base import Algorithm
from pfedbred.data import Dataset, augmentation
from pfedbred.data.federation import Federation
from pfedbred.data.population import Population
from pfedbred.engine import executors, metrics, selection
from pfedbred.engine.backend import DataInfo
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment import names, references
from pfedbred.experiment import sigma as sigma_
from pfedbred.experiment.options import (
    DataOptions,
    ExecutionOptions,
    MethodOptions,
    ModelOptions,
    ProtocolOptions,
    TaskOptions,
)
from pfedbred.runs.start_params import split, start_params
from pfedbred.tasks import TaskKind


@dataclass(frozen=True)
class Experiment(ExecutionOptions, ProtocolOptions, MethodOptions, ModelOptions, TaskOptions, DataOptions):
    """What to run. Every field is a key of an experiment file and an option of the command line.

    Where a name is expected, an object of that kind or a function that builds one can be given.
    """

    def __repr__(self) -> str:
        """The fields that have other values than their defaults."""
        usual, shown = Experiment(), []
        for name in (each.name for each in dataclasses.fields(self)):
            value, default = getattr(self, name), getattr(usual, name)
            if type(value) is not type(default) or value != default:
                text = "<params>" if name == "start_from" and not isinstance(value, str) else repr(value)
                shown.append(f"{name}={text}")
        return f"Experiment({', '.join(shown)})"

    @staticmethod
    def from_mapping(given: Mapping[str, Any]) -> Experiment:
        """An experiment from plain values, each checked; fields that are not given keep their defaults."""
        known = field_names()
        for name in given:
            if name not in known:
                raise SettingError(f"unknown option {name!r}{nearest(name, known)}")
        return Experiment(**given).checked()

    def checked(self, *, data_elsewhere: bool = False) -> Experiment:
        """The same experiment with every value checked and the defaults of its dataset and algorithm filled in.

        The number of clients stays unset if only the data determines it, so that the file means the same data later.
        With ``data_elsewhere``, ``dataset`` is only the name of data that other machines hold.
        """
        if hasattr(self, "_given"):
            return self
        values: dict[str, Any] = {
            name: settings_.check(name, _resolved(name, getattr(self, name), hint), hint)
            for name, hint in settings_.hints(Experiment).items()
        }
        if callable(values["task"]):
            values["task"] = references.built(values["task"], tasks.get)
        values["metrics"] = _given_metrics(values["metrics"])
        values = {name: names.named(value, name) for name, value in values.items()}
        values["settings"] = self._settings(values["algorithm"])
        values["weights"] = values["weights"] or default_weights(values["select"])
        values["local_optimizer"] = local_optimizers.text(values["local_optimizer"])
        augmentation.get(values["augment"])
        values["class_weights"] = _weights(values["class_weights"])
        values |= _start(values)
        values["held_out_clients"] = _held_out(values["held_out_clients"])
        experiment = dataclasses.replace(self, **values)
        executors.choose(experiment.executor)
        models.check(experiment.model)
        aggregation.builder(experiment.aggregate, outliers=experiment.outliers)
        last = experiment.seed + experiment.seeds - 1
        if last >= 2**32:
            raise SettingError(f"seeds must be below 2**32, but the last one would be {last}")
        if experiment.posterior == "ensemble" and experiment.seeds < 2:
            raise SettingError(f"an ensemble needs 2 seeds or more, not {experiment.seeds}: use seeds 5, for example")
        if not data_elsewhere:
            experiment = experiment._with_data_defaults()
        experiment = experiment._with_metrics()
        # A Dataset has a number of clients too, but that is only a default.
        fixed = experiment.dataset if isinstance(experiment.dataset, Federation | Population) else experiment
        experiment._check_selection(fixed.clients)
        experiment = experiment._with_aggregated(experiment.clients)
        return experiment._checked_from(self)

    def _checked_from(self, given: Experiment) -> Experiment:
        """Marks this experiment as checked and remembers what it was made from; a replaced copy does neither."""
        object.__setattr__(self, "_given", given)
        return self

    def replaced(self, **values: Any) -> Experiment:
        """The same experiment with other values, valid ones, of fields from which no others follow.

        If it was checked, so is the copy: nothing is resolved again.
        """
        changed = dataclasses.replace(self, **values)
        if not hasattr(self, "_given"):
            return changed
        return changed._checked_from(dataclasses.replace(self._as_given(), **values))

    def on(self, federation: Federation | Population) -> Experiment:
        """The same experiment on other data: values that came from its own dataset are unset again."""
        return dataclasses.replace(self._as_given(), dataset=federation)

    def _as_given(self) -> Experiment:
        return getattr(self, "_given", self)

    def for_data(self, federation: DataInfo, *, data_elsewhere: bool = False) -> Experiment:
        """This experiment, checked, with what only the data determines: the number of clients that a round averages."""
        experiment = self.checked(data_elsewhere=data_elsewhere)
        if experiment.clients not in (None, federation.clients):
            raise SettingError(
                f"the experiment is for {experiment.clients} clients, the federation has {federation.clients}"
            )
        decided = experiment.task is not None  # then its metrics are chosen already
        experiment = experiment._with_task(federation)
        experiment = experiment if decided else experiment._with_metrics()
        return experiment._with_aggregated(federation.clients)._checked_from(experiment._as_given())

    def _with_task(self, federation: DataInfo) -> Experiment:
        """The task that the data is for, unless another is given that fits its labels."""
        kind, have = tasks.get(self.task or federation.task), tasks.get(federation.task)
        if kind.labels != have.labels:
            raise SettingError(f"the task {kind.name} does not fit the labels of {federation.name}: use {have.name}")
        if kind.one_output and kind.labels == "classes" and federation.classes != 2:
            raise SettingError(
                f"the task {kind.name} is for two labels, and {federation.name} has {federation.classes}"
            )
        return dataclasses.replace(self, task=self.task or federation.task)

    def _with_metrics(self) -> Experiment:
        """Every metric that is evaluated, once the task is known; until then, those that are named are checked."""
        if self.task is None:
            metrics.listed(self.metrics or ())
            return self
        chosen = metrics.resolve(self.metrics, tasks.get(self.task))
        return dataclasses.replace(self, metrics=names.named(list(chosen), "metrics"))

    @property
    def kind(self) -> TaskKind:
        """The kind of its task, once the data is known."""
        return tasks.get(self.task or tasks.CLASSIFICATION)

    def _settings(self, algorithm: Any) -> dict[str, Any]:
        """All settings of the algorithm."""
        given = {} if self.settings is None else self.settings
        if not isinstance(given, Mapping):
            raise SettingError(f"settings must map names to values, not {given!r}")
        if isinstance(algorithm, Algorithm):
            if given:
                raise SettingError(f"an Algorithm object is already built: it takes no settings, not {dict(given)!r}")
            return {}
        build = algorithms.builder(algorithm)
        loaded = {name: references.resolve(value, name) for name, value in given.items()}
        resolved = names.named_settings(settings_.resolve(build, loaded), build)
        for name, value in resolved.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise SettingError(f"{name} must be a finite number, not {value!r}: files cannot record others")
        if sigma_.is_path(resolved.get("sigma")):
            resolved["sigma"] = absolute_path(resolved["sigma"])
        return resolved

    def _with_data_defaults(self) -> Experiment:
        """Fills in the dataset's own numbers, and makes paths absolute, so that they mean the same in any folder."""
        given = {name: getattr(self, name) for name in field_names(path=True)}
        paths: dict[str, Any] = {name: absolute_path(path) for name, path in given.items() if path}
        experiment = dataclasses.replace(self, **paths)
        if isinstance(self.dataset, Federation | Population):
            return dataclasses.replace(experiment, task=self.task or self.dataset.task)
        if not isinstance(self.dataset, str | Dataset):
            return experiment
        kind, rest = data.address(self.dataset)
        if kind == data.HUB:
            return experiment
        if kind == data.PFLLIB or data.is_file(rest):
            return dataclasses.replace(experiment, dataset=kind + absolute_path(rest))
        known, _ = data.find(self.dataset)
        chosen = self.split or "paper"
        split, _, _ = data.find_split(chosen, known)
        return dataclasses.replace(
            experiment,
            split=chosen,
            clients=self.clients or (None if split == "column" else known.clients),
            labels_per_client=self.labels_per_client or (known.labels_per_client if split == "paper" else None),
            split_seed=known.seed if self.split_seed is None else self.split_seed,
            task=self.task or known.task,
        )

    def _check_selection(self, clients: int | None) -> None:
        chosen = self.fixed_clients()
        if chosen is None:
            selection.check_kind(self.select)
            return
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in chosen):
            which = f" from 0 to {clients - 1}" if clients else ""
            raise SettingError(f"a selection must be client numbers{which}, not {chosen!r}")
        if self.aggregated not in (None, len(chosen)):
            raise SettingError(f"aggregated is {self.aggregated}, but select names {len(chosen)} clients")

    def _with_aggregated(self, clients: int | None) -> Experiment:
        """Fills in the number of clients that a round averages, and what depends on it, if the total is known."""
        if clients is None:
            return self
        chosen = self.fixed_clients()
        training = clients - self._held_out_count(clients)
        if chosen is not None:
            selection.check(chosen, training)
        count = len(chosen) if chosen is not None else self.aggregated or _averaged_by_default(training)
        if count > training:
            raise SettingError(f"aggregated must be at most the number of clients that train, {training}, not {count}")
        settings = self.settings
        if not isinstance(self.algorithm, Algorithm):
            settings = settings_.settled(algorithms.builder(self.algorithm), settings, training)
        return dataclasses.replace(self, aggregated=count, settings=settings)

    def _held_out_count(self, clients: int) -> int:
        """The number of clients that are held out."""
        who = self.held_out_clients
        # A client that is named twice counts once: what is said is then that it is, and not that too few train.
        return len(set(who)) if isinstance(who, list) else round(float(who or 0) * clients)

    def fixed_clients(self) -> list[int] | None:
        """The clients named by ``select``, if it names any."""
        if callable(self.select):
            return None
        if not isinstance(self.select, str):
            return list(self.select)
        parts = self.select.replace(",", " ").split()
        return [int(part) for part in parts] if parts and all(map(_is_client_number, parts)) else None

    @property
    def seed_list(self) -> list[int]:
        """The seeds of the run."""
        return list(range(self.seed, self.seed + self.seeds))

    @property
    def algorithm_name(self) -> str:
        """What the algorithm is called in tables and file names."""
        return "custom" if isinstance(self.algorithm, Algorithm) else references.object_name(self.algorithm)

    @property
    def dataset_name(self) -> str:
        """What the dataset is called in file names, and before it is loaded."""
        return getattr(self.dataset, "name", None) or references.object_name(self.dataset)

    @property
    def model_name(self) -> str:
        """What the model is called in tables and file names."""
        return self.model if isinstance(self.model, str) else references.import_path(self.model) or "custom"

    def plain(self, *, by_name: bool = False) -> dict[str, Any]:
        """The experiment as YAML and JSON can hold it; see :mod:`pfedbred.experiment.names`.

        With ``by_name``, names that a program has added to a table are kept, for processes that have added them too.
        """
        write = (lambda value, name: references.plain(value)) if by_name else names.recorded
        return {name: write(getattr(self, name), name) for name in field_names()}


def field_names(**metadata: bool) -> list[str]:
    """The names of all fields, or of those whose metadata has these values: ``field_names(result=False)``."""
    return [
        each.name
        for each in dataclasses.fields(Experiment)
        if all(each.metadata[name] == value for name, value in metadata.items())
    ]


def default_weights(select: Any) -> str:
    """The default averaging weights: size counts once, in the selection or in the average."""
    return "uniform" if selection.counts_size(select) else "data"


def plain_defaults() -> dict[str, Any]:
    """Every field's default as a checked experiment would record it, for files from before a field existed."""
    defaults: dict[str, Any] = {
        each.name: None if each.default is dataclasses.MISSING else each.default
        for each in dataclasses.fields(Experiment)
    }
    usual = tasks.CLASSIFICATION
    return {
        **defaults,
        "task": usual.name,
        "metrics": [each.name for each in metrics.resolve(None, usual)],
        "weights": default_weights(defaults["select"]),
    }


def _resolved(name: str, value: Any, hint: Any) -> Any:
    """The value, imported if the field takes objects and this is an import path.

    A tuple or an array becomes a list, a path the text of an absolute one, so that it is not taken for a name.
    """
    if isinstance(value, os.PathLike):
        return absolute_path(value)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, tuple) and type(value) is tuple:
        value = list(value)
    if name == "dataset" and data.address(value)[0]:  # hub:... and pfllib:... are no import paths
        return value
    return references.resolve(value, name) if _takes_objects(hint) else value


def _weights(given: str | list[float] | None) -> str | list[float] | None:
    """Weights of the labels: a list of numbers, possibly given as text such as 1,5; or ``balanced``."""
    if given is None or given == "balanced":
        return given
    parts = given.split(",") if isinstance(given, str) else given
    try:
        return [settings_.check("class_weights", each, settings_.NonNegative) for each in parts]
    except SettingError:
        raise SettingError(f"class_weights must be balanced, or numbers >= 0 such as 1,5, not {given!r}") from None


def _start(values: Mapping[str, Any]) -> dict[str, Any]:
    """Where params come from, with their hash, and the names of parts as lists."""
    given = values["start_from"]
    parts = {name: _part_names(name, values[name]) for name in field_names(parts=True)}
    if given is None:
        for name in (name for name, found in parts.items() if found):
            raise SettingError(f"{name} needs start_from, the params that the network starts from")
        return parts
    found = start_params(given)
    if isinstance(given, str):
        return {**parts, "start_from": f"{absolute_path(Path(split(given)[0]).expanduser())}#sha256={found.sha256}"}
    return {**parts, "start_from": found}


def _held_out(given: float | str | list[str] | None) -> float | list[str] | None:
    """A fraction, or names or numbers of clients as a list; a whole number above 1 is a client's."""
    if isinstance(given, str):
        number = settings_.values.parse_number(given)
        if number is not None and not (isinstance(number, int) and number > 1):
            return float(settings_.check("held_out_clients", given, settings_.Fraction))
        given = [each.strip() for each in given.split(",") if each.strip()]
    if isinstance(given, list) and not (given and all(isinstance(each, str) for each in given)):
        raise SettingError(f"held_out_clients must be a fraction or names of clients, such as North,South, not {given}")
    return given


def _part_names(option: str, given: str | list[str] | None) -> list[str] | None:
    """Names of parts as a list, possibly given as text such as conv1,conv2; None if there are none."""
    parts = given.split(",") if isinstance(given, str) else given or []
    if not all(isinstance(part, str) for part in parts):
        raise SettingError(f"{option} must be names of parts, such as conv1,conv2, not {given!r}")
    return [part.strip() for part in parts if part.strip()] or None


def _given_metrics(given: Any) -> list[Any] | None:
    """The metrics that are given: names, and objects for those that no table knows."""
    if given is None:
        return None
    listed = references.resolve(metrics.as_list(given), "metrics")
    return [references.built(each, metrics.get) if callable(each) else each for each in listed]


def _takes_objects(hint: Any) -> bool:
    """Whether a type allows more than plain values."""
    if typing.get_origin(hint) in (typing.Annotated, typing.Literal):
        return False
    if hint is Any or typing.get_origin(hint) is Callable:
        return True
    options = typing.get_args(hint)
    return any(map(_takes_objects, options)) if options else hint not in (str, int, bool, type(None))


def _is_client_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= 10


def absolute_path(path: str | os.PathLike[str]) -> str:
    """The absolute path."""
    try:
        return str(Path(path).resolve())
    except (OSError, ValueError, RuntimeError):  # a null byte, or circular links
        raise SettingError(f"{str(path)!r} is not a valid path") from None


def _averaged_by_default(clients: int) -> int:
    """A fifth of them, as in the paper; all of ten or fewer, where a fifth would be one or two."""
    return clients if clients <= 10 else max(1, round(clients / 5))
