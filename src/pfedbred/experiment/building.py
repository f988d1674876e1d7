"""From an experiment to something that runs: its data, its algorithm, its backend."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred import aggregation, algorithms, data, tasks
from pfedbred.algorithms import local_optimizers
from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.algorithms.batch_statistics import with_statistics
from pfedbred.algorithms.exchange import state_bytes
from pfedbred.algorithms.kept_optimizers import keep_optimizers
from pfedbred.algorithms.local_steps import drawn
from pfedbred.algorithms.posterior import with_posterior
from pfedbred.data import Dataset, augmentation
from pfedbred.data.federation import Federation
from pfedbred.data.minibatches import Batch
from pfedbred.data.population import Population
from pfedbred.engine import (
    Backend,
    Plan,
    ResidentBackend,
    Simulated,
    StreamedBackend,
    client_store,
    devices,
    metrics,
    selection,
)
from pfedbred.engine.backend import DataInfo
from pfedbred.engine.varying import Varying
from pfedbred.errors import SettingError
from pfedbred.experiment.calibrating import check_coverage
from pfedbred.experiment.configuration import Experiment, field_names
from pfedbred.experiment.sigma import with_sigma
from pfedbred.experiment.task import has_batch_norm, make_task
from pfedbred.models.base import under
from pfedbred.settings import schedules
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


def build(experiment: Experiment, federation: Federation | Population | None = None) -> Built[Simulated]:
    """The experiment, ready to run on ``federation`` or on its own dataset. What cannot work fails here."""
    experiment, federation, newcomers, task, algorithm, plan, store = _prepare(experiment, federation)
    backend: ResidentBackend | StreamedBackend
    if store == "device":
        assert isinstance(federation, Federation)
        backend = ResidentBackend(algorithm, task, federation, plan, varying(experiment, task, federation))
    else:
        folder, evaluated = experiment.store_dir, experiment.scored_clients
        changes = varying(experiment, task, federation)
        backend = StreamedBackend(
            algorithm, task, federation, plan, store, folder=folder, evaluated=evaluated, varying=changes
        )
        needs = "coverage" if experiment.coverage is not None else experiment.posterior == "ensemble" and "an ensemble"
        if needs and len(backend.evaluated) < federation.clients:
            raise SettingError(
                f"{needs} needs the outputs of all clients: evaluate all {federation.clients:,} (scored_clients)"
            )
    _check_memory(experiment, backend)
    backend.trace(experiment.seeds)
    where: Any = backend.store
    # A backend takes its own state alone, which is the only one that a run gives it.
    runs = cast("Backend[Simulated]", backend)
    return Built(experiment.replaced(store=where), runs, newcomers)


def build_sweep(experiment: Experiment, federation: Federation | None) -> tuple[Experiment, ResidentBackend]:
    """The experiment for a sweep: inputs of its program are the settings given to the backend's ``init``."""
    parts = _prepare(experiment, federation)
    if parts.experiment.coverage is not None:
        raise SettingError("a sweep keeps no models to calibrate: leave coverage out, and run its best point with it")
    if parts.experiment.posterior == "ensemble":
        raise SettingError(
            "a sweep keeps no models for an ensemble: leave posterior out, and run its best point with it"
        )
    if parts.store != "device":
        raise SettingError("a sweep keeps all clients on the device at every point: use fewer clients, or store device")
    assert isinstance(parts.federation, Federation)
    changes = varying(parts.experiment, parts.task, parts.federation)
    backend = ResidentBackend(parts.algorithm, parts.task, parts.federation, parts.plan, changes)
    _check_memory(parts.experiment, backend)
    return parts.experiment.replaced(store="device"), backend


def load_data(experiment: Experiment) -> Federation | Population:
    """The samples of the clients; a population if they can be generated on demand and all of them are too many."""
    experiment = experiment.checked()
    task = _data_task(experiment)
    options: dict[str, Any] = {name: getattr(experiment, name) for name in field_names(load=True)}
    options["seed"] = options.pop("split_seed")
    named = isinstance(experiment.dataset, str | Dataset)
    if named and experiment.participation == "sample" and experiment.store != "device":
        found = data.population(experiment.dataset, **options)
        # Loading takes three times the memory of the data.
        if found and _choose_store(experiment, found, states=2 * found.bytes) != "device":
            return found if task is None else found.for_task(task)
    return data.load(experiment.dataset, **options, task=task)


def make_plan(experiment: Experiment, classes: int) -> Plan:
    """The plan of the rounds, for data with ``classes`` labels."""
    chosen = experiment.fixed_clients()
    assert experiment.aggregated is not None
    assert experiment.weights is not None
    # With two labels a model can only move in two directions, and honest clients pull it in both.
    two_ways = experiment.kind.one_output or (classes == 2 and experiment.kind.labels == "classes")
    return Plan(
        select=selection.get(experiment.select if chosen is None else chosen, experiment.aggregated),
        participation=experiment.participation,
        weights=experiment.weights,
        batch_size=experiment.batch_size,
        executor=experiment.executor,
        chunk=experiment.chunk,
        rule=aggregation.get(experiment.aggregate, outliers=experiment.outliers),
        metrics=tuple(map(metrics.get, metrics.as_list(experiment.metrics or ()))),
        diagnostics=experiment.diagnostics,
        screening="responses" if two_ways and experiment.screening == "directions" else experiment.screening,
        last_batch=experiment.last_batch,
        optimizer=local_optimizers.get(experiment.local_optimizer),
        augment=augmentation.get(experiment.augment),
        steady=not schedule_tables(experiment),
    )


def make_algorithm(
    experiment: Experiment, task: Task, data: DataInfo, own: Mapping[str, Array | float] | None = None
) -> Algorithm:
    """The algorithm, with files that its settings name read; ``own`` replaces some of its settings.

    Unless ``own`` is given, a setting with a schedule has its value in the first round.
    """
    replaced: Mapping[str, Any] = scheduled_values(experiment, 0) if own is None else own
    settings: dict[str, Any] = {**with_sigma(experiment.settings), **replaced}
    algorithm = algorithms.build(experiment.algorithm, task, settings)
    if experiment.keep_optimizer:
        optimizer = local_optimizers.get(experiment.local_optimizer)
        algorithm = keep_optimizers(algorithm, optimizer, example_batch(data, task))
    _check_start(experiment, task, algorithm)
    return with_posterior(with_statistics(algorithm, task, experiment.batch_norm), task, experiment.posterior)


def _check_start(experiment: Experiment, task: Task, algorithm: Algorithm) -> None:
    """Rejects several networks that all start from the same params: they would be trained alike, and stay equal."""
    if experiment.start_from is None or not algorithm.networks.several:
        return
    server = algorithm.server
    networks = algorithm.networks.get(jax.eval_shape(lambda key: server.model(server.init(key, 1)), jax.random.key(0)))
    params, parts = jax.eval_shape(task.model.init, jax.random.key(0)), experiment.start_parts
    differ = parts is not None and any(not any(under(str(key), part) for part in parts) for key in params)
    count = jax.tree.leaves(networks)[0].shape[0]
    if count > 1 and not differ:
        raise SettingError(
            f"{experiment.algorithm_name} trains {count} networks, and those that start from the same params stay "
            "equal: give start_parts, the only parts to take from start_from, and leave a trained one out"
        )


def example_batch(data: DataInfo, task: Task) -> Batch:
    """A batch of one sample, for the shapes of what an algorithm computes."""
    kind = jnp.int32 if data.words else jnp.float32
    return Batch(jnp.zeros((1, *data.shape), kind), task.kind.blank_labels(data.classes))


def varying(experiment: Experiment, task: Task, data: DataInfo) -> Varying:
    """The algorithm as a function of the settings that vary, and those that have a schedule."""

    params = jax.eval_shape(task.model.init, jax.random.key(0))
    kind = jnp.result_type(*jax.tree.leaves(params))
    tables = {name: values.astype(kind) for name, values in schedule_tables(experiment).items()}
    return Varying(lambda own: make_algorithm(experiment, task, data, own), tables)


def schedule_tables(experiment: Experiment) -> dict[str, np.ndarray]:
    """The value in every round of each setting that has a schedule."""
    known = algorithms.declared(experiment.algorithm)
    return {
        name: schedules.table(name, value, experiment.rounds, known[name].annotation)
        for name, value in experiment.settings.items()
        if schedules.may_vary(known[name].annotation) and schedules.is_schedule(value)
    }


def scheduled_values(experiment: Experiment, round_: int) -> dict[str, float]:
    """The value of each setting that has a schedule, in that round or the last one."""
    tables = schedule_tables(experiment)
    return {name: float(values[min(round_, len(values) - 1)]) for name, values in tables.items()}


class _Components(NamedTuple):
    """What a backend is made of."""

    experiment: Experiment
    federation: Federation | Population
    newcomers: Federation | None
    task: Task
    algorithm: Algorithm
    plan: Plan
    store: Literal["device", "memory", "file"]


def _with_note(federation: Federation | Population) -> Federation | Population:
    """With a note if the encoding of inputs was fitted on samples that are now held out."""
    if isinstance(federation, Population) or federation.refit is not None or not federation.fitted:
        return federation
    note = "encoded as prepared, from all training samples, including those now held out"
    return dataclasses.replace(federation, about={**federation.about, "inputs": note})


def _prepare(experiment: Experiment, federation: Federation | Population | None) -> _Components:
    # The dataset's own numbers do not apply to other data.
    experiment = experiment.checked(data_elsewhere=federation is not None)
    if federation is None:
        federation = load_data(experiment)
    else:
        federation = federation.for_task(_data_task(experiment) or federation.task)
    experiment = experiment.for_data(federation)
    if experiment.validation or experiment.held_out_clients:
        federation = _with_note(federation)
    if experiment.validation:
        federation = federation.with_validation(experiment.validation, experiment.split_seed or 0)
        if isinstance(federation, Federation) and not len(federation.parts["validation"].y):
            raise SettingError(f"validation = {experiment.validation} holds out no samples: use a larger fraction")
    check_coverage(experiment, federation)
    newcomers = None
    if experiment.held_out_clients:
        if isinstance(federation, Population):
            raise SettingError("held_out_clients needs the samples of all clients, but these are generated on demand")
        federation, newcomers = federation.hold_out(experiment.held_out_clients, experiment.split_seed or 0)
    if experiment.batch_norm != "local" and not has_batch_norm(experiment, federation):
        experiment = experiment.replaced(batch_norm="local")  # as if it had not been given
    task = make_task(experiment, federation)
    algorithm, plan = make_algorithm(experiment, task, federation), make_plan(experiment, federation.classes)
    plan.check_rule(algorithm, experiment.algorithm_name)
    store = _decide_store(experiment, federation, algorithm)
    return _Components(experiment, federation, newcomers, task, algorithm, plan, store)


def _data_task(experiment: Experiment) -> str | None:
    """The task by name that the labels are read for; None if the data decides it."""
    if experiment.task is None:
        return None
    kind = experiment.kind
    return kind.name if kind.name in tasks.TASKS else tasks.usual(kind.labels)


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
    experiment: Experiment, federation: Federation | Population, algorithm: Algorithm
) -> Literal["device", "memory", "file"]:
    """Where the clients are between their rounds."""
    states = 0
    if experiment.participation == "sample":
        states = federation.clients * experiment.seeds * state_bytes(algorithm)
    store: Any = _choose_store(experiment, federation, states)
    if isinstance(federation, Population):
        room = devices.host_memory()
        trained = (experiment.aggregated or 0) * federation.client_bytes
        if trained > room:
            raise SettingError(
                f"the {experiment.aggregated:,} clients of a round need about {trained / 1e9:,.1f} GB, but only "
                f"{room / 1e9:,.1f} GB are available: average fewer clients per round (aggregated)"
            )
        scored = (experiment.scored_clients or 0) * federation.client_bytes
        if scored > room:
            raise SettingError(
                f"evaluating {experiment.scored_clients:,} clients needs about {scored / 1e9:,.1f} GB, but only "
                f"{room / 1e9:,.1f} GB are available: evaluate fewer (scored_clients)"
            )
        if experiment.store == "device":
            raise SettingError("clients generated on demand cannot all be on the device: use store memory or file")
        return "memory" if store == "device" else store
    if store == "device" and experiment.scored_clients:
        raise SettingError("scored_clients is for clients in memory or in a file: on the device all are evaluated")
    return store


def _most_minibatches(backend: Backend[Any]) -> int:
    """Minibatches in a pass of the largest client, if its size is known."""
    if backend.samples is None:
        return 1
    return int(backend.plan.batching.per_pass(int(max(backend.samples.train.sizes, default=1))))


def _check_memory(experiment: Experiment, backend: Backend[Any]) -> None:
    """Rejects a run that does not fit into device memory. A run that merely takes long is the user's decision."""
    client, federation = backend.algorithm.client, backend.federation
    most = _most_minibatches(backend)
    samples = max(drawn(each, most) for each in (client.draws, client.model_draws)) * experiment.batch_size
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
