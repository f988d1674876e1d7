"""The command line that reproduces an experiment, from its record."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pfedbred import algorithms
from pfedbred import settings as settings_
from pfedbred.errors import SettingError
from pfedbred.experiment import references
from pfedbred.experiment.configuration import default_weights, field_names, plain_defaults


def command(experiment: Mapping[str, Any], verb: str = "run", without: Sequence[str] = ()) -> str | None:
    """``pfedbred VERB`` with every option and setting that differs from its default, except the settings ``without``.

    ``experiment`` is an experiment as plain values, as summary.json and sweep.json record it. None if it holds objects
    that only existed in the program that ran it.
    """
    if not references.reproducible(experiment):
        return None
    defaults = {**plain_defaults(), "weights": default_weights(experiment.get("select"))}
    omitted = ("algorithm", "settings", *field_names(result=False))  # handled below, or machine-specific
    parts = [f"pfedbred {verb}", f"--algorithm {shlex.quote(experiment['algorithm'])}"]
    for name, value in experiment.items():
        if name in defaults and name not in omitted and value is not None and value != defaults[name]:
            flag = f"--{name.replace('_', '-')}"
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            parts.append(flag if value is True else f"{flag} {shlex.quote(text)}")
    try:
        known = settings_.declared(algorithms.builder(experiment["algorithm"]))
    except SettingError:
        known = {}  # a custom algorithm: all of its settings are listed
    for name, value in experiment["settings"].items():
        if name not in without and value is not None and (name not in known or known[name].default != value):
            parts.append(f"--set {shlex.quote(f'{name}={value}')}")
    return " ".join(parts)
