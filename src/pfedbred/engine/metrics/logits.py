"""What the classification metrics compute from logits.

They all call these functions on the same predictions within one program, where XLA computes equal expressions once.
"""

from __future__ import annotations

import jax.numpy as jnp

from pfedbred.engine.metrics.base import Predictions
from pfedbred.types import Array


def finite(outputs: Array) -> Array:
    """Whether all logits of a sample are finite. A model that diverged to NaN predicts nothing."""
    return jnp.all(jnp.isfinite(outputs), -1)


def one_hot(labels: Array, classes: int) -> Array:
    """(n, classes) booleans: True at each sample's label."""
    return labels[:, None] == jnp.arange(classes)


def correct(predictions: Predictions) -> Array:
    """Whether the largest logit is that of the label; False where a logit is not finite."""
    outputs = predictions.outputs
    # Of NaN logits argmax would return label 0, and be right now and then.
    return (jnp.argmax(outputs, -1) == predictions.labels) & finite(outputs)


def shifted(outputs: Array) -> Array:
    """z - max z, in at least float32; NaN for a sample with a logit that is not finite."""
    logits = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
    return jnp.where(finite(outputs)[:, None], logits - jnp.max(logits, -1, keepdims=True), jnp.nan)


def exponentials(outputs: Array) -> Array:
    """exp(z - max z), the softmax before it is normalised."""
    return jnp.exp(shifted(outputs))
