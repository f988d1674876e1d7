"""Multi-label classification: any number of labels for each sample, a logit for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from pfedbred.tasks.base import TaskKind
from pfedbred.tasks.binary import logistic_losses, mix_odds
from pfedbred.types import Array


def summed_logistic_losses(logits: Array, labels: Array) -> Array:
    """The logistic losses of a sample's labels, summed: each label learns as if it were alone."""
    return jnp.sum(logistic_losses(logits, labels), axis=-1)


def likely_sets(logits: np.ndarray, names: Sequence[str] | None) -> list[Any]:
    """The labels with a probability above one half, by name if labels have names."""
    return [tuple(names[i] if names else i for i in np.flatnonzero(row > 0).tolist()) for row in logits]


MULTI_LABEL = TaskKind(
    name="multi-label",
    labels="sets",
    losses=summed_logistic_losses,
    metrics=("micro_f1", "loss"),
    usual=("label_accuracy", "exact_match"),
    measured_as="multi-label",
    show=likely_sets,
    mix=mix_odds,
)
