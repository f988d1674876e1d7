"""The algorithms, one file each, and the table of their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pfedbred import settings as settings_
from pfedbred.algorithm import Algorithm, Task
from pfedbred.algorithms.fedavg import fedavg
from pfedbred.algorithms.fo import fo
from pfedbred.algorithms.mfo import mfo
from pfedbred.algorithms.mg import mg
from pfedbred.algorithms.mg_meta import mg_meta, mg_meta_literal
from pfedbred.algorithms.pfedbred import pfedbred
from pfedbred.algorithms.pfedme import pfedme
from pfedbred.errors import SettingError, nearest

Factory = Callable[..., Algorithm]

ALGORITHMS: dict[str, Factory] = {
    "fedavg": fedavg,
    "fo": fo,
    "mfo": mfo,
    "mg": mg,
    "mg-meta": mg_meta,
    "mg-meta-literal": mg_meta_literal,
    "pfedbred": pfedbred,
    "pfedme": pfedme,
}
"""Every named algorithm. A new one is a function ``(task, *, settings...) -> Algorithm``, and a line here."""


def factory(name: str) -> Factory:
    """The function that builds the algorithm of that name."""
    if name not in ALGORITHMS:
        raise SettingError(f"unknown algorithm {name!r}{nearest(name, ALGORITHMS)}")
    return ALGORITHMS[name]


def make(name: str, task: Task, settings: Mapping[str, Any] | None = None) -> Algorithm:
    """The algorithm of that name, its settings checked."""
    build = factory(name)
    return build(task, **settings_.resolve(build, settings or {}))
