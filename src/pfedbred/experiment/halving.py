"""Successive halving: at a few rounds, the worse half of the points that reached them stops.

The rounds are R/2, R/4, ..., at least one evaluation apart. Points arrive there in their own time, as places in the
batch become free, so a point is compared with those that arrived before it (Li et al. 2020, "A System for
Massively Parallel Hyperparameter Tuning").

Optuna's SuccessiveHalvingPruner is the same idea for the trials of a study. But Optuna is an optional dependency, and a
sweep over a grid or random points has no study.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_LEAST = 1 / 16  # fraction of the rounds before which no point stops


def rungs(rounds: Sequence[int]) -> list[int]:
    """The evaluations, by their number, after which points may stop, given the rounds of all evaluations."""
    if not rounds:
        return []
    last, found, part = rounds[-1], set[int](), 0.5
    while part >= _LEAST:
        found.add(next(i for i, each in enumerate(rounds) if each >= part * last))
        part /= 2
    return sorted(found - {len(rounds) - 1})


class Halving:
    """The points' scores at the evaluations after which they may stop; without rounds, there are none."""

    def __init__(self, rounds: Sequence[int]) -> None:
        self._scores: dict[int, dict[int, float]] = {rung: {} for rung in rungs(rounds)}

    def judges(self, evaluation: int) -> bool:
        """Whether points may stop after this evaluation."""
        return evaluation in self._scores

    def note(self, evaluation: int, point: int, score: float) -> None:
        """Notes the score of a point at this evaluation: higher is better, NaN if it diverged."""
        if evaluation in self._scores:
            self._scores[evaluation][point] = -math.inf if math.isnan(score) else float(score)

    def stops(self, evaluation: int, point: int) -> bool:
        """Whether a point is not in the better half of those noted here so far; ties go to the earlier point."""
        here = self._scores.get(evaluation, {})
        if point not in here:
            return False
        if here[point] == -math.inf:
            return True
        better = sum((-score, other) < (-here[point], point) for other, score in here.items())
        return better >= math.ceil(len(here) / 2)
