"""What a metric is: statistics that add up over blocks and clients, and the value they amount to.

A metric never sees a whole test set. It turns one block of one client's samples into a few sums on the device;
the sums of the blocks are added for each client, those of the clients for the pooled value, and only then is the
value computed. So the pooled value is that of all samples together, not an average of the clients' values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from pfedbred.types import Array, Tree


class Predictions(NamedTuple):
    """A model's predictions for one block of n samples of one client.

    Attributes:
      outputs: (n, labels) logits; for regression (n,) or (n, 1) predicted numbers, in the units of the labels.
      labels: (n,) integer labels; for regression (n,) numbers; for several labels (n, labels) zeros and ones.
      losses: (n,) the task's loss of each sample.
      mask: (n,) booleans, False for padding. Padding counts for nothing, though its other entries may be NaN.
    """

    outputs: Array
    labels: Array
    losses: Array
    mask: Array


class Metric(NamedTuple):
    """An evaluation metric.

    Attributes:
      name: its key in records and on the command line.
      sums: JAX function from :class:`Predictions` to additive statistics, a pytree; it is run under `jit` and `vmap`.
      value: NumPy function from summed statistics, whose leaves may have any leading axes (seeds, clients), to the
        metric in float64; NaN where there are no samples.
      higher_is_better: whether a larger value is a better one.
      task: the kind of task it is defined for.
      percent: whether tables and figures show it in percent.
      title: short label for tables and axes.
      condense: JAX function that makes statistics of many numbers small once they are summed, on the device and for
        any leading axes; ``value`` then takes its result. None if they are small anyway.
    """

    name: str
    sums: Callable[[Predictions], Tree]
    value: Callable[[Tree], np.ndarray]
    higher_is_better: bool
    task: Literal["any", "classification", "regression", "multi-label"]
    percent: bool
    title: str
    condense: Callable[[Tree], Tree] | None = None


class MeanStatistics(NamedTuple):
    """Statistics of a mean over samples."""

    total: Array
    samples: Array


def mean(each: Array, mask: Array) -> MeanStatistics:
    """The statistics of the mean of ``each`` where ``mask`` holds: exact for booleans, else at least float32."""
    dtype = jnp.int32 if each.dtype == bool else jnp.promote_types(each.dtype, jnp.float32)
    return MeanStatistics(jnp.sum(jnp.where(mask, each, 0), dtype=dtype), count(mask))


def count(mask: Array) -> Array:
    """The number of samples that are not padding."""
    return jnp.sum(mask, dtype=jnp.int32)


def mean_value(sums: MeanStatistics) -> np.ndarray:
    """The mean; NaN without samples."""
    return ratio(sums.total, sums.samples)


def as_float64(value: ArrayLike) -> np.ndarray:
    """For a metric whose ``condense`` has the value already."""
    return np.asarray(value, np.float64)


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> np.ndarray:
    """``numerator / denominator`` in float64; NaN where the denominator is 0."""
    above, below = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    return np.divide(above, below, out=np.full(np.broadcast(above, below).shape, np.nan), where=below != 0)
