"""A cache of decoded images, because decoding takes seconds, and mapping a file no time.

Each dataset has one file in the user's cache folder, checksummed and memory-mapped (:mod:`pfedbred.io.tensors`). It
records the source files it was made from, and is replaced when they change. A cache that cannot be read or written
costs time and one line of warning, but is never an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pfedbred.data.pool import Pool
from pfedbred.data.sources.hub import HubDataset, cache_folder
from pfedbred.errors import SettingError, file_name, printable
from pfedbred.io import tensors
from pfedbred.io.folders import ensure_folder
from pfedbred.io.shapes import COUNT, Maybe, expect

_KIND = tensors.Kind("pfedbred pool 1", "cache of decoded images", "delete it, and it will be rebuilt")
_NAMES = {name: Maybe([str]) for name in ("owners", "labels", "features")}
_FACTS = {"origin": [str], "classes": COUNT, "raw": bool, **_NAMES}


def cached(source: HubDataset, paths: Sequence[Path], read: Callable[[], Pool], columns: Sequence[str] = ()) -> Pool:
    """What ``read()`` returns, from the cache if these files (or the download) have been read before.

    ``columns`` are the columns read, if the source does not determine them.

    The pool's normalisation must depend on its samples alone, not on which of them are for training: its result is
    cached too, because it would take longer than everything else.
    """
    path = cache_folder() / "pools" / f"{file_name(source.folder)}.safetensors"
    origin = [*_fingerprint(source, paths), *(f"column {each}" for each in columns)]
    problem = ""
    try:
        found = _load(path, source.name, origin)
        if found:
            return found
    except (SettingError, KeyError) as error:
        problem = f"{error}; the images were decoded again"
    pool = read()
    assert pool.normalise
    shift, scale = pool.normalise(pool.x, np.arange(len(pool.y)))
    try:
        _save(path, origin, pool, shift, scale)
    except (SettingError, OSError) as error:
        problem = f"{error}; the images will be decoded again next time"
    if problem:
        print(f"pfedbred: warning: {printable(problem)}", file=sys.stderr)
    return _with_normalisation(pool, shift, scale)


def _fingerprint(source: HubDataset, paths: Sequence[Path]) -> list[str]:
    """A fingerprint that changes when the source does."""
    if not paths:
        return [f"{source.address} {source.configuration or source.revision}"]
    found = [(path.resolve(), path.stat()) for path in paths]
    return [f"{path} {facts.st_size} {facts.st_mtime_ns}" for path, facts in found]


def _load(path: Path, name: str, origin: list[str]) -> Pool | None:
    """The cached pool; None if there is none from this origin."""
    if not path.exists():
        return None
    facts, arrays = tensors.load(_KIND, path)
    facts = {"labels": None, "features": None, **facts}  # missing in older files
    expect(facts, _FACTS, path)
    if facts["origin"] != origin:
        return None
    owners, labels, features = (None if facts[each] is None else tuple(facts[each]) for each in _NAMES)
    pool = Pool(
        name,
        arrays["x"],
        arrays["y"],
        facts["classes"],
        owners=owners,
        labels=labels,
        features=features,
        raw=facts["raw"],
        owner=arrays.get("owner"),
        is_test=arrays.get("is_test"),
    )
    return _with_normalisation(pool, arrays["shift"], arrays["scale"])


def _save(path: Path, origin: list[str], pool: Pool, shift: np.ndarray, scale: np.ndarray) -> None:
    ensure_folder(path.parent)
    names = {each: getattr(pool, each) for each in _NAMES}
    facts = {"origin": origin, "classes": pool.classes, "raw": pool.raw, **names}
    arrays = {"x": pool.x, "y": pool.y, "shift": np.asarray(shift), "scale": np.asarray(scale)}
    optional = {"owner": pool.owner, "is_test": pool.is_test}
    arrays |= {name: array for name, array in optional.items() if array is not None}
    tensors.save(_KIND, path, facts, arrays)


def _with_normalisation(pool: Pool, shift: np.ndarray, scale: np.ndarray) -> Pool:
    return replace(pool, normalise=lambda x, train: (shift, scale))
