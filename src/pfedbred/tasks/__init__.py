"""Kinds of tasks, by name: one file each, and one line in :data:`TASKS`."""

from __future__ import annotations

from collections.abc import Callable

from pfedbred.errors import SettingError, nearest
from pfedbred.settings.signatures import building
from pfedbred.tasks.base import Labels, Losses, Target, TaskKind, per_sample
from pfedbred.tasks.binary import BINARY
from pfedbred.tasks.classification import CLASSIFICATION, cross_entropy
from pfedbred.tasks.multi_label import MULTI_LABEL
from pfedbred.tasks.regression import REGRESSION, absolute_losses, huber_losses, squared_losses

__all__ = [
    "CLASSIFICATION",
    "LOSSES",
    "TASKS",
    "Labels",
    "Losses",
    "Target",
    "TaskKind",
    "cross_entropy",
    "get",
    "get_loss",
    "per_sample",
    "usual",
]

TASKS: dict[str, TaskKind] = {each.name: each for each in (CLASSIFICATION, BINARY, MULTI_LABEL, REGRESSION)}
"""Every named kind of task. A new one is a file in this folder, and its name here."""

LOSSES: dict[str, Losses] = {"squared": squared_losses, "absolute": absolute_losses, "huber": huber_losses}
"""Named losses for tasks whose labels are numbers; others are given as functions of outputs and targets."""


def get(task: str | TaskKind | Callable[[], TaskKind]) -> TaskKind:
    """The kind of task of that name; a :class:`TaskKind`, or what a function makes, is returned unchanged."""
    if isinstance(task, str):
        if task not in TASKS:
            raise SettingError(f"unknown task {task!r}{nearest(task, TASKS)}")
        return TASKS[task]
    with building("task", task):
        made = task if isinstance(task, TaskKind) else task() if callable(task) else None
    if not isinstance(made, TaskKind):
        raise SettingError(f"task must be a name, a TaskKind or a function that makes one, not {task!r}")
    return made


def usual(labels: Labels) -> str:
    """The name of the default task for these labels."""
    return next(name for name, kind in TASKS.items() if kind.labels == labels)


def get_loss(loss: str | Losses, kind: TaskKind) -> Losses:
    """The loss of that name, if it fits the task; a function is returned unchanged."""
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise SettingError(f"unknown loss {loss!r}{nearest(loss, LOSSES)}; or give a function")
        if kind.labels != "numbers":
            raise SettingError(f"the loss {loss} is for numbers, and the task is {kind.name}")
        return LOSSES[loss]
    if not callable(loss):
        raise SettingError(f"loss must be a name or a function of outputs and targets, not {loss!r}")
    return loss
