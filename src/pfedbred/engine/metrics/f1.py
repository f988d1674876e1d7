"""Macro F1."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from pfedbred.engine.metrics.base import Metric, Predictions, ratio
from pfedbred.engine.metrics.logits import finite, one_hot
from pfedbred.types import Array


class Confusions(NamedTuple):
    """Counts for each class: true positives, predictions, labels."""

    hits: Array
    predicted: Array
    actual: Array


def _sums(predictions: Predictions) -> Confusions:
    outputs, labels, _, mask = predictions
    classes = outputs.shape[-1]
    predicted = one_hot(jnp.argmax(outputs, -1), classes) & (finite(outputs) & mask)[:, None]
    actual = one_hot(labels, classes) & mask[:, None]
    return Confusions(*(jnp.sum(each, 0, dtype=jnp.int32) for each in (predicted & actual, predicted, actual)))


def _value(sums: Confusions) -> np.ndarray:
    occurring = np.add(sums.predicted, sums.actual)
    scores = ratio(np.multiply(sums.hits, 2), occurring)
    return ratio(np.nansum(scores, -1), np.count_nonzero(occurring, -1))


def f1() -> Metric:
    """Macro F1: mean of the classes' F1, over the classes C that occur among the labels or the predictions.

    .. math:: \\frac{1}{|C|} \\sum_{c \\in C} \\frac{2 TP_c}{2 TP_c + FP_c + FN_c}

    The counts are pooled before the F1 is taken. A sample with a logit that is not finite has no prediction.

    Reference: Opitz and Burst, Macro F1 and Macro F1, 2019 (arXiv:1911.03347), the averaged F1.
    """
    return Metric("f1", _sums, _value, True, "classification", True, "macro F1")
