"""The client of each row of a table: names of any kind as numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from pfedbred.errors import SettingError

ALONE = "all"
"""The name of the only client if rows have no clients."""

UNKNOWN = -1
"""The number of a client that was not in training."""


def read_clients(given: Any, rows: int) -> list[Hashable]:
    """The name of each row's client, if there is one for each row."""
    if isinstance(given, str | bytes) or not hasattr(given, "__len__"):
        raise SettingError(f"clients must have one name for each row, not {given!r}")
    names = given.tolist() if hasattr(given, "tolist") else list(given)
    if len(names) != rows:
        raise SettingError(f"clients has {len(names)} names, but X has {rows} rows")
    for row, name in enumerate(names):
        if not isinstance(name, Hashable):
            raise SettingError(f"clients must be names such as texts or numbers, not {name!r} in row {row}")
    return names


def distinct(names: Sequence[Hashable]) -> list[Any]:
    """The names of all clients, sorted if possible. A gap is not a name."""
    for row, name in enumerate(names):
        if name is None or name != name:
            raise SettingError(f"the client of row {row} is missing")
    found: set[Any] = set(names)
    try:
        return sorted(found)
    except TypeError:  # names of several kinds: as they first appear
        return list(dict.fromkeys(names))


def numbers_of(names: Sequence[Hashable], known: Sequence[Any]) -> np.ndarray:
    """The number of each row's client among the known ones; :data:`UNKNOWN` for any other."""
    number = {name: place for place, name in enumerate(known)}
    return np.array([number.get(name, UNKNOWN) for name in names], np.int64)
