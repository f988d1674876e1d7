"""Brier score."""

from __future__ import annotations

import jax.numpy as jnp

from pfedbred.engine.metrics.base import MeanStatistics, Metric, Predictions, mean, mean_value
from pfedbred.engine.metrics.logits import exponentials, one_hot


def _sums(predictions: Predictions) -> MeanStatistics:
    each = exponentials(predictions.outputs)
    probabilities = each / jnp.sum(each, 0)
    errors = probabilities - one_hot(predictions.labels, len(each))
    return mean(jnp.sum(errors**2, 0), predictions.mask)


def brier() -> Metric:
    """Brier score: squared distance of the softmax probabilities from the label, between 0 and 2.

    .. math:: \\frac{1}{n} \\sum_i \\sum_c (p_{ic} - 1[y_i = c])^2

    NaN if a logit is not finite.

    Reference: Brier, Monthly Weather Review 78, 1950.
    """
    return Metric("brier", _sums, mean_value, False, "classification", False, "Brier score")
