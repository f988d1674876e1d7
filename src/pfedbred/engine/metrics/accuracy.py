"""Accuracy."""

from __future__ import annotations

from pfedbred.engine.metrics.base import MeanStatistics, Metric, Predictions, mean, mean_value
from pfedbred.engine.metrics.logits import correct


def _sums(predictions: Predictions) -> MeanStatistics:
    return mean(correct(predictions), predictions.mask)


def accuracy() -> Metric:
    """Fraction of samples whose largest logit is that of their label.

    .. math:: \\frac{1}{n} \\sum_i 1[\\arg\\max_c z_{ic} = y_i]

    A sample with a logit that is not finite counts as wrong.
    """
    return Metric("accuracy", _sums, mean_value, True, "classification", True, "accuracy")
