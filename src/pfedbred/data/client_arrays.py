"""A federation from arrays, one pair of samples and labels per client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pfedbred.data.federation import Arrays, Federation, Split, check, offsets_of
from pfedbred.data.labels import kind_of, read_labels, stored
from pfedbred.data.scaling import to_unit_interval
from pfedbred.errors import SettingError


def from_clients(
    train: Sequence[Arrays], test: Sequence[Arrays], *, name: str = "custom", task: str | None = None
) -> Federation:
    """A federation from one pair (x, y) of training samples and one of test samples per client.

    Labels are whole numbers from 0, unless the ``task`` needs others: any numbers for regression, a row of zeros and
    ones per sample for multi-label. Bytes are divided by 255, as :func:`from_arrays` does.
    """
    kind = kind_of(task)
    if len(train) != len(test) or not train:
        raise SettingError(
            f"need training and test samples of the same clients, got {len(train)} and {len(test)} clients"
        )
    shape = np.shape(train[0][0])[1:]
    for part, least, clients in (("training", 1, train), ("test", 0, test)):
        for i, (x, y) in enumerate(clients):
            if len(x) != len(y) or len(x) < least:
                needs = "; it needs at least one of each" if least else ""
                raise SettingError(f"client {i} has {len(x)} {part} inputs and {len(y)} labels{needs}")
            if (len(y) and np.ndim(y) != (2 if kind == "sets" else 1)) or np.ndim(x) < 2:
                raise SettingError(
                    f"client {i} has inputs of shape {np.shape(x)} and labels of shape {np.shape(y)}; "
                    "expected one row and one label for each sample"
                )
            if np.shape(x)[1:] != shape:
                raise SettingError(f"client {i} has samples of shape {np.shape(x)[1:]}, client 0 of {shape}")
    splits = [_flatten(train), _flatten(test)]
    if not len(splits[1].y):
        splits[1] = splits[1]._replace(y=splits[0].y[:0])
    y = np.concatenate([split.y for split in splits])
    if kind == "classes" and (not np.issubdtype(y.dtype, np.integer) or y.min() < 0):
        other = "; for other numbers, the task is regression" if y.dtype.kind == "f" else ""
        raise SettingError(f"labels must be whole numbers from 0{other}")
    classes = int(y.max()) + 1 if kind == "classes" else read_labels(y, task, name).classes
    check_resolution(splits[0].x, name)
    splits = [split._replace(y=stored(split.y, kind)) for split in splits]
    in_bytes = [split.x.dtype == np.uint8 for split in splits if len(split.y)]
    if len(set(in_bytes)) > 1:
        raise SettingError(f"{name}: training inputs are {splits[0].x.dtype}, test inputs are {splits[1].x.dtype}")
    shift, scale = (np.asarray(each, np.float32) for each in to_unit_interval()) if in_bytes[0] else (None, None)
    federation = Federation(name, splits[0], splits[1], classes, shift, scale, task=task or "classification")
    check(federation)
    return federation


def check_resolution(x: np.ndarray, where: str) -> None:
    """Rejects a feature that varies too little around its values for the 32-bit numbers of a device."""
    if x.dtype.kind not in "iuf" or x.dtype.itemsize <= 4 or x.ndim != 2 or not (len(x) and np.isfinite(x).all()):
        return
    values = x.astype(np.float64)
    spread, size = np.ptp(values, axis=0), np.abs(values).max(axis=0)
    fine = np.flatnonzero((spread > 0) & (spread < 1e-4 * size))
    if len(fine):
        raise SettingError(
            f"{where}: feature {fine[0]} varies by {spread[fine[0]]:g} around {values[0, fine[0]]:g}, too little "
            "for 32-bit numbers to resolve: subtract an offset from it"
        )


def _flatten(clients: Sequence[Arrays]) -> Split:
    filled = [(np.asarray(x), np.asarray(y)) for x, y in clients if len(y)]
    if not filled:
        return Split(np.zeros((0, *np.shape(clients[0][0])[1:])), np.zeros(0, np.int32), offsets_of([0] * len(clients)))
    x, y = (np.concatenate(parts) for parts in zip(*filled, strict=True))
    if x.dtype.kind not in "biuf":
        raise SettingError(f"inputs must be numbers, not {x.dtype}; use from_arrays for texts")
    if x.dtype.kind in "iu" and x.dtype.itemsize > 4:
        if len(x) and np.abs(x.astype(float)).max() >= 2**31:
            raise SettingError("whole-number inputs must be below 2**31: scale them, or convert them to floating point")
        x = x.astype(np.int32)
    return Split(x, y, offsets_of([len(y) for _, y in clients]))
