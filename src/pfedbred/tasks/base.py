"""What a kind of task is: what labels stand for, how outputs are evaluated, and how predictions are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from pfedbred.types import Array

Labels = Literal["classes", "numbers", "sets"]
"""What labels are: the number of a class, a number to predict, or a row of zeros and ones that marks a set of labels.
"""

Losses = Callable[[Array, Array], Array]
"""``losses(outputs, targets)`` is the loss of each sample."""


class Target(NamedTuple):
    """How numbers are learned: as (y - mean) / std, with the statistics of the training samples."""

    mean: float
    std: float

    @property
    def unit(self) -> float:
        """What labels are divided by: the standard deviation, or 1 if all labels are the same."""
        return self.std or 1.0


class TaskKind(NamedTuple):
    """A kind of task. Outputs are (n, k); with one output per sample, the functions here take them as (n,).

    Attributes:
      name: on the command line and in records.
      labels: what labels are.
      losses: the loss of each sample, given outputs and targets: labels, or standardised numbers.
      metrics: those in every evaluation, the primary metric first.
      usual: further metrics on test samples, unless others are asked for.
      measured_as: the ``task`` of the metrics that apply to it.
      show: predictions in readable form, given the scores and the labels' names, if any.
      mix: the outputs of a mixture, given the logarithms of its weights, (m,), and each model's outputs, (m, ...).
      one_output: whether a model has a single output instead of one per label.
      scores: what metrics compare with the labels, given outputs.
    """

    name: str
    labels: Labels
    losses: Losses
    metrics: tuple[str, ...]
    usual: tuple[str, ...]
    measured_as: str
    show: Callable[[np.ndarray, Sequence[str] | None], list[Any]]
    mix: Callable[[Array, Array], Array]
    one_output: bool = False
    scores: Callable[[Array], Array] = lambda outputs: outputs

    def outputs(self, labels: int) -> int:
        """The number of outputs of a model for this number of labels."""
        return 1 if self.one_output else labels

    def blank_labels(self, labels: int, samples: int = 1) -> Array:
        """Placeholder labels, for their shape and type."""
        shape = (samples, labels) if self.labels == "sets" else (samples,)
        return jnp.zeros(shape, jnp.float32 if self.labels == "numbers" else jnp.int32)

    def shaped(self, outputs: Array) -> Array:
        """A model's outputs, (n, k), as the functions here take them."""
        return outputs.reshape(outputs.shape[0]) if self.one_output else outputs


def per_sample(
    kind: TaskKind, loss: Losses | None = None, weights: np.ndarray | None = None, target: Target | None = None
) -> Losses:
    """The loss of each sample, given a model's outputs and the labels as stored in the data.

    Args:
      kind: the kind of task.
      loss: replaces the kind's own.
      weights: one per label, for its samples.
      target: how numbers are standardised.
    """
    chosen = loss or kind.losses
    if weights is None and target is None and not kind.one_output:
        return chosen

    def losses(outputs: Array, labels: Array) -> Array:
        targets = labels if target is None else (labels - target.mean) / target.unit
        each = chosen(kind.shaped(outputs), targets)
        return each if weights is None else each * jnp.asarray(weights, each.dtype)[labels]

    return losses
