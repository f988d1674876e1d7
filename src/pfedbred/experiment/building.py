"""From an experiment to something that runs: its data, its algorithm, its backend."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred import aggregation, algorithms, data, models
from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.algorithms.exchange import state_bytes
from pfedbred.data.federation import Federation
from pfedbred.data.minibatches import Batch
from pfedbred.data.population import Population
from pfedbred.engine import Backend, Plan, ResidentBackend, StreamedBackend, client_store, devices, metrics, selection
from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.sigma import with_sigma
from pfedbred.types import Array

S = TypeVar("S")


class Built(NamedTuple, Generic[S]):
    """An experiment ready to run.

    Attributes:
      experiment: with every default filled in.
      backend: runs its rounds.
      newcomers: the clients that are held out of training.
    """

    experiment: Experiment
    backend: Backend[S]
    newcomers: Federation | None = None


def build(experiment: Experiment, federation: Federation | Population | None = None) -> Built[Any]:
    """The experiment, ready to run on ``federation`` or on its own dataset. What cannot work fails here."""
    experiment, federation, newcomers, task, algorithm, plan, store = _prepare(experiment, federation)
    backend: Backend[Any]
    if store == "device":
        assert isinstance(federation, Federation)
        backend = ResidentBackend(algorithm, task, federation, plan)
    else:
        folder, evaluated = experiment.store_dir, experiment.scored_clients
        backend = StreamedBackend(algorithm, task, federation, plan, store, folder=folder, evaluated=evaluated)
    _check_memory(experiment, backend)
    backend.trace(experiment.seeds)
    where: Any = backend.store
    return Built(dataclasses.replace(experiment, store=where), backend, newcomers)


def build_sweep(
    experiment: Experiment, federation: Federation | None, swept: Sequence[str]
) -> tuple[Experiment, ResidentBackend]:
    """Likewise, with a program whose inputs are the ``swept`` settings."""
    parts = _prepare(experiment, federation)
    if parts.store != "device":
        raise SettingError("a sweep keeps all clients on the device at every point: use fewer clients, or store device")
    assert isinstance(parts.federation, Federation)
    settings = with_sigma(parts.experiment.settings)

    def vary(own: Mapping[str, Array]) -> Algorithm:
        return algorithms.factory(experiment.algorithm)(parts.task, **{**settings, **own})

    backend = ResidentBackend(parts.algorithm, parts.task, parts.federation, parts.plan, vary)
    _check_memory(parts.experiment, backend)
    try:
        backend.trace_shapes(dict.fromkeys(swept, np.ones(1, np.float32)))
    except jax.errors.ConcretizationTypeError:
        raise SettingError(
            f"{' or '.join(swept)} decides how the program is built, and a sweep is one program"
        ) from None
    return dataclasses.replace(parts.experiment, store="device"), backend


def load_data(experiment: Experiment) -> Federation | Population:
    """The samples of the clients; a population if they can be generated on demand and all of them are too many."""
    experiment = experiment.checked()
    options: dict[str, Any] = {
        "split": experiment.split,
        "clients": experiment.clients,
        "seed": experiment.split_seed,
        "labels_per_client": experiment.labels_per_client,
        "glove": experiment.glove,
    }
    if isinstance(experiment.dataset, str) and experiment.participation == "sample" and experiment.store != "device":
        found = data.population(experiment.dataset, **options)
        # Loading takes as much memory again, twice.
        if found and _choose_store(experiment, found, states=2 * found.bytes) != "device":
            return found
    return data.load(experiment.dataset, **options, data_dir=experiment.data_dir)


def make_plan(experiment: Experiment) -> Plan:
    """How the rounds are run."""
    chosen = experiment.fixed_clients()
    assert experiment.aggregated is not None
    assert experiment.weights is not None
    return Plan(
        selection.get(experiment.select if chosen is None else chosen, experiment.aggregated),
        experiment.participation,
        experiment.weights,
        experiment.batch_size,
        experiment.executor,
        experiment.chunk,
        aggregation.get(experiment.aggregate, outliers=experiment.outliers),
        metrics.resolve(experiment.metrics),
        experiment.diagnostics,
        experiment.screening,
    )


def make_algorithm(experiment: Experiment, task: Task) -> Algorithm:
    """The algorithm, with files that its settings name read."""
    return algorithms.build(experiment.algorithm, task, with_sigma(experiment.settings))


class _Parts(NamedTuple):
    """What a backend is made of."""

    experiment: Experiment
    federation: Federation | Population
    newcomers: Federation | None
    task: Task
    algorithm: Algorithm
    plan: Plan
    store: Literal["device", "memory", "file"]


def _prepare(experiment: Experiment, federation: Federation | Population | None) -> _Parts:
    given = federation is not None
    if federation is None:
        federation = load_data(experiment)
    experiment = experiment.for_data(federation, data_elsewhere=given)  # its dataset's own numbers say nothing of it
    if experiment.validation:
        federation = federation.with_validation(experiment.validation, experiment.split_seed or 0)
        if isinstance(federation, Federation) and not len(federation.parts["validation"].y):
            raise SettingError(f"validation = {experiment.validation} keeps no sample of any client: use a larger part")
    newcomers = None
    if experiment.held_out_clients:
        if isinstance(federation, Population):
            raise SettingError("held_out_clients needs the samples of all clients, but these are generated on demand")
        federation, newcomers = federation.hold_out(experiment.held_out_clients, experiment.split_seed or 0)
    task = Task(models.get(experiment.model, federation.shape, federation.classes, federation.words))
    algorithm, plan = make_algorithm(experiment, task), make_plan(experiment)
    plan.check_rule(algorithm, experiment.algorithm_name)
    store = _decide_store(experiment, federation, algorithm, task)
    return _Parts(experiment, federation, newcomers, task, algorithm, plan, store)


def _choose_store(experiment: Experiment, federation: Federation | Population, states: int) -> str:
    return client_store.choose(
        experiment.store,
        sampled=experiment.participation == "sample",
        samples=federation.bytes,
        states=states,
        device=devices.device_memory(),
        host=devices.host_memory(),
    )


def _decide_store(
    experiment: Experiment, federation: Federation | Population, algorithm: Algorithm, task: Task
) -> Literal["device", "memory", "file"]:
    """Where the clients are between their rounds."""
    states = 0
    if experiment.participation == "sample":
        one = federation.take(np.arange(1))
        sample = Batch(jnp.asarray(one.inputs(one.train).take(np.arange(1))), jnp.asarray(one.train.y[:1]))
        states = federation.clients * experiment.seeds * state_bytes(algorithm, task, sample)
    store: Any = _choose_store(experiment, federation, states)
    if isinstance(federation, Population):
        cohort, room = (experiment.aggregated or 0) * federation.client_bytes, devices.host_memory()
        if cohort > room:
            raise SettingError(
                f"the {experiment.aggregated:,} clients of a round need about {cohort / 1e9:,.1f} GB, but only "
                f"{room / 1e9:,.1f} GB are available: average fewer clients per round (aggregated)"
            )
        if experiment.select == "by-data":
            raise SettingError("select by-data needs the sizes of all clients, but these are generated on demand")
        if experiment.store == "device":
            raise SettingError("clients generated on demand cannot all be on the device: use store memory or file")
        return "memory" if store == "device" else store
    if store == "device" and experiment.scored_clients:
        raise SettingError("scored_clients is for clients in memory or in a file: on the device all are evaluated")
    return store


def _check_memory(experiment: Experiment, backend: Backend[Any]) -> None:
    """Rejects what the device has no memory for. A run that merely takes long is the user's decision."""
    client, federation = backend.algorithm.client, backend.federation
    samples = max(client.draws, client.model_draws) * experiment.batch_size
    if samples >= 2**31:
        raise SettingError(
            f"a client would read {samples:,} samples in a round, which must be below 2**31: "
            "take fewer local steps, or a smaller batch_size"
        )
    batch = (math.prod(federation.shape) + 1) * experiment.batch_size
    needed = experiment.seeds * max(backend.state_bytes(), 8) + 4 * (samples + batch)
    room = devices.device_memory()
    if needed > room:
        raise SettingError(
            f"the run needs {needed / 1e9:,.1f} GB for models and minibatches, but only {room / 1e9:,.1f} GB "
            "are available: use fewer seeds or local steps, a smaller batch_size, or a smaller model"
        )
