"""Expected calibration error.

scikit-learn's ``calibration_curve`` and netcal need all probabilities at once, on the host; here a metric is made of
statistics that add up over samples and clients, on the device.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.engine.metrics.base import Metric, Predictions, as_float64, count
from pfedbred.engine.metrics.logits import correct, exponentials
from pfedbred.types import Array

BINS = 15


class Gaps(NamedTuple):
    """For each bin of confidence the sum of correctness minus confidence; and the number of samples."""

    gaps: Array
    samples: Array


def _sums(predictions: Predictions) -> Gaps:
    mask = predictions.mask
    confidence = 1 / jnp.sum(exponentials(predictions.outputs), 0)  # the largest exponential is 1
    gap = jnp.where(mask, correct(predictions) - confidence, 0)
    bins = jnp.clip(jnp.ceil(confidence * BINS), 1, BINS)  # the interval is open below and closed above
    inside = (bins[:, None] == jnp.arange(1, BINS + 1)).astype(gap.dtype)
    # A product, so that a NaN, which is in no bin, makes all of them NaN, and the error too.
    return Gaps(jnp.matmul(gap, inside, precision=jax.lax.Precision.HIGHEST), count(mask))


def _condense(sums: Gaps) -> Array:
    return jnp.sum(jnp.abs(sums.gaps), -1) / sums.samples  # NaN without samples


def ece() -> Metric:
    """Expected calibration error: how far confidence is from accuracy, in 15 bins of confidence of equal width.

    .. math:: \\sum_{b=1}^{15} \\frac{n_b}{n} \\, |\\mathrm{accuracy}_b - \\mathrm{confidence}_b|

    The confidence is the largest softmax probability; bin b holds those in ((b - 1) / 15, b / 15]. NaN if a logit is
    not finite.

    Reference: Guo et al., On Calibration of Modern Neural Networks, ICML 2017, equation (3).
    """
    return Metric("ece", _sums, as_float64, False, "classification", True, "ECE", _condense)
