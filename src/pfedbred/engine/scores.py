"""Scores: what the metrics' statistics amount to, for G and P, over all samples and client by client."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.algorithms.base import Task
from pfedbred.data.federation import Part
from pfedbred.engine import metrics
from pfedbred.engine.metrics import Metric
from pfedbred.errors import SettingError
from pfedbred.types import Tree

MODELS = ("global", "personal")

Sums: TypeAlias = Mapping[str, Tree]
"""A metric's additive statistics, by its name."""


Tallies: TypeAlias = Mapping[str, Sums]
"""Statistics by model and part, as in ``global_test``; clients are along the first axis (the second, after seeds)."""


MetricsByPart: TypeAlias = Mapping[Part, Sequence[Metric]]
"""The metrics of each part."""


def chosen_metrics(parts: Iterable[Part], chosen: Sequence[Metric], task: Task) -> MetricsByPart:
    """The metrics of each part: the chosen ones, but only the default ones on training samples."""
    return {part: metrics.resolve("", task.kind) if part == "train" else tuple(chosen) for part in parts}


@dataclass(frozen=True)
class Scores:
    """One model on one part of the samples.

    Attributes:
      values: each metric by seed, pooled over all samples of the clients. ``worst_decile`` is the mean of the first
        metric over the tenth of the clients (at least one) for whom it is worst, ``client_std`` its standard deviation
        over clients.
      clients: each metric by seed and client; NaN for a client without samples.
    """

    values: Mapping[str, np.ndarray]
    clients: Mapping[str, np.ndarray]

    @property
    def accuracy(self) -> np.ndarray:
        """Fraction of correct predictions over all samples, by seed."""
        return self.values["accuracy"]

    @property
    def loss(self) -> np.ndarray:
        """Mean loss over all samples, by seed."""
        return self.values["loss"]

    @property
    def worst_decile(self) -> np.ndarray:
        """Mean of the first metric, such as accuracy, over the worst-off tenth of the clients, by seed."""
        return self.values["worst_decile"]

    @property
    def client_std(self) -> np.ndarray:
        """Standard deviation of the first metric over the clients, by seed."""
        return self.values["client_std"]

    @property
    def client_accuracy(self) -> np.ndarray:
        """Accuracy by seed and client."""
        return self.clients["accuracy"]

    @property
    def client_loss(self) -> np.ndarray:
        """Loss by seed and client."""
        return self.clients["loss"]


class ModelScores(NamedTuple):
    """One model on each part; ``validation`` is None if no samples are kept for it."""

    train: Scores
    test: Scores
    validation: Scores | None = None

    @property
    def parts(self) -> dict[Part, Scores]:
        """The parts by name."""
        validation: dict[Part, Scores] = {} if self.validation is None else {"validation": self.validation}
        return {"train": self.train, **validation, "test": self.test}


class Evaluation(NamedTuple):
    """The scores of both models."""

    global_: ModelScores
    personal: ModelScores

    def of(self, model: Literal["global", "personal"]) -> ModelScores:
        """G or P."""
        if model not in ("global", "personal"):
            raise SettingError(f"model must be 'global' or 'personal', not {model!r}")
        return self.global_ if model == "global" else self.personal


def combine(tallies: Tallies, chosen: MetricsByPart, axis: int = 0) -> Mapping[str, Sums]:
    """Both models' statistics side by side, by part; ``axis`` is the clients'.

    Large statistics are condensed here, on the device, and have the pooled value after those of the clients.
    """

    def combined(part: str, metric: Metric) -> Tree:
        both = [tallies[f"{model}_{part}"][metric.name] for model in MODELS]
        own = jax.tree.map(lambda *leaves: jnp.stack(leaves, axis), *both)
        if metric.condense is None:
            return own
        # All clients together are one more client: on a GPU, condensing them apart would be as many kernels again.
        pooled = jax.tree.map(lambda leaf: jnp.sum(leaf, axis + 1, keepdims=True), own)
        return metric.condense(jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis + 1), own, pooled))

    return {part: {metric.name: combined(part, metric) for metric in chosen[part]} for part in chosen}


def summarise(combined: Mapping[str, Sums], chosen: MetricsByPart) -> Evaluation:
    """The metrics' values from combined statistics that begin with the seeds, then the models, then the clients."""
    found = {part: _scores(combined[part], chosen[part]) for part in chosen}
    return Evaluation(*(ModelScores(**{part: both[model] for part, both in found.items()}) for model in (0, 1)))


def _scores(sums: Sums, chosen: Sequence[Metric]) -> list[Scores]:
    """The scores of G and of P."""
    every = _values(sums, chosen)
    clients = {metric.name: every[metric.name][..., :-1] for metric in chosen}
    values = {metric.name: every[metric.name][..., -1] for metric in chosen}
    values |= _spread(clients[chosen[0].name], chosen[0].higher_is_better)
    return [
        Scores(*({name: array[:, model] for name, array in each.items()} for each in (values, clients)))
        for model in range(len(MODELS))
    ]


def _values(sums: Sums, chosen: Sequence[Metric]) -> dict[str, np.ndarray]:
    """Each metric of the clients, and after them of all samples.

    Metrics with the same function are computed together: the calls into NumPy take longer than its work.
    """
    alike: dict[Any, list[str]] = {}
    for metric in chosen:
        leaves, structure = jax.tree.flatten(sums[metric.name])
        shapes = tuple(leaf.shape for leaf in leaves)
        alike.setdefault((metric.value, metric.condense is None, structure, shapes), []).append(metric.name)
    found: dict[str, np.ndarray] = {}
    for (value, add_up, *_), names in alike.items():
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(sums[name] for name in names))
        found |= zip(names, value(jax.tree.map(_with_total, stacked) if add_up else stacked), strict=True)
    return found


def _with_total(leaf: np.ndarray) -> np.ndarray:
    """With the sum over the clients after them, in double precision."""
    total = np.sum(leaf, axis=3, dtype=np.float64 if leaf.dtype.kind == "f" else np.int64, keepdims=True)
    return np.concatenate([leaf, total], axis=3)


def _spread(values: np.ndarray, higher_is_better: bool) -> dict[str, np.ndarray]:
    """How a metric differs between the clients that have samples."""
    have = np.isfinite(values).any(axis=(0, 1))
    if not have.any():
        return dict.fromkeys(("worst_decile", "client_std"), np.full(values.shape[:2], np.nan))
    own = np.sort(values[..., have], axis=-1)
    with np.errstate(invalid="ignore"):  # a run that diverges has infinite errors, and no deviation
        return {"worst_decile": worst_tenth(own, higher_is_better), "client_std": own.std(-1)}


def worst_tenth(values: np.ndarray, higher_is_better: bool) -> np.ndarray:
    """The mean over the tenth of the clients, along the last axis and at least one, for whom it is worst."""
    ordered = np.sort(values, axis=-1)
    tenth = math.ceil(values.shape[-1] / 10)
    return (ordered[..., :tenth] if higher_is_better else ordered[..., -tenth:]).mean(-1)
