"""Negative log-likelihood."""

from __future__ import annotations

import jax.numpy as jnp

from pfedbred.engine.metrics.base import MeanStatistics, Metric, Predictions, mean, mean_value
from pfedbred.engine.metrics.logits import finite
from pfedbred.tasks.classification import cross_entropy


def _sums(predictions: Predictions) -> MeanStatistics:
    outputs, labels, _, mask = predictions
    logits = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
    return mean(jnp.where(finite(outputs), cross_entropy(logits, labels), jnp.nan), mask)


def nll() -> Metric:
    """Negative log-likelihood of the labels, whatever the loss in training: it may be weighted, or another function.

    .. math:: -\\frac{1}{n} \\sum_i \\ln p_{i y_i}

    NaN if a logit is not finite.
    """
    return Metric("nll", _sums, mean_value, False, "classification", False, "NLL")
