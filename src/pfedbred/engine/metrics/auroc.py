"""Area under the ROC curve, one class against the rest.

scikit-learn's ``roc_auc_score`` sorts all scores at once, on the host; here a metric is made of statistics that add up
over samples and clients, on the device: of histograms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as np

from pfedbred.engine.metrics.base import Metric, Predictions, as_float64
from pfedbred.engine.metrics.logits import exponentials, finite, one_hot
from pfedbred.types import Array

_ALL_BINS, _MOST_BINS, _FEWEST_BINS = 768, 384, 48  # of all classes together, and of one
_GROUP = 8  # of neighbouring bins
_FEW_BINS = 128
_FINEST = 1 / 16  # of a factor 2 in the odds: nearer to a uniform guess than this, bins narrow no further
_FARTHEST = 128  # powers of 2: the odds are single-precision numbers


class Histograms(NamedTuple):
    """Scores of the samples that are, and that are not, of each class, (classes, bins); samples without a score."""

    positive: Array
    negative: Array
    invalid: Array


def count_of_bins(classes: int) -> int:
    """Of each class. Fewer for many classes, so that the cost of an evaluation does not depend on their number."""
    fitting = _ALL_BINS // classes // _GROUP * _GROUP
    return max(_FEWEST_BINS, min(_MOST_BINS, fitting))


def _odds(outputs: Array) -> Array:
    """(classes, n) odds of the softmax probabilities, relative to those of a uniform guess."""
    each = exponentials(outputs)
    top = each == 1
    # The sum without the largest: subtracting it from the total would lose all digits near p = 1.
    left = jnp.sum(jnp.where(top, 0, each), 0) + (jnp.sum(top, 0) - 1)
    return each / jnp.where(top, left, left + 1 - each) * max(len(each) - 1, 1)


def _log2(positive: Array) -> Array:
    """The logarithm at powers of 2 and linear between them, read off the number's bits: it only has to be monotone."""
    bits = jax.lax.bitcast_convert_type(positive.astype(jnp.float32), jnp.int32)
    return bits.astype(jnp.float32) / 2**23 - 127


def bins(outputs: Array) -> Array:
    """(classes, n) bins of the scores; arbitrary where a logit is not finite."""
    score = _log2(_odds(outputs))
    distance = (_log2(jnp.abs(score) + _FINEST) - math.log2(_FINEST)) / math.log2(_FARTHEST / _FINEST)
    count = count_of_bins(outputs.shape[-1])
    place = (jnp.where(score < 0, -distance, distance) + 1) * (count / 2)
    return jnp.clip(place.astype(jnp.int32), 0, count - 1)


def _sums(predictions: Predictions) -> Histograms:
    outputs, labels, _, mask = predictions
    classes = outputs.shape[-1]
    valid = finite(outputs)
    positive, each = one_hot(labels, classes), count_of_bins(classes)
    index = (positive * classes + jnp.arange(classes)[:, None]) * each + bins(outputs)
    places = 2 * classes * each
    flat = _count(places + 1, jnp.where(valid & mask, index, places).ravel())[:-1]
    negatives, positives = flat.reshape(2, classes, each)
    return Histograms(positives, negatives, jnp.sum(mask & ~valid, dtype=jnp.int32))


def _count(places: int, index: Array) -> Array:
    """How often each index occurs, (places,).

    A scatter of integers: on a CPU ten times as fast as comparing with all bins, and exact in any order. Several
    models have one scatter: batched by JAX, its indices are pairs, which XLA computes one by one.
    """

    @jax.custom_batching.custom_vmap
    def count(index: Array) -> Array:
        return jnp.zeros(places, jnp.int32).at[index].add(1, mode="promise_in_bounds")

    @count.def_vmap
    def _(size: int, batched: list[bool], index: Array) -> tuple[Array, bool]:
        index = index + places * jnp.arange(size)[:, None]
        return _count(size * places, index.ravel()).reshape(size, places), True

    return count(index)


def _below(counts: Array) -> Array:
    """For each bin, the counts in lower bins, and half of that in the bin itself.

    This is one product, on a GPU a single kernel where a cumulative sum is twenty. With many bins, a CPU does it within
    groups of them and then over the groups, with far fewer multiplications.
    """
    whole = counts.shape[-1] <= _FEW_BINS or jax.default_backend() == "gpu"
    size = counts.shape[-1] if whole else _GROUP
    groups = counts.reshape(*counts.shape[:-1], -1, size)
    below = _product(groups, _lower(size) + np.eye(size) / 2)
    if groups.shape[-2] > 1:
        below += _product(jnp.sum(groups, -1), _lower(groups.shape[-2]))[..., None]
    return below.reshape(counts.shape)


def _lower(size: int) -> np.ndarray:
    """(bin, bin) 1 where the first is the lower one."""
    return np.triu(np.ones((size, size)), 1)


def _product(counts: Array, matrix: np.ndarray) -> Array:
    return jnp.matmul(counts, jnp.asarray(matrix, counts.dtype), precision=jax.lax.Precision.HIGHEST)


def _condense(sums: Histograms) -> Array:
    positive, negative = (each.astype(jnp.result_type(float)) for each in (sums.positive, sums.negative))
    pairs = jnp.sum(positive, -1) * jnp.sum(negative, -1)
    ordered = jnp.sum(positive * _below(negative), -1)
    mean = jnp.sum(ordered / jnp.maximum(pairs, 1), -1) / jnp.sum(pairs > 0, -1)  # NaN if no class has both
    return jnp.where(sums.invalid > 0, jnp.nan, mean)


def auroc() -> Metric:
    """Macro area under the ROC curve, one class against the rest, over the classes C with positives and negatives.

    .. math:: \\frac{1}{|C|} \\sum_{c \\in C} P(s_{ic} > s_{jc}) + \\tfrac{1}{2} P(s_{ic} = s_{jc}),
       \\quad y_i = c, \\; y_j \\neq c

    Ranks do not add up over clients, histograms do. The score s is the logarithm of the odds :math:`p_c / (1 - p_c)`
    over those of a uniform guess, in bins whose width is proportional to :math:`|s| + 1/16` (in powers of 2): 384 with
    two classes, 72 with ten, at least 48. Scores in one bin count as equal, so the value is exact where no positive
    shares a bin with a negative. Else, if classes are about as frequent, it is within 0.002 of that of exact ranks if
    the logits spread by 0.1 to 20, and 0.01 if by 0.05 to 40. Scores of rare classes lie far from a uniform guess: with
    6 % positives of two classes it is within 0.005 if the logits spread by 0.3 or more; if the rarest of ten classes
    has 1 %, within 0.02, and 0.003 if they spread by 1. NaN if a logit is not finite.

    Reference: Hand and Till, Machine Learning 45, 2001; one against the rest as in Fawcett, Pattern Recognition
    Letters 27, 2006, section 10.
    """
    return Metric("auroc", _sums, as_float64, True, "classification", True, "AUROC", _condense)
