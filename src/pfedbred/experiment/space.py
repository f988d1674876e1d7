"""The settings that a sweep tries: values, or ranges to draw from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pfedbred.errors import SettingError

_MOST_VALUES = 10_000


class Range(NamedTuple):
    """All numbers from ``low`` to ``high``, drawn uniformly; with ``log``, uniformly in their logarithm."""

    low: float
    high: float
    log: bool = False

    def at(self, place: np.ndarray) -> np.ndarray:
        """The number at each place from 0, the low end, to 1."""
        if self.log:
            return np.exp(math.log(self.low) + place * (math.log(self.high) - math.log(self.low)))
        return self.low + place * (self.high - self.low)


Space = Mapping[str, Sequence[float] | Range]
"""What to try of each setting."""


def parse_space(texts: Sequence[str]) -> dict[str, Sequence[float] | Range]:
    """``eta=0.01:0.5:8`` is eight values, ``eta=0.01,0.1`` two, and ``eta=0:0.5`` or ``lam=log:0.1:100`` a range."""
    space: dict[str, Sequence[float] | Range] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        try:
            if not equals or not name or name in space:
                raise ValueError
            space[name] = _values(values)
        except (ValueError, OverflowError):
            if equals and name and name not in space and ":" not in values:
                raise SettingError(f"--grid {name} takes numbers, not {values!r}") from None
            raise SettingError(
                "--grid takes NAME=FIRST:LAST:COUNT, NAME=A,B,C, or a range, NAME=LOW:HIGH or NAME=log:LOW:HIGH, "
                f"each name once, not {text!r}"
            ) from None
    return space


def space_texts(space: Space) -> list[str]:
    """The texts that :func:`parse_space` reads as this space, the same ones however it was written."""
    return [f"{name}={_text(values)}" for name, values in space.items()]


def _text(values: Sequence[float] | Range) -> str:
    if isinstance(values, Range):
        return f"{'log:' if values.log else ''}{_number(values.low)}:{_number(values.high)}"
    listed = [float(each) for each in values]
    if len(listed) > 3 and np.array_equal(np.linspace(listed[0], listed[-1], len(listed)), listed):
        return f"{_number(listed[0])}:{_number(listed[-1])}:{len(listed)}"
    return ",".join(map(_number, listed))


def _number(value: float) -> str:
    """The number as people write it, unless that loses digits."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _values(text: str) -> Sequence[float] | Range:
    parts = text.split(":")
    if parts[0].strip() == "log":
        _, low, high = parts
        return _range(low, high, log=True)
    if len(parts) == 2:
        return _range(parts[0], parts[1], log=False)
    if len(parts) == 3:
        first, last, count = parts
        if not 1 <= int(count) <= _MOST_VALUES:
            raise ValueError
        ends = _finite(first), _finite(last)
        if not math.isfinite(ends[1] - ends[0]):
            raise ValueError
        return [float(each) for each in np.linspace(*ends, int(count))]
    return [_finite(each) for each in text.split(",")]


def _range(first: str, last: str, log: bool) -> Range:
    low, high = _finite(first), _finite(last)
    if not low < high or (log and low <= 0) or not math.isfinite(high - low):
        raise ValueError
    return Range(low, high, log)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def every_point(space: Space) -> np.ndarray:
    """All combinations of values, one row each."""
    values = []
    for name, each in space.items():
        if isinstance(each, Range):
            raise SettingError(f"{name} is a range: give the number of points to draw from it with --random N")
        values.append(each)
    return np.array(list(itertools.product(*values)), float)


def random_points(space: Space, count: int, seed: int) -> np.ndarray:
    """``count`` points, each setting drawn independently from its range or values."""
    places = np.random.default_rng([seed, 2]).random((count, len(space)))
    columns = [
        each.at(place) if isinstance(each, Range) else np.asarray(each, float)[(place * len(each)).astype(int)]
        for each, place in zip(space.values(), places.T, strict=True)
    ]
    return np.stack(columns, axis=1)
