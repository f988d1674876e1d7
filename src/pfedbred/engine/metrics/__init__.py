"""Evaluation metrics, by name: one file each, and one line in :data:`METRICS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pfedbred import tasks
from pfedbred.engine.metrics.accuracy import accuracy
from pfedbred.engine.metrics.auroc import auroc
from pfedbred.engine.metrics.base import Metric, Predictions
from pfedbred.engine.metrics.brier import brier
from pfedbred.engine.metrics.ece import ece
from pfedbred.engine.metrics.f1 import f1
from pfedbred.engine.metrics.loss import loss
from pfedbred.engine.metrics.multi_label import exact_match, label_accuracy, micro_f1
from pfedbred.engine.metrics.nll import nll
from pfedbred.engine.metrics.regression import mae, r2, rmse
from pfedbred.errors import SettingError, nearest
from pfedbred.settings.signatures import build_part
from pfedbred.tasks import TaskKind

__all__ = ["METRICS", "Metric", "MetricLike", "Predictions", "as_list", "check_task", "get", "listed", "resolve"]

MetricLike: TypeAlias = str | Metric | Callable[[], Metric]
"""A metric by its name, as an object, or as a function that builds one."""

METRICS: dict[str, Metric] = {
    "accuracy": accuracy(),
    "loss": loss(),
    "f1": f1(),
    "auroc": auroc(),
    "ece": ece(),
    "brier": brier(),
    "nll": nll(),
    "rmse": rmse(),
    "mae": mae(),
    "r2": r2(),
    "micro_f1": micro_f1(),
    "label_accuracy": label_accuracy(),
    "exact_match": exact_match(),
}


def get(metric: MetricLike) -> Metric:
    """The metric of that name, or the one that a function builds; a :class:`Metric` is returned as it is."""
    if callable(metric):
        metric = build_part("metric", metric, {})
        if not isinstance(metric, Metric):
            raise SettingError(f"a function given as metric must return a Metric, not a {type(metric).__name__}")
    if isinstance(metric, Metric):
        if not metric.name.isidentifier():
            raise SettingError(f"a metric's name must be a plain word such as 'top_5', not {metric.name!r}")
        if metric.name in ("std", "worst_decile") or metric.name.startswith("client_"):
            raise SettingError(f"{metric.name!r} cannot be a metric's name: records use it for something else")
        if METRICS.get(metric.name, metric) is not metric:
            raise SettingError(f"{metric.name!r} is already the name of another metric; rename the custom one")
        return metric
    if not isinstance(metric, str) or metric not in METRICS:
        raise SettingError(f"unknown metric {metric!r}{nearest(metric, METRICS)}")
    return METRICS[metric]


def resolve(
    metrics: Sequence[MetricLike] | MetricLike | None, task: str | TaskKind = tasks.CLASSIFICATION
) -> tuple[Metric, ...]:
    """The metrics to evaluate, one or several of what :func:`get` takes, or ``"accuracy,f1,ece"``.

    Those that every evaluation of the task has come first (for classification accuracy and loss), the others follow in
    the order given; None stands for the task's usual ones.
    """
    kind = tasks.get(task)
    chosen = listed(kind.usual if metrics is None else metrics)
    check_task(chosen, kind)
    always = [METRICS[name] for name in kind.metrics]
    return (*always, *(each for each in chosen if each not in always))


def listed(metrics: Sequence[MetricLike] | MetricLike) -> list[Metric]:
    """The metrics that are given, each once."""
    chosen = [get(each) for each in as_list(metrics)]
    names = [each.name for each in chosen]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"the metric {name!r} is given {names.count(name)} times; give each metric once")
    return chosen


def as_list(metrics: Sequence[MetricLike] | MetricLike) -> list[MetricLike]:
    """One metric, several, or ``"accuracy,f1,ece"`` as a list."""
    if isinstance(metrics, str):
        return [name.strip() for name in metrics.split(",")] if metrics.strip() else []
    return [metrics] if isinstance(metrics, Metric) or callable(metrics) else list(metrics)


def check_task(metrics: Sequence[Metric], task: str | TaskKind) -> None:
    """Raises a :class:`SettingError` if one of the metrics is not defined for this kind of task."""
    kind = tasks.get(task)
    for each in metrics:
        if each.task not in ("any", kind.measured_as):
            fitting = ", ".join(name for name, metric in METRICS.items() if metric.task in ("any", kind.measured_as))
            raise SettingError(f"{each.name} is for {each.task}, and this task is {kind.name}; choose from: {fitting}")
