"""PFLlib's files of a federation: ``FOLDER/train/0.npz`` and ``FOLDER/test/0.npz`` for client 0, and so on.

PFLlib writes one pickled dict ``data`` of the arrays x and y into each, which is read without unpickling; separate
arrays x and y are read too. Images are channels first there, and channels last here; axes of length 1 are dropped.

Reference: Zhang et al., "PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated Learning Library and
Benchmark", JMLR 2025.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from pfedbred.data.client_arrays import from_clients
from pfedbred.data.federation import Arrays, Federation
from pfedbred.data.scaling import to_unit_interval
from pfedbred.data.sources.user_files import compact
from pfedbred.errors import SettingError
from pfedbred.io.npy import Npz
from pfedbred.io.pickled_arrays import read_pickled

_EXPECTED = "expected PFLlib's files train/0.npz and test/0.npz, one of each for every client"
_CONVERT = "if you trust the file, write its arrays as np.savez(file, x=..., y=...)"


def pfllib_federation(folder: Path) -> Federation:
    """The clients of the folder, by the numbers of their files."""
    files = {part: _numbered(folder / part) for part in ("train", "test")}
    if not files["train"]:
        raise SettingError(f"{folder} holds no clients: {_EXPECTED}")
    alone = files["train"].keys() ^ files["test"].keys()
    if alone:
        lacking = "test" if min(alone) in files["train"] else "train"
        raise SettingError(f"{folder / lacking} has no {min(alone)}.npz: {_EXPECTED}")
    numbers = sorted(files["train"])
    train, test = ([_client(files[part][number]) for number in numbers] for part in ("train", "test"))
    names, about = tuple(map(str, numbers)), {"split": "by PFLlib"}
    federation = replace(from_clients(train, test, name=folder.name), names=names, about=about)
    if federation.train.x.dtype != np.uint8:
        return federation
    shift, scale = (np.asarray(each, np.float32) for each in to_unit_interval(federation.train.x, np.arange(0)))
    return replace(federation, shift=shift, scale=scale)


def _numbered(folder: Path) -> dict[int, Path]:
    return {int(path.stem): path for path in folder.glob("*.npz") if path.stem.isdecimal() and len(path.stem) < 10}


def _client(path: Path) -> Arrays:
    """Inputs and labels in one file."""
    with Npz(path) as arrays:
        if {"x", "y"} <= set(arrays.names):
            found = {name: arrays[name] for name in ("x", "y")}
        elif "data" in arrays.names:
            try:
                found = read_pickled(arrays.objects("data"), f"'data' in {path}")
            except SettingError as problem:
                raise SettingError(f"{problem}; {_CONVERT}") from None
        else:
            raise SettingError(f"{path} has no arrays x and y, and no dict data, only {', '.join(arrays.names)}")
    if not {"x", "y"} <= found.keys():
        raise SettingError(f"'data' in {path} has no x and y, only {', '.join(found)}")
    x, y = _channels_last(compact(found["x"], f"{path}")), found["y"]
    if y.dtype.kind == "f" and np.all(y == np.round(y)) and np.all(np.abs(y) < 2**31):
        y = y.astype(np.int32)
    if y.dtype.kind not in "iu" or np.any((y < 0) | (y >= 2**31)):
        raise SettingError(f"{path}: labels must be whole numbers from 0")
    return x, y.astype(np.int32)


def _channels_last(x: np.ndarray) -> np.ndarray:
    """Images (channels, height, width) with channels last, unless they are already; axes of length 1 are dropped."""
    if x.ndim == 4 and (x.shape[1] in (1, 3) or x.shape[3] not in (1, 3)):
        x = np.moveaxis(x, 1, 3)
    kept = tuple(size for size in x.shape[1:] if size != 1)
    return np.ascontiguousarray(x).reshape(len(x), *(kept or (1,)))
