"""Sets of labels: micro F1, accuracy by label, exact matches. A label is predicted where its logit is above 0."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from pfedbred.engine.metrics.base import MeanStatistics, Metric, Predictions, mean, mean_value, ratio
from pfedbred.types import Array


class Decisions(NamedTuple):
    """Counts over samples and labels: the numerator and the denominator of a ratio."""

    good: Array
    all: Array


def _right(predictions: Predictions) -> Array:
    """(n, labels) whether a label's decision is right; False where the logit is not finite."""
    outputs, labels = predictions.outputs, predictions.labels
    return ((outputs > 0) == (labels > 0)) & jnp.isfinite(outputs)


def _decisions(predictions: Predictions) -> Decisions:
    real = predictions.mask[:, None]
    guessed, actual = (predictions.outputs > 0) & real, (predictions.labels > 0) & real
    return Decisions(2 * _count(guessed & actual), _count(guessed) + _count(actual))


def _by_label(predictions: Predictions) -> Decisions:
    real = jnp.broadcast_to(predictions.mask[:, None], predictions.labels.shape)
    return Decisions(_count(_right(predictions) & real), _count(real))


def _count(which: Array) -> Array:
    """As a float: there are more decisions than samples, and integer statistics are checked against the samples."""
    return jnp.sum(which, dtype=jnp.float32)


def _ratio(sums: Decisions) -> np.ndarray:
    return ratio(sums.good, sums.all)


def _exact(predictions: Predictions) -> MeanStatistics:
    return mean(jnp.all(_right(predictions), axis=-1), predictions.mask)


def micro_f1() -> Metric:
    """Micro F1: the F1 of all decisions, over samples and labels alike.

    .. math:: \\frac{2 TP}{2 TP + FP + FN}

    NaN where no label is predicted and none is true.
    """
    return Metric("micro_f1", _decisions, _ratio, True, "multi-label", True, "micro F1")


def label_accuracy() -> Metric:
    """Fraction of the decisions that are right, one minus the Hamming loss.

    .. math:: \\frac{1}{n L} \\sum_i \\sum_l 1[(z_{il} > 0) = y_{il}]
    """
    return Metric("label_accuracy", _by_label, _ratio, True, "multi-label", True, "accuracy by label")


def exact_match() -> Metric:
    """Fraction of samples whose labels are all predicted, and no others.

    .. math:: \\frac{1}{n} \\sum_i 1[\\forall l: (z_{il} > 0) = y_{il}]
    """
    return Metric("exact_match", _exact, mean_value, True, "multi-label", True, "exact matches")
