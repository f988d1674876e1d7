"""Loss."""

from __future__ import annotations

from pfedbred.engine.metrics.base import MeanStatistics, Metric, Predictions, mean, mean_value


def _sums(predictions: Predictions) -> MeanStatistics:
    return mean(predictions.losses, predictions.mask)


def loss() -> Metric:
    """Mean of the task's loss, for classification the cross entropy; not finite if any sample's loss is not.

    .. math:: \\frac{1}{n} \\sum_i \\ell(z_i, y_i)
    """
    return Metric("loss", _sums, mean_value, False, "any", False, "loss")
