"""Aggregation rules: how a server combines a round's uploads into one, the weighted mean or a robust rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pfedbred.aggregation.base import Gathered, Rule
from pfedbred.aggregation.clipped import clipped
from pfedbred.aggregation.krum import krum
from pfedbred.aggregation.mean import mean, weighted_mean
from pfedbred.aggregation.median import median
from pfedbred.aggregation.trimmed import trimmed
from pfedbred.errors import SettingError, nearest
from pfedbred.settings.signatures import building, declared, parameters, parse_call, resolve_call

__all__ = ["RULES", "Gathered", "Rule", "builder", "get", "weighted_mean"]

RULES: dict[str, Callable[..., Rule]] = {
    "mean": mean,
    "median": median,
    "trimmed": trimmed,
    "clipped": clipped,
    "krum": krum,
}
"""Every named rule. A new one is a function ``(*, settings...) -> Rule``, and a line here."""


def get(rule: str | Callable[..., Any], **defaults: Any) -> Rule:
    """The rule of that name, such as ``krum`` or ``trimmed(0.3)``; or a Rule, or a function that builds one.

    ``defaults`` are settings for a named rule that takes them and is given none in parentheses.
    """
    build, settings = builder(rule, **defaults)
    if build is None:
        return rule  # type: ignore[return-value]
    with building("aggregation rule", rule):
        made = build(**settings)
    if not callable(made):
        raise SettingError(f"a function that builds an aggregation rule must return one, not a {type(made).__name__}")
    return made


def builder(rule: str | Callable[..., Any], **defaults: Any) -> tuple[Callable[..., Rule] | None, dict[str, Any]]:
    """The function that builds the rule and its settings, checked; None if ``rule`` is a Rule itself."""
    if isinstance(rule, str):
        name, values = parse_call("aggregate", rule)
        if name not in RULES:
            raise SettingError(f"unknown aggregation rule {name!r}{nearest(name, RULES)}")
        settings = resolve_call(name, RULES[name], values)
        return RULES[name], settings if values else {key: defaults.get(key, each) for key, each in settings.items()}
    if not callable(rule):
        raise SettingError(f"aggregate must be the name of a rule or a function, not {rule!r}{nearest('', RULES)}")
    if not all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters(rule)):
        return None, {}
    return rule, {key: value for key, value in defaults.items() if key in declared(rule)}
