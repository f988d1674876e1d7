"""Trackers: record runs with TensorBoard, MLflow or Weights & Biases. One file each, and one line in TRACKERS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pfedbred.errors import SettingError, nearest
from pfedbred.experiment.callbacks.trackers.base import Ending, Group, Start, Tracker
from pfedbred.experiment.callbacks.trackers.content import Measured
from pfedbred.experiment.callbacks.trackers.mlflow import MLflow
from pfedbred.experiment.callbacks.trackers.tensorboard import TensorBoard
from pfedbred.experiment.callbacks.trackers.wandb import Wandb

__all__ = [
    "TRACKERS",
    "Ending",
    "Group",
    "MLflow",
    "Measured",
    "Start",
    "TensorBoard",
    "Tracker",
    "Wandb",
    "named",
    "parse",
    "placed",
]

TRACKERS: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": Wandb,
}


def parse(text: str | None) -> list[str]:
    """The names in a text that separates them by commas."""
    names = [each.strip() for each in text.split(",")] if text is not None else []
    for name in names:
        if name not in TRACKERS:
            raise SettingError(f"unknown tracker {name!r}{nearest(name, TRACKERS)}")
    if len(set(names)) != len(names):
        raise SettingError(f"a tracker is named twice: {', '.join(names)}")
    return names


def named(names: Sequence[str], group: Group | None = None, title: str | None = None) -> list[Tracker]:
    """A new tracker for each of the names, for a run in that group and of that title."""
    return placed([TRACKERS[name]() for name in names], group, title)


def placed(found: list[Tracker], group: Group | None, title: str | None = None) -> list[Tracker]:
    """The trackers, from now on for a run in that group and of that title."""
    for each in found:
        each.group, each.title = group, title
    return found
