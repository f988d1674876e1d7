"""Reliability: whether a calibrated model's probabilities and coverage hold on test samples, client by client."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pfedbred.engine.calibration import Calibration, conformal_scores, label_sets, log_probabilities
from pfedbred.engine.metrics.base import ratio
from pfedbred.engine.metrics.ece import BINS


class Bins(NamedTuple):
    """A reliability diagram: sums over the samples in each of 15 bins of confidence, as the ECE has them."""

    samples: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray


class Reliability(NamedTuple):
    """One model on the test samples.

    Attributes:
      figures: by name, a value for each client; NaN without samples. ``coverage`` is the fraction of samples whose
        label is in their set or interval; ``size`` the mean number of labels in a set, ``width`` that of an interval.
        ``nll``, ``brier`` and ``ece`` are those of the calibrated probabilities, as the metrics define them, and those
        that end in ``_before`` of the uncalibrated probabilities.
      before: the reliability diagram of all samples before calibration; None where numbers are predicted.
      after: the same after calibration.
    """

    figures: dict[str, np.ndarray]
    before: Bins | None = None
    after: Bins | None = None


def measure(outputs: np.ndarray, labels: np.ndarray, offsets: np.ndarray, calibration: Calibration) -> Reliability:
    """Measures a model on the samples of all clients, client after client; see :func:`calibration.calibrate`."""
    sizes = np.diff(offsets)
    owner = np.repeat(np.arange(len(sizes)), sizes)

    def by_client(each: np.ndarray) -> np.ndarray:
        return ratio(np.bincount(owner, each, len(sizes)), sizes)

    threshold = calibration.threshold[owner]
    if np.ndim(outputs) == 1:
        covered = conformal_scores(outputs, labels) <= threshold
        return Reliability({"coverage": by_client(covered), "width": by_client(2 * threshold)})
    sets = label_sets(outputs, threshold)
    found = {
        "coverage": by_client(sets[np.arange(len(labels)), labels]),
        "size": by_client(sets.sum(-1)),
    }
    diagrams = []
    for suffix, temperature in (("_before", np.ones(len(labels))), ("", calibration.temperature[owner])):
        each = log_probabilities(outputs, temperature)
        likely, is_label = np.exp(each), labels[:, None] == np.arange(each.shape[-1])
        found[f"nll{suffix}"] = by_client(-np.sum(np.where(is_label, each, 0), -1))
        found[f"brier{suffix}"] = by_client(np.sum((likely - is_label) ** 2, -1))
        bins = _bins(likely, labels, owner, len(sizes))
        gaps = np.abs(bins.correct - bins.confidence).sum(-1)
        finite = by_client(np.isfinite(likely).all(-1)) == 1
        found[f"ece{suffix}"] = np.where(finite, ratio(gaps, sizes), np.nan)
        diagrams.append(Bins(*(part.sum(0) for part in bins)))
    return Reliability(found, *diagrams)


def _bins(likely: np.ndarray, labels: np.ndarray, owner: np.ndarray, clients: int) -> Bins:
    """By client and bin of confidence; samples without probabilities are in none."""
    confidence = likely.max(-1)
    kept = np.isfinite(confidence)
    confidence, correct = confidence[kept], likely.argmax(-1)[kept] == labels[kept]
    place = owner[kept] * BINS + np.clip(np.ceil(confidence * BINS), 1, BINS).astype(int) - 1
    summed = (np.bincount(place, each, clients * BINS) for each in (np.ones(len(place)), confidence, correct))
    return Bins(*(each.reshape(clients, BINS) for each in summed))
