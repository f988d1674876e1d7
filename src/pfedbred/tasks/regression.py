"""Regression: a number for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from pfedbred.tasks.base import TaskKind
from pfedbred.types import Array


def squared_losses(outputs: Array, targets: Array) -> Array:
    """Half the squared error, -ln N(y; f, 1) up to a constant: 0.5 for a model that predicts the mean."""
    return optax.squared_error(outputs, targets) / 2


def absolute_losses(outputs: Array, targets: Array) -> Array:
    """The absolute error, which is robust to outliers: the best constant is the median."""
    return jnp.abs(outputs - targets)


def huber_losses(outputs: Array, targets: Array) -> Array:
    """Half the squared error up to one standard deviation, and linear beyond."""
    return optax.huber_loss(outputs, targets)


def as_numbers(scores: np.ndarray, names: Sequence[str] | None) -> list[Any]:
    """The predicted numbers."""
    return [float(each) for each in scores]


def mix_means(log_weights: Array, outputs: Array) -> Array:
    """The mean of the mixture."""
    return jnp.tensordot(jnp.exp(log_weights), outputs, 1)


REGRESSION = TaskKind(
    name="regression",
    labels="numbers",
    losses=squared_losses,
    metrics=("rmse", "loss"),
    usual=("mae", "r2"),
    measured_as="regression",
    show=as_numbers,
    mix=mix_means,
    one_output=True,
)
