"""An experiment: everything that decides a run, as data; and running it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from pfedbred import algorithms, data, models
from pfedbred import settings as settings_
from pfedbred.aggregation import rules
from pfedbred.algorithms.base import Algorithm, Task, state_bytes
from pfedbred.data.federation import Federation
from pfedbred.data.minibatches import Batch
from pfedbred.data.population import Population
from pfedbred.engine import Plan, Simulation, StreamedSimulation, client_store, devices, executors, selection
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment.sigma import with_sigma
from pfedbred.settings.values import Count, Fraction, Minority, NonNegativeCount, Seed


def _option(default: Any, words: str) -> Any:
    return field(default=default, metadata={"help": words})


@dataclass(frozen=True)
class Experiment:
    """What to run. Every field is a key of an experiment file and an option of the command line."""

    dataset: str = _option("digits", "data by name (see 'pfedbred list datasets'), or a file of your own")
    model: str | models.Model = _option("mclr", "model by name: see 'pfedbred list models'")
    algorithm: str = _option("mg-meta", "algorithm by name: see 'pfedbred list algorithms'")
    settings: Any = field(default_factory=dict)
    rounds: Count = _option(100, "rounds of training")
    seeds: Count = _option(1, "how many seeds to run side by side")
    seed: NonNegativeCount = _option(0, "the first seed; the others follow it")
    split: str | None = _option(
        None, "paper, column, iid, dirichlet(0.5), labels(3) or quantity(0.5); the usual one if not given"
    )
    clients: Count | None = _option(None, "clients to split the data over; the dataset's own number if not given")
    labels_per_client: Count | None = _option(
        None, "labels each client holds in the paper's split; the dataset's own number if not given"
    )
    split_seed: Seed | None = _option(
        None, "seed of the split, the same for all seeds of the run; the dataset's own if not given"
    )
    data_dir: str | None = _option(None, "folder with the data; else $PFEDBRED_DATA, the cache, or a download")
    glove: str | None = _option(None, "a GloVe file of word vectors, for texts; without it they are learned")
    held_out_clients: Fraction | None = _option(
        None, "fraction of the clients kept out of training; at the end they join, and it is seen how they do"
    )
    joining_rounds: Count = _option(5, "rounds of local training with which a held-out client joins")
    participation: Literal["all", "sample"] = _option(
        "all", "who trains in a round: all clients (the paper), or only the sample that is averaged"
    )
    aggregated: Count | None = _option(None, "clients averaged in a round; a fifth of them if not given")
    select: str | list[int] = _option(
        "uniform", "how they are chosen: uniform, by-data, or client numbers such as 0,3,5"
    )
    store: Literal["auto", "device", "memory", "file"] = _option(
        "auto", "where clients are between their rounds: device, memory or file; auto is the first that has room"
    )
    store_dir: str | None = _option(None, "folder for the file of client states; that for temporary files if not given")
    scored_clients: Count | None = _option(
        None, "clients that are evaluated, a fixed random sample, where they are not on the device [default: 1000]"
    )
    weights: Literal["data", "uniform"] = _option("data", "their weights: by training samples, or uniform")
    aggregate: rules.Name = _option(
        "mean", "how uploads are averaged: mean, or median, trimmed, clipped or krum, which bear with some bad clients"
    )
    outliers: Minority = _option(0.2, "the part of a round's clients that trimmed (at each end) and krum leave out")
    batch_size: Count = _option(20, "samples in a minibatch")
    eval_every: Count = _option(1, "rounds between evaluations")
    executor: str = _option("auto", "how clients run: auto, vmap, in-turn, or loop (slow reference)")
    chunk: Count | None = _option(None, "clients that vmap runs at a time; all if not given")

    @staticmethod
    def from_mapping(given: Mapping[str, Any], federation: Federation | Population | None = None) -> Experiment:
        """An experiment from plain values, each checked; what is not given keeps its default."""
        known = [each.name for each in dataclasses.fields(Experiment)]
        for name in given:
            if name not in known:
                raise SettingError(f"unknown option {name!r}{nearest(name, known)}")
        return Experiment(**given).resolved(federation)

    def resolved(self, federation: Federation | Population | None = None) -> Experiment:
        """The same experiment, checked, with every default filled in. Raises SettingError if it cannot be run.

        Given the federation, that includes what only the data can tell: how many clients a round averages. The number
        of clients itself stays open where the data decides it, so that the same experiment means the same data.
        """
        checked: dict[str, Any] = {
            name: settings_.check(name, getattr(self, name), hint) for name, hint in settings_.hints(Experiment).items()
        }
        experiment = dataclasses.replace(self, **{**checked, "settings": self._settings()})
        executors.choose(experiment.executor)
        models.check_name(experiment.model)
        last = experiment.seed + experiment.seeds - 1
        if last >= 2**32:
            raise SettingError(f"seeds must be below 2**32, but the last one would be {last}")
        if federation is None:
            experiment = experiment._with_dataset()
            return experiment._with_aggregated(experiment.clients)
        if experiment.clients not in (None, federation.clients):
            raise SettingError(
                f"the experiment is for {experiment.clients} clients, the federation has {federation.clients}"
            )
        return experiment._with_aggregated(federation.clients)

    def _with_dataset(self) -> Experiment:
        """The dataset's own numbers filled in, and paths made absolute, to mean the same wherever they are read."""
        experiment = dataclasses.replace(
            self,
            data_dir=self.data_dir and _absolute(self.data_dir),
            store_dir=self.store_dir and _absolute(self.store_dir),
            glove=self.glove and _absolute(self.glove),
        )
        if data.is_file(self.dataset):
            return dataclasses.replace(experiment, dataset=_absolute(self.dataset))
        known, _ = data.find(self.dataset)
        split, _, _ = data.find_split(self.split or "paper", known)
        own = known.labels_per_client if split == "paper" else None
        return dataclasses.replace(
            experiment,
            split=self.split or "paper",
            clients=self.clients or (None if split == "column" else known.clients),
            labels_per_client=self.labels_per_client or own,
            split_seed=known.seed if self.split_seed is None else self.split_seed,
        )

    def _with_aggregated(self, clients: int | None) -> Experiment:
        """How many clients a round averages, if the number of clients is known by now."""
        chosen = self.fixed_clients()
        if chosen is not None and not all(isinstance(each, int) and not isinstance(each, bool) for each in chosen):
            which = f" from 0 to {clients - 1}" if clients else ""
            raise SettingError(f"a selection must be client numbers{which}, not {chosen!r}")
        if chosen is None:
            selection.get(str(self.select), 1)
        elif self.aggregated not in (None, len(chosen)):
            raise SettingError(f"aggregated is {self.aggregated}, but select names {len(chosen)} clients")
        if clients is None:
            return self
        training = clients - round((self.held_out_clients or 0) * clients)
        if chosen is not None:
            selection.check(chosen, training)
        count = len(chosen) if chosen is not None else self.aggregated or max(1, round(training / 5))
        if count > training:
            raise SettingError(f"aggregated must be at most the number of clients that train, {training}, not {count}")
        return dataclasses.replace(self, aggregated=count)

    def _settings(self) -> dict[str, Any]:
        """All settings of the algorithm."""
        given = {} if self.settings is None else self.settings
        if not isinstance(given, Mapping):
            raise SettingError(f"settings must be names with values, not {given!r}")
        resolved = settings_.resolve(algorithms.factory(self.algorithm), given)
        if isinstance(resolved.get("sigma"), str):
            resolved["sigma"] = _absolute(resolved["sigma"])
        return resolved

    def fixed_clients(self) -> list[int] | None:
        """The clients named by ``select``, if it names any."""
        if not isinstance(self.select, str):
            return list(self.select)
        parts = self.select.replace(",", " ").split()
        return [int(part) for part in parts] if parts and all(map(_is_client_number, parts)) else None

    @property
    def seed_list(self) -> list[int]:
        """The seeds of the run."""
        return list(range(self.seed, self.seed + self.seeds))

    def federation(self) -> Federation | Population:
        """The data, split over the clients; made on demand if it can be and all of it is too much, or is to be."""
        if self.participation == "sample" and self.store != "device":
            found = data.population(
                self.dataset,
                split=self.split,
                clients=self.clients,
                seed=self.split_seed,
                labels_per_client=self.labels_per_client,
                glove=self.glove,
            )
            if (
                found and self._store(found, states=2 * found.bytes) != "device"
            ):  # to load it takes as much again, twice
                return found
        return data.load(
            self.dataset,
            split=self.split,
            clients=self.clients,
            labels_per_client=self.labels_per_client,
            seed=self.split_seed,
            data_dir=self.data_dir,
            glove=self.glove,
        )

    def _store(self, federation: Federation | Population, states: int) -> str:
        return client_store.choose(
            self.store,
            sampled=self.participation == "sample",
            samples=federation.bytes,
            states=states,
            device=devices.device_memory(),
            host=devices.host_memory(),
        )

    def prepare(self, federation: Federation | Population | None = None) -> Prepared:
        """Ready to run on ``federation``, or on the named dataset. What cannot work fails here."""
        if federation is None:
            federation = self.resolved().federation()
        experiment = self.resolved(federation)
        newcomers = None
        if experiment.held_out_clients:
            if isinstance(federation, Population):
                raise SettingError("held_out_clients needs all clients at hand, and these are made on demand")
            federation, newcomers = federation.hold_out(experiment.held_out_clients, experiment.split_seed or 0)
        task = Task(models.get(experiment.model, federation.shape, federation.classes, federation.words))
        algorithm = algorithms.make(experiment.algorithm, task, with_sigma(experiment.settings))
        rule = rules.Rule(experiment.aggregate, experiment.outliers)
        rule.suits(algorithm.server.averages, experiment.algorithm)
        chosen = experiment.fixed_clients()
        assert experiment.aggregated is not None
        plan = Plan(
            selection.get(experiment.select if chosen is None else chosen, experiment.aggregated),
            experiment.participation,
            experiment.weights,
            experiment.batch_size,
            experiment.executor,
            experiment.chunk,
            rule,
        )
        simulation = experiment._simulation(algorithm, task, federation, plan)
        experiment._check_room(simulation)
        simulation.trace()
        store: Any = "device" if isinstance(simulation, Simulation) else simulation.store
        return Prepared(dataclasses.replace(experiment, store=store), simulation, newcomers)

    def _check_room(self, simulation: Simulation | StreamedSimulation) -> None:
        """Refuses what the device has no memory for. What only takes long is left to the one who asks for it."""
        client, federation = simulation.algorithm.client, simulation.federation
        samples = max(client.draws, client.model_draws) * self.batch_size
        if samples >= 2**31:
            raise SettingError(
                f"a client would read {samples:,} samples in a round, which must be below 2**31: "
                "take fewer local steps, or a smaller batch_size"
            )
        states = simulation.state_bytes() if isinstance(simulation, Simulation) else 0
        batch = (math.prod(federation.shape) + 1) * self.batch_size
        needed, room = self.seeds * max(states, 8) + 4 * (samples + batch), devices.device_memory()
        if needed > room:
            raise SettingError(
                f"the run needs {needed / 1e9:,.0f} GB for models and minibatches, and there are {room / 1e9:,.0f}: "
                "use fewer seeds or local steps, a smaller batch_size, or a smaller model"
            )

    def _simulation(
        self, algorithm: Algorithm, task: Task, federation: Federation | Population, plan: Plan
    ) -> Simulation | StreamedSimulation:
        """Where the clients are kept decides how it runs."""
        states = 0
        if self.participation == "sample":
            one = federation.take(np.arange(1))
            sample = Batch(jnp.asarray(one.inputs(one.train).take(np.arange(1))), jnp.asarray(one.train.y[:1]))
            states = federation.clients * self.seeds * state_bytes(algorithm, task, sample)
        store = self._store(federation, states)
        if store == "device" and isinstance(federation, Federation):
            if self.scored_clients:
                raise SettingError("scored_clients is for clients in memory or in a file: on the device all are scored")
            return Simulation(algorithm, task, federation, plan)
        if isinstance(federation, Population):
            if self.select == "by-data":
                raise SettingError("select by-data needs all clients' sizes, and these clients are made on demand")
            if self.store == "device":
                raise SettingError(
                    "clients that are made on demand are not on the device: use store 'memory' or 'file'"
                )
            store = "memory" if store == "device" else store
        where: Any = store
        return StreamedSimulation(
            algorithm, task, federation, plan, where, folder=self.store_dir, scored=self.scored_clients
        )


def _is_client_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= 10


def _absolute(path: str) -> str:
    try:
        return str(Path(path).resolve())
    except (OSError, ValueError, RuntimeError):  # a zero byte, or links that go round in a circle
        raise SettingError(f"{path!r} cannot be a path") from None


class Prepared(NamedTuple):
    """An experiment with every default filled in, its programs, and the clients that are held out of training."""

    experiment: Experiment
    simulation: Simulation | StreamedSimulation
    newcomers: Federation | None
