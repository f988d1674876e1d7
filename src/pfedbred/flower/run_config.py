"""The run config: the options of a run in a Flower app, as keys with plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pfedbred import settings as settings_
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment.callbacks import trackers
from pfedbred.experiment.configuration import Experiment, field_names
from pfedbred.flower import wire
from pfedbred.settings.assignments import assignments
from pfedbred.settings.values import Constraint

_YEAR = 365 * 24 * 3600
_AtMostAYear = Constraint(f"a number > 0 and at most {_YEAR} (a year of seconds)", lambda value: 0 < value <= _YEAR)
_Seconds = Annotated[float, _AtMostAYear]


def _key(name: str) -> str:
    return name.replace("_", "-")


_EXPERIMENT_KEYS = {_key(name): name for name in field_names(deployed=True)}
_defaults = {_key(each.name): each.default for each in dataclasses.fields(Experiment)}


def _omitted(name: str) -> Any:
    """The value of an omitted key."""
    return 0 if settings_.is_whole_number(settings_.hints(Experiment)[name]) else ""


DEFAULTS: dict[str, Any] = {
    "out": "",
    **{key: _omitted(name) if _defaults[key] is None else _defaults[key] for key, name in _EXPERIMENT_KEYS.items()},
    "validation": 0.0,
    "settings": "",
    "participation": "sample",
    "clients": 0,
    "min-clients": 2,
    "min-samples": 5,
    "deadline": 600.0,
    "classes": 0,
    "labels": "",
    "track": "",
}
"""Every key of the run config, with its value in a new app. 0 and "" leave it to the experiment or the clients."""

_OMITTED_AT_ZERO = [key for key, value in DEFAULTS.items() if value == 0 and _defaults.get(key) is None]


@dataclass(frozen=True)
class ServerOptions:
    """The options that are not part of the experiment.

    Attributes:
      out: the run folder, on the server's machine.
      clients: number of clients; None for those connected at the start.
      min_clients: clients that must be connected for a round to start.
      min_samples: training samples that a client needs to take part.
      deadline: seconds that clients have for a reply.
      classes: number of labels; 0 for what the clients report.
      labels: their names, to number them alike on all clients; None to leave them unnamed.
      track: the names of trackers.
    """

    out: Path
    clients: int | None
    min_clients: int
    min_samples: int
    deadline: float
    classes: int
    labels: list[str] | None
    track: list[str]

    @property
    def agreeing(self) -> int:
        """How many clients must have data of one kind at the start: no single client decides for the others."""
        return max(self.min_clients, 1 if self.clients == 1 else 2)

    def given(self) -> dict[str, Any]:
        """The options that are fixed once a run has started, for its checkpoints."""
        return {"clients": self.clients, "classes": self.classes, "labels": self.labels}


def parse(config: Mapping[str, Any]) -> tuple[ServerOptions, dict[str, Any]]:
    """The server's options, and the fields of the experiment.

    "" stands for an omitted key, and so does 0 where it has no other meaning.
    """
    if "coverage" in config:
        raise SettingError("coverage is not available on a real federation: predictions stay with the clients")
    if config.get("posterior") == "ensemble":
        raise SettingError("an ensemble is not available on a real federation: personal models stay with their clients")
    for key in config:
        if key not in DEFAULTS:
            raise SettingError(f"the run config has an unknown key {key!r}{nearest(key, DEFAULTS)}")
    given = {key: value for key, value in config.items() if value != "" and (key not in _OMITTED_AT_ZERO or value != 0)}

    def number(key: str, hint: Any, default: Any) -> Any:
        return settings_.check(key, given[key], hint) if key in given else default

    if not isinstance(given.get("out"), str):
        raise SettingError("the run config needs out=..., the run folder on the server's machine")
    clients = number("clients", settings_.Count, None)
    labels = [each.strip() for each in str(given["labels"]).split(",")] if "labels" in given else None
    if labels and (len(set(labels)) != len(labels) or given.get("classes", len(labels)) != len(labels)):
        raise SettingError(f"labels must be distinct names, as many as classes, not {given['labels']!r}")
    if "select" in given:
        given["select"] = str(given["select"])  # TOML reads a single client's number as a number
    options = ServerOptions(
        Path(given["out"]).expanduser(),
        clients,
        number("min-clients", settings_.Count, clients or 2),
        number("min-samples", settings_.Count, DEFAULTS["min-samples"]),
        number("deadline", _Seconds, DEFAULTS["deadline"]),
        number("classes", settings_.Count, len(labels) if labels else 0),
        labels,
        trackers.parse(given.get("track")),
    )
    if clients is not None and options.min_clients > clients:
        raise SettingError(f"min-clients must be at most clients, {clients}, not {options.min_clients}")
    number("validation", settings_.Fraction, None)  # clients are told this before the experiment is built
    fields = {name: given[key] for key, name in _EXPERIMENT_KEYS.items() if key in given}
    fields["settings"] = assignments(str(given.get("settings", "")))
    return options, fields


def check(fields: Mapping[str, Any]) -> None:
    """Rejects what a server would reject of an experiment whatever the data, before anything is started.

    What is on the server's machine, such as the params to start from, is left to the server.
    """
    wire.refuse_objects(fields)
    here = {name: value for name, value in fields.items() if name not in field_names(at_server=True)}
    Experiment(dataset="elsewhere", **here).checked(data_elsewhere=True)
