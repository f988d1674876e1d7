"""Settings that change from round to round: a schedule instead of a number.

    alpha: {schedule: cosine, start: 0.1, end: 0.001, warmup: 5}

A schedule becomes a table of its value in every round, which compiled programs read as data, so nothing is recompiled.
The shapes are optax's schedules.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

import numpy as np
import optax

from pfedbred.errors import SettingError, nearest
from pfedbred.settings.values import Count, NonNegative, Positive, check

Schedule: TypeAlias = Callable[[Any], Any]
"""The value in a round, counted from 0."""


def cosine(rounds: int, *, start: Positive, end: NonNegative = 0.0) -> Schedule:
    """From start towards end along half a cosine; the round after the last would reach end."""
    return optax.cosine_decay_schedule(start, rounds, alpha=end / start)


def linear(rounds: int, *, start: NonNegative, end: NonNegative = 0.0) -> Schedule:
    """From start towards end in equal steps."""
    return optax.linear_schedule(start, end, rounds)


def exponential(rounds: int, *, start: Positive, rate: Positive, every: Count = 1) -> Schedule:
    """start * rate^(round / every)."""
    return optax.exponential_decay(start, every, rate)


def steps(rounds: int, *, start: Positive, at: list[int], factor: Positive = 0.1) -> Schedule:
    """start, multiplied by factor at each round in ``at``."""
    return optax.piecewise_constant_schedule(start, dict.fromkeys(at, factor))


def constant(rounds: int, *, start: Positive) -> Schedule:
    """The same in every round: for a warm-up without decay."""
    return optax.constant_schedule(start)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "cosine": cosine,
    "exponential": exponential,
    "linear": linear,
    "steps": steps,
}
"""Every named schedule. To add one, write a function ``(rounds, *, settings...) -> Schedule`` and a line here."""


_WARMUP = "warmup"  # of every schedule


def settings(kind: str) -> list[str]:
    """The names of a schedule's settings."""
    return [*_declared(kind), _WARMUP]


def may_vary(annotation: Any) -> bool:
    """Whether a setting of this type can have a schedule, as numbers that compiled programs read as data can."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    options = typing.get_args(annotation) if union else (annotation,)
    numbers = [typing.get_args(each) for each in options if typing.get_origin(each) is Annotated]
    return any(kind is float and not getattr(rule, "builds", False) for kind, rule, *_ in numbers)


def is_schedule(value: Any) -> bool:
    """Whether a setting's value is a schedule."""
    return isinstance(value, Mapping) or callable(value)


def spans_all_rounds(value: Any) -> bool:
    """Whether a setting's value in a round depends on the number of rounds."""
    return isinstance(value, Mapping) and value.get("schedule") in ("cosine", "linear")


def check_schedule(name: str, value: Any, annotation: Any) -> Any:
    """The schedule for the setting ``name``, its own settings checked."""
    if not may_vary(annotation):
        raise SettingError(f"{name} cannot have a schedule: it decides how the program is built")
    if callable(value):
        return value
    if any(":" in str(each) and value[each] is None for each in value):
        written = ", ".join(map(str, value))
        raise SettingError(
            f"YAML needs a space after each colon: {{schedule: cosine, start: 0.1}}, not {name}={{{written}}}"
        )
    if "schedule" not in value:
        raise SettingError(f"a schedule is given as {{schedule: cosine, start: 0.1}}, not {name}: {dict(value)!r}")
    kind = value["schedule"]
    if kind not in SCHEDULES:
        raise SettingError(f"unknown schedule {kind!r} of {name}{nearest(str(kind), SCHEDULES)}")
    known = {**_declared(kind), _WARMUP: Count}
    for each in value:
        if each != "schedule" and each not in known:
            raise SettingError(f"the schedule {kind} of {name} has no setting {each!r}{nearest(each, known)}")
    checked = {each: _check(f"{name}'s {each}", value[each], known[each]) for each in value if each != "schedule"}
    parameters = inspect.signature(SCHEDULES[kind]).parameters
    for each in _declared(kind):
        if each not in checked and parameters[each].default is inspect.Parameter.empty:
            raise SettingError(f"the schedule {kind} of {name} needs {each}")
    return {"schedule": kind, **checked}


def _check(name: str, value: Any, annotation: Any) -> Any:
    if typing.get_origin(annotation) is list:
        if not isinstance(value, list) or not all(type(each) is int and each > 0 for each in value):
            raise SettingError(f"{name} must be a list of rounds, such as [50, 75], not {value!r}")
        return value
    return check(name, value, annotation)


def _declared(kind: str) -> dict[str, Any]:
    parameters = inspect.signature(SCHEDULES[kind], eval_str=True).parameters
    return {name: each.annotation for name, each in parameters.items() if each.kind is inspect.Parameter.KEYWORD_ONLY}


def table(name: str, value: Any, rounds: int, annotation: Any) -> np.ndarray:
    """The setting's value in every round."""
    if callable(value):
        numbers = np.array([float(value(round_)) for round_ in range(rounds)])
    else:
        given = {each: setting for each, setting in value.items() if each not in ("schedule", _WARMUP)}
        warmup = value.get(_WARMUP, 0)
        schedule = SCHEDULES[value["schedule"]](max(rounds - warmup, 1), **given)
        # The warm-up approaches the first value in equal steps; the schedule itself starts after it.
        rising = np.minimum(1.0, (np.arange(rounds) + 1) / (warmup + 1))
        numbers = rising * np.asarray(schedule(np.maximum(np.arange(rounds) - warmup, 0)), float)
    for round_, number in enumerate(numbers):
        check(f"{name} in round {round_ + 1}", float(number), annotation)
    return numbers
