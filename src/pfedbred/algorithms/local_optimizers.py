"""Optimizers for local steps: optax's, by name with their settings, as objects, or as functions of the step size."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, TypeAlias

import optax
import optax.contrib

from pfedbred.errors import SettingError, nearest
from pfedbred.settings.signatures import parse_call
from pfedbred.settings.values import LARGEST_FLOAT, parse_number

Optimizer: TypeAlias = Callable[[Any], optax.GradientTransformation]
"""Builds an optimizer from a method's step size, which may be traced."""

OptimizerLike: TypeAlias = str | dict[str, Any] | optax.GradientTransformation | Callable[..., Any]

_COMMON = ("clip", "weight_decay")
_BY_METHOD = "learning_rate"  # the step size is the method's own
_NO_NUMBERS = ("mask", "dtype", "optimizer", "dimension_numbers")  # in the names of parameters that may be None
_UNFIT = ("lbfgs", "sophia", "noisy_sgd")  # two need the loss; the last draws the same noise for every client


def get(given: OptimizerLike) -> Optimizer | None:
    """The optimizer of local steps; None for plain gradient descent.

    Args:
      given: ``sgd(momentum=0.9)``, ``{"name": "adam", "b1": 0.8}``, an optax optimizer, or a function that builds one
        from the step size. Besides its own settings every name takes ``clip``, the largest norm of a gradient, and
        ``weight_decay``: added to the gradient (as in PyTorch's SGD), or decoupled in optimizers with their own weight
        decay, such as ``adamw``.
    """
    if isinstance(given, optax.GradientTransformation):
        return lambda alpha: given
    if callable(given):
        return given
    name, chosen = parse(given)
    if name == "sgd" and not chosen:
        return None
    build = builders()[name]
    own = {key: value for key, value in chosen.items() if key not in _COMMON or key in _own(name)}
    before = []
    if "clip" in chosen:
        before.append(optax.clip_by_global_norm(chosen["clip"]))
    if "weight_decay" in chosen and "weight_decay" not in own:
        before.append(optax.add_decayed_weights(chosen["weight_decay"]))
    return lambda alpha: optax.chain(*before, build(alpha, **own))


def parse(given: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the settings, checked."""
    if isinstance(given, str):
        name, values = parse_call("local_optimizer", given)
        chosen = dict(map(_assignment, values))
    else:
        chosen = dict(given)
        name = chosen.pop("name", None)
    if not isinstance(name, str) or name not in names():
        raise SettingError(f"unknown local_optimizer {name!r}{nearest(str(name), names())}")
    known = settings(name)
    for key, value in chosen.items():
        if key not in known:
            raise SettingError(f"{name} has no setting {key!r}{nearest(key, known)}")
        if not isinstance(value, bool) and not (isinstance(value, int | float) and abs(value) < LARGEST_FLOAT):
            raise SettingError(f"{name}'s {key} must be a number, true or false, not {value!r}")
        if key in _COMMON and not value >= 0:
            raise SettingError(f"{name}'s {key} must be a number >= 0, not {value!r}")
    return name, chosen


def _assignment(text: str) -> tuple[str, Any]:
    """The name and the value of ``momentum=0.9``; what is neither a number nor true or false stays text."""
    name, _, value = (part.strip() for part in text.partition("="))
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    number = parse_number(value)
    return name, value if number is None else number


def text(given: OptimizerLike) -> Any:
    """A name with its settings as one text, as written in files and on the command line; objects unchanged."""
    if not isinstance(given, str | Mapping):
        return given
    name, chosen = parse(given)
    inside = ", ".join(f"{key}={value}" for key, value in chosen.items())
    return f"{name}({inside})" if inside else name


def names() -> list[str]:
    """The optimizers of optax and optax.contrib that need nothing but a step size."""
    return list(builders())


def settings(name: str) -> list[str]:
    """The settings of the optimizer of this name: its own, and those that every optimizer has."""
    return [*_own(name), *(each for each in _COMMON if each not in _own(name))]


@functools.cache
def builders() -> dict[str, Callable[..., Any]]:
    """Optimizers by name. In optax.contrib, an optional step size is a factor of the one that the optimizer finds."""
    found = {name: build for name, build in vars(optax.contrib).items() if _required(build) == [_BY_METHOD]}
    found |= {name: build for name, build in vars(optax).items() if _required(build) in ([_BY_METHOD], [])}
    hidden = ("_", "scale_by_")  # a transform is only a part of an optimizer
    return {name: found[name] for name in sorted(found) if not name.startswith(hidden) and name not in _UNFIT}


def _required(candidate: Any) -> list[str] | None:
    """The parameters without a default; None unless it is a function with a step size."""
    if not isinstance(candidate, FunctionType | functools.partial):
        return None
    parameters = inspect.signature(candidate).parameters
    if _BY_METHOD not in parameters:
        return None
    return [each.name for each in parameters.values() if each.default is inspect.Parameter.empty]


def _own(name: str) -> list[str]:
    """Those of its parameters that are numbers, true or false."""
    return [
        each.name
        for each in inspect.signature(builders()[name]).parameters.values()
        if each.name != _BY_METHOD
        and isinstance(each.default, bool | int | float | None)
        and not any(part in each.name for part in _NO_NUMBERS)
    ]
