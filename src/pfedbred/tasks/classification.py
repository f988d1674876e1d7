"""Classification: one of several labels for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.tasks.base import TaskKind
from pfedbred.types import Array


def cross_entropy(logits: Array, labels: Array) -> Array:
    """-ln softmax(logits)_label of each sample.

    The label's logit is picked by a comparison. optax indexes it, and the gradient of that is a scatter, which on a GPU
    takes twice as long to compile and, for small models, a tenth longer to run.
    """
    is_label = labels[..., None] == jnp.arange(logits.shape[-1])
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(is_label, logits, 0), axis=-1)


def most_likely(logits: np.ndarray, names: Sequence[str] | None) -> list[Any]:
    """The label with the largest logit, by name if labels have names."""
    return [names[label] if names else int(label) for label in logits.argmax(axis=1)]


def mix_probabilities(log_weights: Array, outputs: Array) -> Array:
    """The logarithm of the mixed softmax probabilities, which are logits again."""
    each = jax.nn.log_softmax(outputs)
    return jax.nn.logsumexp(log_weights.reshape(-1, *(1,) * (each.ndim - 1)) + each, axis=0)


CLASSIFICATION = TaskKind(
    name="classification",
    labels="classes",
    losses=cross_entropy,
    metrics=("accuracy", "loss"),
    usual=(),
    measured_as="classification",
    show=most_likely,
    mix=mix_probabilities,
)
