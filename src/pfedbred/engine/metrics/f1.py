"""Macro F1."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from pfedbred.engine.metrics.base import Metric, Predictions, as_float64
from pfedbred.engine.metrics.logits import finite, one_hot, predicted
from pfedbred.types import Array


class Confusions(NamedTuple):
    """Counts for each class: true positives, predictions, labels."""

    hits: Array
    predicted: Array
    actual: Array


def _sums(predictions: Predictions) -> Confusions:
    outputs, labels, _, mask = predictions
    classes = outputs.shape[-1]
    guessed = one_hot(predicted(outputs), classes) & finite(outputs) & mask
    actual = one_hot(labels, classes) & mask
    return Confusions(*(jnp.sum(each, -1, dtype=jnp.int32) for each in (guessed & actual, guessed, actual)))


def _condense(sums: Confusions) -> Array:
    occurring = sums.predicted + sums.actual
    scores = 2 * sums.hits / jnp.maximum(occurring, 1)
    return jnp.sum(scores, -1) / jnp.sum(occurring > 0, -1)  # NaN without samples


def f1() -> Metric:
    """Macro F1: mean of the classes' F1, over the classes C that occur among the labels or the predictions.

    .. math:: \\frac{1}{|C|} \\sum_{c \\in C} \\frac{2 TP_c}{2 TP_c + FP_c + FN_c}

    The counts are pooled before the F1 is taken. A sample with a logit that is not finite has no prediction.

    Reference: Opitz and Burst, Macro F1 and Macro F1, 2019 (arXiv:1911.03347), the averaged F1.
    """
    return Metric("f1", _sums, as_float64, True, "classification", True, "macro F1", _condense)
