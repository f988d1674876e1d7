"""Scales of numbers: a model's input is (x - shift) * scale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

FitScaling = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""``fit(x, training rows)`` returns shift and scale."""


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each feature, without a copy of x in floating point.

    Measured from the first sample, so that a feature far from zero keeps its precision and a constant one is exact.
    """
    total, squares, first = np.zeros(x.shape[1:]), np.zeros(x.shape[1:]), x[0].astype(np.float64)
    for begin in range(0, len(x), 4096):
        piece = x[begin : begin + 4096].astype(np.float64) - first
        total += piece.sum(axis=0)
        squares += (piece**2).sum(axis=0)
    mean = total / len(x)
    return first + mean, np.sqrt(np.maximum(squares / len(x) - mean**2, 0))


def by_pixel(x: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(x - mean) / (std + 0.001) for each pixel over the whole pool, including test samples: the paper's MNIST."""
    mean, spread = moments(x)
    return mean, 1 / (spread + 0.001)


def by_one_number(x: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(x - mean) / std with one mean and one std over the whole pool: the paper's Fashion-MNIST."""
    mean, spread = moments(x.reshape(len(x), -1))
    overall = np.mean(mean)
    return overall, 1 / np.sqrt(np.mean(spread**2 + (mean - overall) ** 2))


def to_unit_interval(x: np.ndarray | None = None, train: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Bytes to [0, 1]."""
    return np.asarray(0.0), np.asarray(1 / 255)


def to_plus_minus_one(x: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes to [-1, 1]: the paper's CIFAR-10."""
    return np.asarray(127.5), np.asarray(1 / 127.5)


def standardise(x: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean 0 and variance 1 for every feature of the training samples; a constant feature becomes 0."""
    mean, spread = moments(x[train])
    return mean, 1 / np.where(spread > 0, spread, 1.0)
