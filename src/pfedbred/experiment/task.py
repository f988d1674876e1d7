"""The task of an experiment on its data: the model, and the loss with its weights and targets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred import models, tasks
from pfedbred.algorithms.base import Task
from pfedbred.data.federation import Federation
from pfedbred.engine.backend import DataInfo
from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import Experiment
from pfedbred.models import Model
from pfedbred.runs.start_params import start_params
from pfedbred.tasks import Losses, Target, TaskKind


def make_task(experiment: Experiment, data: DataInfo, target: Target | None = None) -> Task:
    """The task on this data; targets are standardised by its training samples, or by a given ``target``."""
    kind = experiment.kind
    model = models.get(experiment.model, data.shape, kind.outputs(data.classes), data.words, experiment.batch_norm)
    model = _started(models.with_precision(model, experiment.precision), experiment)
    loss = None if experiment.loss is None else tasks.get_loss(experiment.loss, kind)
    target = target or data.target
    weights = _weights(experiment, data)
    task = Task(model, tasks.per_sample(kind, loss, weights, target), kind, target)
    if kind is not tasks.CLASSIFICATION:  # a network for classes may have more outputs than labels
        _check_outputs(model, kind, data)
    if loss is not None:
        _check_loss(task.losses, kind, data)
    return task


def has_batch_norm(experiment: Experiment, data: DataInfo) -> bool:
    """Whether the model has batch norm, which ``batch_norm`` is about."""
    outputs = experiment.kind.outputs(data.classes)
    return models.get(experiment.model, data.shape, outputs, data.words).statistics is not None


def has_norms(experiment: Experiment, data: DataInfo) -> bool:
    """Whether the model has normalisation layers, which some algorithms are about."""
    experiment = experiment.for_data(data)
    outputs = experiment.kind.outputs(data.classes)
    return bool(models.get(experiment.model, data.shape, outputs, data.words, experiment.batch_norm).norms)


def _started(model: Model, experiment: Experiment) -> Model:
    """The model with the params that it starts from, if they are given, and without those that are not trained."""
    if experiment.start_from is None:
        return model
    given, parts, trained = start_params(experiment.start_from), experiment.start_parts, experiment.train_only
    model = models.starting_from(model, given.arrays, parts, given.where)
    if trained is None:
        return model
    if parts is not None:
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        known = {*models.keys_of(shapes, parts, "start_parts"), *models.keys_of(shapes, trained, "train_only")}
        for key in (key for key in shapes if key not in known):
            raise SettingError(
                f"{key} is neither taken from start_from nor trained: add it to start_parts or train_only"
            )
    return models.training_only(model, trained, given.arrays, given.where)


def _weights(experiment: Experiment, data: DataInfo) -> np.ndarray | None:
    """The weight of each label: as given, or n / (labels n_l), with which all labels count alike."""
    given, kind = experiment.class_weights, experiment.kind
    if given is None:
        return None
    if kind.labels != "classes":
        raise SettingError(f"class_weights is for classes, and the task is {kind.name}")
    if not isinstance(given, str):
        if len(given) != data.classes:
            raise SettingError(f"class_weights has {len(given)} numbers, and {data.name} has {data.classes} labels")
        return np.asarray(given)
    if not isinstance(data, Federation):
        raise SettingError("class_weights balanced needs the labels of all clients here: give numbers, such as 1,5")
    counts = np.bincount(data.train.y, minlength=data.classes)
    return len(data.train.y) / (np.count_nonzero(counts) * np.maximum(counts, 1))


def _check_outputs(model: Model, kind: TaskKind, data: DataInfo) -> None:
    sample = jax.ShapeDtypeStruct((2, *data.shape), jnp.int32 if data.words else jnp.float32)
    found = jax.eval_shape(lambda key, x: model.apply(model.starting(model.init(key)), x), jax.random.key(0), sample)
    wanted = (2, kind.outputs(data.classes))
    if found.shape not in (wanted, *([(2,)] if kind.one_output else [])):
        raise SettingError(
            f"the task {kind.name} needs a model with {wanted[1]} outputs, and this one gives {found.shape[1:]}"
        )


def _check_loss(losses: Losses, kind: TaskKind, data: DataInfo) -> None:
    """Rejects a loss that does not give one number for each sample."""
    outputs = jnp.zeros((2, kind.outputs(data.classes)))
    try:
        found = jax.eval_shape(losses, outputs, kind.blank_labels(data.classes, 2))
    except Exception as problem:
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise SettingError(f"the loss cannot be computed from outputs and targets: {reason}") from problem
    if getattr(found, "shape", None) != (2,):
        given = getattr(found, "shape", type(found).__name__)
        raise SettingError(f"the loss must give one number for each sample, (2,) for two of them, not {given}")
