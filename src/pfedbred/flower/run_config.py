"""The run config: what a Flower app says of the run, as keys with plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedbred import settings as settings_
from pfedbred.errors import SettingError, nearest
from pfedbred.settings.assignments import assignment

_OF_EXPERIMENT = (
    "algorithm",
    "model",
    "rounds",
    "seed",
    "participation",
    "aggregated",
    "select",
    "weights",
    "aggregate",
    "outliers",
    "batch-size",
    "eval-every",
)


@dataclass(frozen=True)
class Options:
    """What the run config says, beside the experiment.

    Attributes:
      out: the run folder, on the server's machine.
      clients: how many there will be; None for those that are there at the start.
      min_clients: how many must be there for a round to begin.
      deadline: seconds that clients have for an answer.
      classes: number of labels; 0 for what the clients say.
      labels: their names, if clients are to number them alike.
    """

    out: Path
    clients: int | None
    min_clients: int
    deadline: float
    classes: int
    labels: list[str] | None


def understood(config: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """The run config: options of the server, and fields of the experiment. "" stands for what is not given, and so
    does 0 where there is no other sense in it."""
    own = ("out", "clients", "min-clients", "deadline", "classes", "labels", "settings")
    for name in config:
        if name not in (*own, *_OF_EXPERIMENT):
            raise SettingError(f"the run config has an unknown key {name!r}{nearest(name, (*own, *_OF_EXPERIMENT))}")
    given = {
        name: value
        for name, value in config.items()
        if value != "" and (name not in ("clients", "aggregated", "classes") or value != 0)
    }

    def number(name: str, hint: Any, default: Any) -> Any:
        return settings_.check(name, given[name], hint) if name in given else default

    if not isinstance(given.get("out"), str):
        raise SettingError("the run config needs out=..., the folder for the run on the server's machine")
    clients = number("clients", settings_.Count, None)
    labels = [each.strip() for each in str(given["labels"]).split(",")] if "labels" in given else None
    if labels and (len(set(labels)) != len(labels) or given.get("classes", len(labels)) != len(labels)):
        raise SettingError(f"labels must be different names, as many as classes says, not {given['labels']!r}")
    if "select" in given:
        given["select"] = str(given["select"])  # a single client's number is no name of a way to choose
    options = Options(
        Path(given["out"]).expanduser(),
        clients,
        number("min-clients", settings_.Count, clients or 2),
        number("deadline", settings_.Positive, 600.0),
        number("classes", settings_.Count, len(labels) if labels else 0),
        labels,
    )
    if clients is not None and options.min_clients > clients:
        raise SettingError(f"min-clients must be at most clients, {clients}, not {options.min_clients}")
    fields = {name.replace("-", "_"): given[name] for name in _OF_EXPERIMENT if name in given}
    fields["settings"] = dict(map(assignment, str(given.get("settings", "")).split()))
    return options, fields
