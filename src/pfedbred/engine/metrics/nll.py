"""Negative log-likelihood."""

from __future__ import annotations

import jax.numpy as jnp

from pfedbred.engine.metrics.base import Mean, Metric, Predictions, mean, mean_value
from pfedbred.engine.metrics.logits import one_hot, shifted


def _sums(predictions: Predictions) -> Mean:
    logits = shifted(predictions.outputs)
    own = jnp.sum(jnp.where(one_hot(predictions.labels, len(logits)), logits, 0), 0)
    return mean(jnp.log(jnp.sum(jnp.exp(logits), 0)) - own, predictions.mask)


def nll() -> Metric:
    """Negative log-likelihood of the labels, whatever the loss in training: it may be weighted, or another function.

    .. math:: -\\frac{1}{n} \\sum_i \\ln p_{i y_i}

    NaN if a logit is not finite.
    """
    return Metric("nll", _sums, mean_value, False, "classification", False, "NLL")
