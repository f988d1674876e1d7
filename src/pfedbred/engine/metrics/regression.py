"""Errors of predicted numbers: RMSE, MAE, R2."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from pfedbred.engine.metrics.base import MeanStatistics, Metric, Predictions, mean, mean_value, ratio
from pfedbred.types import Array

_ROUNDING = 16 * float(np.finfo(np.float32).eps)  # of a float32 sum of squares, relative to it


class Squares(NamedTuple):
    """Sums over samples of the squared errors, of the labels and of their squares; and the number of samples."""

    errors: Array
    labels: Array
    squares: Array
    samples: Array


def _errors(predictions: Predictions) -> Array:
    outputs, labels, _, _ = predictions
    return outputs.reshape(labels.shape) - labels


def _squared(predictions: Predictions) -> MeanStatistics:
    return mean(_errors(predictions) ** 2, predictions.mask)


def _absolute(predictions: Predictions) -> MeanStatistics:
    return mean(jnp.abs(_errors(predictions)), predictions.mask)


def _squares(predictions: Predictions) -> Squares:
    labels = predictions.labels.astype(jnp.promote_types(predictions.labels.dtype, jnp.float32))
    errors, samples = _squared(predictions)
    return Squares(errors, mean(labels, predictions.mask).total, mean(labels**2, predictions.mask).total, samples)


def _root(sums: MeanStatistics) -> np.ndarray:
    return np.sqrt(mean_value(sums))


def _explained(sums: Squares) -> np.ndarray:
    squares = np.asarray(sums.squares, np.float64)
    variation = squares - ratio(np.asarray(sums.labels, np.float64) ** 2, sums.samples)
    return 1 - ratio(sums.errors, np.where(variation > _ROUNDING * squares, variation, 0))


def rmse() -> Metric:
    """Root of the mean squared error.

    .. math:: \\sqrt{\\frac{1}{n} \\sum_i (\\hat y_i - y_i)^2}
    """
    return Metric("rmse", _squared, _root, False, "regression", False, "RMSE")


def mae() -> Metric:
    """Mean absolute error.

    .. math:: \\frac{1}{n} \\sum_i |\\hat y_i - y_i|
    """
    return Metric("mae", _absolute, mean_value, False, "regression", False, "MAE")


def r2() -> Metric:
    """Coefficient of determination: the fraction of the labels' variance that the predictions explain.

    .. math:: 1 - \\frac{\\sum_i (\\hat y_i - y_i)^2}{\\sum_i (y_i - \\bar y)^2},
       \\quad \\sum_i (y_i - \\bar y)^2 = \\sum_i y_i^2 - \\frac{1}{n} \\bigl(\\sum_i y_i\\bigr)^2

    The mean label is known only when all clients are summed, so the squares are taken about 0. In float32 that costs
    accuracy when the labels lie far from 0: 1 - R2 has a relative error of about 1e-6 (1 + (mean / deviation)^2).
    Standardise such labels. NaN if the labels are all equal, or so nearly that rounding hides their variation (a
    deviation below 0.14 % of their root mean square).
    """
    return Metric("r2", _squares, _explained, True, "regression", False, "R²")
