"""Names in experiments: which objects have one, and how names that were added are recorded.

An object that a table names is recorded by that name. The package's own names mean the same in every process; one that
a program has added to a table does not, and is recorded as the object is that it stands for: by its import path, or as
not reproducible.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

from pfedbred import aggregation, algorithms, data, models, tasks
from pfedbred import settings as settings_
from pfedbred.algorithms.pfedbred import pfedbred
from pfedbred.algorithms.wrappers import WRAPPERS
from pfedbred.bregman import means, priors
from pfedbred.data import augmentation
from pfedbred.engine import metrics, selection
from pfedbred.experiment import references
from pfedbred.settings import schedules

_TABLES: dict[str, Mapping[str, Any]] = {
    "aggregate": aggregation.RULES,
    "algorithm": algorithms.ALGORITHMS,
    "augment": augmentation.AUGMENTATIONS,
    "dataset": data.DATASETS,
    "loss": tasks.LOSSES,
    "mean": means.MEANS,
    "metrics": metrics.METRICS,
    "model": models.MODELS,
    "prior": ChainMap(priors.PRIORS, priors.LONG_TAILED),
    "schedule": schedules.SCHEDULES,
    "select": selection.SELECTIONS,
    "split": data.SPLITS,
    "suffix": WRAPPERS,
    "task": tasks.TASKS,
}
"""By option or setting, what its names stand for."""

_OWN = {where: dict(table) for where, table in _TABLES.items()}
"""The same before a program could change it."""

_IN_SETTINGS = ("mean", "prior", "schedule")


def named(value: Any, where: str) -> Any:
    """The name of an object that is in the table of this option or setting; any other value unchanged."""
    if isinstance(value, list):
        return [named(each, where) for each in value]
    return next((name for name, entry in _TABLES.get(where, {}).items() if entry is value), value)


def named_settings(settings: Mapping[str, Any], build: Callable[..., Any]) -> dict[str, Any]:
    """The settings of an algorithm with the names of priors and means that have one.

    A user's own setting called ``mean`` may be something else: its type has to be that of ``pfedbred``'s.
    """
    own, usual = settings_.declared(build), settings_.declared(pfedbred)
    alike = [name for name in settings if name in usual and own[name].annotation == usual[name].annotation]
    return {name: named(value, name) if name in alike else value for name, value in settings.items()}


def recorded(value: Any, where: str) -> Any:
    """The value of an option or a setting as YAML and JSON can hold it, and as every process understands it."""
    if isinstance(value, Mapping):
        return {str(name): recorded(each, name if name in _IN_SETTINGS else "") for name, each in value.items()}
    if isinstance(value, list):
        return [recorded(each, where) for each in value]
    if not isinstance(value, str) or not _was_added(value, where):
        return references.plain(value)
    entry = _TABLES[where].get(value)  # None if the name is only a part of the text, as in name+am
    path = references.import_path(entry) if entry is not None and where != "schedule" else None
    return path or references.marked(value)  # a schedule has settings beside its name, and cannot be given as a path


def _was_added(text: str, where: str) -> bool:
    """Whether a name in a text such as ``fedavg``, ``fedavg+server(yogi)`` or ``trimmed(0.3)`` is not the package's."""
    base, *suffixes = text.split("+") if where == "algorithm" else [text]
    parts = [(where, base), *(("suffix", each) for each in suffixes)]
    used = [(kind, name) for kind, part in parts for name in (part, part.partition("(")[0].strip())]
    return any(name in _TABLES.get(kind, ()) and _TABLES[kind][name] is not _OWN[kind].get(name) for kind, name in used)


def same(before: Any, now: Any, where: str) -> bool:
    """Whether two recorded values of an option or a setting stand for the same.

    Earlier versions recorded an object by the path of its definition, even if a table named it or a package's public
    part had it.
    """
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(same(*each, where) for each in zip(before, now, strict=True))
    if before == now:
        return True
    first, second = (_meant(each, where) for each in (before, now))
    return first is not None and first is second


def _meant(recorded: Any, where: str) -> Any:
    """The object that a recorded name or import path stands for; None if there is none."""
    if not isinstance(recorded, str):
        return None
    if not references.is_reference(recorded):
        return ChainMap(_OWN.get(where, {}), dict(_TABLES.get(where, {}))).get(recorded)
    try:
        return references.load(recorded)
    except Exception:  # whatever the user's module does when it is imported
        return None
