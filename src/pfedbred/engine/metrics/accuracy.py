"""Accuracy."""

from __future__ import annotations

import jax.numpy as jnp

from pfedbred.engine.metrics.base import Mean, Metric, Predictions, mean, mean_value


def _sums(predictions: Predictions) -> Mean:
    outputs, labels, _, mask = predictions
    # A model that diverged to NaN predicts nothing; argmax would return label 0 and be right now and then.
    correct = (jnp.argmax(outputs, -1) == labels) & jnp.all(jnp.isfinite(outputs), -1)
    return mean(correct, mask)


def accuracy() -> Metric:
    """Fraction of samples whose largest logit is that of their label.

    .. math:: \\frac{1}{n} \\sum_i 1[\\arg\\max_c z_{ic} = y_i]

    A sample with a logit that is not finite counts as wrong.
    """
    return Metric("accuracy", _sums, mean_value, True, "classification", True, "accuracy")
