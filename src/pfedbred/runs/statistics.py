"""Statistics over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def mean_and_std(values: Sequence[float | None] | np.ndarray) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation, which is 0 for a single seed; None where a seed diverged."""
    numbers = np.array([np.nan if value is None else value for value in values], float)
    if not np.all(np.isfinite(numbers)):
        return None, None
    return float(np.mean(numbers)), float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0
