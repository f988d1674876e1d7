"""Labels: the numbers of classes, numbers to predict, or sets of labels; read from arrays, and checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pfedbred import tasks
from pfedbred.errors import SettingError
from pfedbred.tasks import Labels

WORDS: dict[Labels, str] = {"classes": "classes", "numbers": "numbers", "sets": "sets of labels"}
"""What labels are, in words."""

_DTYPES: dict[Labels, type] = {"classes": np.int32, "numbers": np.float32, "sets": np.int8}


class ReadLabels(NamedTuple):
    """Labels as a pool holds them, their names if any, their number, and the default task for them."""

    y: np.ndarray
    names: tuple[str, ...] | None
    classes: int
    task: str


def kind_of(task: str | None) -> Labels:
    """What the labels of a task are; classes by default."""
    return "classes" if task is None else tasks.get(task).labels


def in_words(task: str, classes: int) -> str:
    """What the labels of some data are, in words."""
    return "numbers to predict" if kind_of(task) == "numbers" else f"{classes} labels"


def stored(y: np.ndarray, kind: Labels) -> np.ndarray:
    """Labels in the type in which they are stored."""
    return y.astype(_DTYPES[kind])


def read_labels(y: np.ndarray, task: str | None, where: str) -> ReadLabels:
    """Labels from an array, for this task. Whole-number classes from 0 are kept; others are numbered in order."""
    kind = kind_of(task)
    if kind == "numbers":
        return ReadLabels(_numbers(y, where), None, 1, task or tasks.usual(kind))
    if kind == "sets":
        return ReadLabels(_sets(y, where), None, y.shape[-1], task or tasks.usual(kind))
    y, names, classes = _classes(y, where)
    return ReadLabels(y, names, classes, task or tasks.usual(kind))


def _classes(y: np.ndarray, where: str) -> tuple[np.ndarray, tuple[str, ...] | None, int]:
    if y.dtype.kind == "f" and len(y) and np.all(np.isfinite(y)) and np.all(y == np.round(y)):
        y = y.astype(np.int64)  # whole numbers, as a CSV or a spreadsheet may write them
    if y.dtype.kind in "iu":
        wrong = np.flatnonzero((y < 0) | (y >= 2**31))
        if len(wrong):
            raise SettingError(f"{where}, row {wrong[0]}: label {y[wrong[0]]} is not a whole number from 0")
        return stored(y, "classes"), None, int(y.max()) + 1 if len(y) else 0
    if y.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(y) | (y != np.round(y)))
        raise SettingError(f"{where}, row {wrong[0]}: label {y[wrong[0]]} {FRACTION}")
    number, names = numbered(y, f"{where}: y")
    return stored(number, "classes"), names, len(names)


def whole_number(text: str) -> int | None:
    """The class that a text gives as a number, also as 1.0, which spreadsheets write; None for a name."""
    found = re.fullmatch(r"([0-9]{1,15})(\.0*)?", text)
    return int(found[1]) if found else None


def named_as(text: str, names: Sequence[str]) -> str:
    """The name that equals the text, also as a whole number written differently; the text itself if there is none."""
    if text in names or (number := whole_number(text)) is None:
        return text
    return next((each for each in names if whole_number(each) == number), text)


FRACTION = "is neither a whole number nor a name: to predict numbers, the task is regression (--task regression)"
"""The end of an error about a label that is not a class."""


def _numbers(y: np.ndarray, where: str) -> np.ndarray:
    if y.dtype.kind not in "biuf":
        raise SettingError(f"{where}: the labels of a regression must be numbers, not {y.dtype}")
    wide = y.astype(np.float64)
    wrong = np.flatnonzero(~(np.abs(wide) < 3e38))  # also rejects NaN
    if len(wrong):
        raise SettingError(f"{where}, row {wrong[0]}: label {wide[wrong[0]]:g} is not a finite number")
    spread, size = float(np.ptp(wide)), float(np.abs(wide).max())
    if 0 < spread < 1e-4 * size:
        raise SettingError(
            f"{where}: labels vary by {spread:g} around {wide[0]:g}, too little for 32-bit numbers to resolve: "
            "subtract an offset from them"
        )
    return stored(wide, "numbers")


def _sets(y: np.ndarray, where: str) -> np.ndarray:
    if y.ndim != 2 or not y.shape[1] or y.dtype.kind not in "biuf":
        raise SettingError(f"{where}: sets of labels must be rows of 0 and 1, one per sample, not of shape {y.shape}")
    wrong = np.flatnonzero(((y != 0) & (y != 1)).any(axis=1))
    if len(wrong):
        raise SettingError(f"{where}, row {wrong[0]}: a set of labels is given by 0 and 1, not {y[wrong[0]].tolist()}")
    return stored(y, "sets")


def numbered(values: np.ndarray, what: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Names or numbers as numbers from 0, and the name of each."""
    if values.dtype.kind == "S":
        raise SettingError(f"{what} must be names or numbers, not bytes")
    missing = np.flatnonzero([each is None or each != each or each == "" for each in values.tolist()])
    if len(missing):
        raise SettingError(f"{what} is empty in row {missing[0]}")
    distinct, number = np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)
    return number, tuple(str(each) for each in distinct)


def first_wrong(y: np.ndarray, classes: int, kind: Labels) -> tuple[int, str] | None:
    """The first row with an impossible label, and what is wrong with it; None if all are right."""
    if kind == "numbers":
        wrong = np.flatnonzero(~np.isfinite(y))
        return (int(wrong[0]), f"label {y[wrong[0]]} is not a finite number") if len(wrong) else None
    if kind == "sets":
        wrong = np.flatnonzero(((y != 0) & (y != 1)).any(axis=1))
        return (int(wrong[0]), "a set of labels is given by 0 and 1") if len(wrong) else None
    wrong = np.flatnonzero((y < 0) | (y >= classes))
    return (int(wrong[0]), f"label {y[wrong[0]]} is not one of 0 to {classes - 1}") if len(wrong) else None


def fits(y: np.ndarray, classes: int, kind: Labels) -> bool:
    """Whether an array has the type and shape of labels of this kind."""
    dimensions, types = (2, "iu") if kind == "sets" else (1, "f" if kind == "numbers" else "iu")
    return y.ndim == dimensions and y.dtype.kind in types and (kind != "sets" or y.shape[1] == classes)
