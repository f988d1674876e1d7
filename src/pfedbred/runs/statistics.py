"""Statistics over seeds, and places to sample a long series at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def mean_and_std(values: Sequence[float | None] | np.ndarray) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation, which is 0 for a single seed; None where a seed diverged."""
    numbers = np.array([np.nan if value is None else value for value in values], float)
    if not np.all(np.isfinite(numbers)):
        return None, None
    return float(np.mean(numbers)), float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """At most ``most`` of the indices 0 to ``count - 1``, evenly spaced, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))
