r"""Calibration: probabilities that match frequencies, and sets or intervals that contain the label as often as asked.

Both are fitted on validation samples after training: a temperature for the logits, and a threshold for conformal
prediction. They are for one model on one client's samples, or on the pooled samples of all clients.

Conformal prediction gives every validation sample a score s that is small if the model fits it, and takes as
threshold q the ceil((n + 1) level)-th smallest of the n scores. If a new sample is exchangeable with them,

    level <= P(s(x, y) <= q) < level + 1 / (n + 1),

the second if no two scores are equal. The scores here are 1 - p_y, of probabilities before any temperature, because
the temperature is fitted to the same samples; and for numbers the distance of the prediction from the label.

MAPIE (around scikit-learn's estimators) and crepes have split conformal prediction, and netcal (with PyTorch) has
temperatures. Here each is a few lines of NumPy and one of SciPy's root finders, which do not merit three dependencies.

References:
  Guo et al., On Calibration of Modern Neural Networks, ICML 2017 (temperatures).
  Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005 (split conformal prediction).
  Sadinle, Lei and Wasserman, Least Ambiguous Set-Valued Classifiers, JASA 2019 (the score 1 - p_y).
  Romano, Patterson and Candes, Conformalized Quantile Regression, NeurIPS 2019, section 2 (intervals by residuals).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

COLDEST, HOTTEST = 1 / 20, 20.0
"""Limits of the temperature: if every label has the largest logit, the likelihood has no maximum."""


class Calibration(NamedTuple):
    """The calibration of one model, for each client and, in the last entry, for the pooled samples of all clients.

    Attributes:
      temperature: what logits are divided by; NaN where numbers are predicted.
      threshold: the largest score that a set or an interval allows; infinite if there are too few samples for one.
    """

    temperature: np.ndarray
    threshold: np.ndarray


def log_probabilities(logits: np.ndarray, temperature: float | np.ndarray = 1.0) -> np.ndarray:
    """ln softmax(z / T), in double precision; NaN for a sample with a logit that is not finite.

    ``temperature`` is one number, or one for each sample.
    """
    scaled = np.asarray(logits, np.float64) / np.asarray(temperature, np.float64)[..., None]
    scaled = np.where(np.isfinite(scaled).all(-1, keepdims=True), scaled, np.nan)
    scaled = scaled - scaled.max(-1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))


def fitted_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    r"""The temperature with the smallest negative log-likelihood, from :data:`COLDEST` to :data:`HOTTEST`.

    With b = 1 / T the objective is convex in b, and the root of its derivative is found:

    .. math:: \frac{1}{n} \sum_i \Bigl(\sum_c p_{ic}(b) z_{ic} - z_{i y_i}\Bigr), \quad p_i(b) = softmax(b z_i)

    It is 1 if the samples do not determine it: there are none, or all temperatures are equally good. Samples with a
    logit that is not finite do not count.

    Reference: Guo et al. 2017, section 4.2.
    """
    from scipy.optimize import brentq  # a third of a second to import, and few commands need it

    logits = np.asarray(logits, np.float64)
    finite = np.isfinite(logits).all(-1)
    logits, labels = logits[finite], np.asarray(labels)[finite]
    if not len(labels):
        return 1.0
    # Against the label's logit: none of these terms is above zero if it is the largest, and no rounding makes one so.
    gaps = logits - logits[np.arange(len(labels)), labels][:, None]

    def slope(log_temperature: float) -> float:
        return float(np.mean(np.sum(np.exp(log_probabilities(gaps, math.exp(log_temperature))) * gaps, -1)))

    low, high = math.log(COLDEST), math.log(HOTTEST)
    coldest, hottest = slope(low), slope(high)
    if coldest <= 0 <= hottest:
        return 1.0
    if coldest <= 0:
        return COLDEST
    return HOTTEST if hottest >= 0 else math.exp(brentq(slope, low, high, xtol=1e-10))


def least_samples(level: float) -> int:
    """The smallest number of samples with a finite threshold: ceil((n + 1) level) <= n."""
    return math.ceil(round(level / (1 - level), 9))


def own_samples(level: float) -> int:
    """The smallest number of validation samples with which a client is calibrated alone: 19 at 90 %.

    Then coverage is at most half of 1 - level above the level, 1 / (n + 1) <= (1 - level) / 2. With the
    smallest number that gives a finite threshold, it would be the largest score, and sets and intervals too large.
    """
    return math.ceil(round(2 / (1 - level), 9)) - 1


def conformal_threshold(scores: np.ndarray, level: float) -> float:
    """The ceil((n + 1) level)-th smallest of n scores; infinite if there are fewer. NaN counts as infinite.

    Reference: Vovk et al. 2005; Romano et al. 2019, equation (6).
    """
    ordered = np.sort(np.where(np.isnan(scores), np.inf, scores))
    rank = math.ceil(round((len(ordered) + 1) * level, 9))  # (n + 1) 0.9 may be an integer apart from rounding
    return float(ordered[rank - 1]) if rank <= len(ordered) else math.inf


def conformal_scores(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How badly each sample fits: 1 - p_y from logits, (n, labels), or the absolute error of numbers, (n,)."""
    outputs = np.asarray(outputs, np.float64)
    if outputs.ndim == 1:
        return np.abs(outputs - labels)
    return 1 - np.exp(log_probabilities(outputs))[np.arange(len(labels)), labels]


def label_sets(logits: np.ndarray, threshold: float | np.ndarray) -> np.ndarray:
    """(n, labels) whether a label is in a sample's set: 1 - p <= threshold, or no label is more likely.

    So no set is empty, and coverage can only become larger. ``threshold`` is one number, or one for each sample.
    Without finite logits there is no set.
    """
    each = log_probabilities(logits)
    allowed = 1 - np.exp(each) <= np.asarray(threshold)[..., None]
    return allowed | (each == each.max(-1, keepdims=True))


def calibrate(outputs: np.ndarray, labels: np.ndarray, offsets: np.ndarray, level: float) -> Calibration:
    """Calibrates a model for each client, and for all of them, by the clients' validation samples.

    A client with fewer than :func:`own_samples` samples has the temperature and the threshold of the pooled samples.
    A client whose own temperature would lie at a limit has the pooled one: its samples do not determine it.

    Args:
      outputs: for the samples of all clients, client after client: logits, (n, labels), or numbers, (n,).
      labels: for the same samples.
      offsets: where each client's samples begin, and where the last one's end.
      level: the requested coverage.
    """
    classes = np.ndim(outputs) == 2
    scores = conformal_scores(outputs, labels)
    clients = len(offsets) - 1
    pooled = fitted_temperature(outputs, labels) if classes else math.nan
    temperature = np.full(clients + 1, pooled)
    threshold = np.full(clients + 1, conformal_threshold(scores, level))
    for i in np.flatnonzero(np.diff(offsets) >= own_samples(level)):
        rows = slice(offsets[i], offsets[i + 1])
        threshold[i] = conformal_threshold(scores[rows], level)
        if classes:
            own = fitted_temperature(outputs[rows], labels[rows])
            temperature[i] = own if COLDEST < own < HOTTEST else pooled
    return Calibration(temperature, threshold)
