"""Binary classification: one logit, for the second of two labels."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pfedbred.tasks.base import TaskKind
from pfedbred.tasks.classification import most_likely
from pfedbred.types import Array


def logistic_losses(logits: Array, labels: Array) -> Array:
    """-ln sigmoid(z) where the label is 1, -ln sigmoid(-z) where it is 0."""
    return jax.nn.softplus(logits) - labels * logits


def two_logits(logits: Array) -> Array:
    """(0, z), whose softmax is the sigmoid of z: what classification metrics take."""
    return jnp.stack([jnp.zeros_like(logits), logits], axis=-1)


def mix_odds(log_weights: Array, outputs: Array) -> Array:
    """The log-odds of the mixed probabilities."""
    weights = log_weights.reshape(-1, *(1,) * (outputs.ndim - 1))
    yes, no = (jax.nn.logsumexp(weights + jax.nn.log_sigmoid(sign * outputs), axis=0) for sign in (1, -1))
    return yes - no


BINARY = TaskKind(
    name="binary",
    labels="classes",
    losses=logistic_losses,
    metrics=("accuracy", "loss"),
    usual=("auroc",),
    measured_as="classification",
    show=most_likely,
    mix=mix_odds,
    one_output=True,
    scores=two_logits,
)
