"""Statistics over seeds and splits, and places to sample a long series at.

Intervals are Student's, of 95 %. Seeds on one split share its data, so runs on several splits are first averaged over
the seeds of each: what varies is the split, and there are as many degrees of freedom as splits, less one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A mean and how well it is known.

    Attributes:
      mean: over seeds and splits; None if one of them diverged.
      half_width: of the interval around it; None for a single run.
    """

    mean: float | None
    half_width: float | None

    @property
    def excludes_zero(self) -> bool | None:
        """Whether the interval excludes 0: for a difference, whether its sign is known. None without an interval."""
        if self.mean is None or self.half_width is None:
            return None
        return abs(self.mean) > self.half_width


def estimate(values: np.ndarray) -> Estimate:
    """The mean of values by split and seed, or by seed alone, with its interval.

    Of n independent means m_i with standard deviation s, the half-width is t(n - 1) s / sqrt(n).
    """
    by_split = np.atleast_2d(np.asarray(values, float))
    if not by_split.size or not np.all(np.isfinite(by_split)):
        return Estimate(None, None)
    units = by_split.mean(axis=1) if len(by_split) > 1 else by_split[0]
    mean, std = mean_and_std(units)
    return Estimate(mean, half_width(std, len(units)))


def paired_difference(values: np.ndarray, other: np.ndarray) -> Estimate:
    """The mean of the differences between runs of the same split and seed, with its interval."""
    return estimate(np.asarray(values, float) - np.asarray(other, float))


def half_width(std: float | None, count: int) -> float | None:
    """The half-width of the interval around the mean of ``count`` values with this deviation; None for a single one."""
    return None if std is None or count < 2 else t_quantile(count - 1) * std / math.sqrt(count)


def t_quantile(freedom: int) -> float:
    """t with P(|T| <= t) = 0.95, for Student's T with ``freedom`` degrees of freedom."""
    from scipy.special import stdtrit  # Student's quantile function; scipy.stats would take half a second to import

    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))


def mean_and_std(values: Sequence[float | None] | np.ndarray) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation, which is 0 for a single seed; None where a seed diverged."""
    numbers = np.array([np.nan if value is None else value for value in values], float)
    if not np.all(np.isfinite(numbers)):
        return None, None
    return float(np.mean(numbers)), float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """At most ``most`` of the indices 0 to ``count - 1``, evenly spaced, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))
