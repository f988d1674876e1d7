"""metrics.jsonl: one line per evaluation.

A line holds the round, the seconds since the start, and for each model and part of the data any metric ``m`` as a list
over seeds, and by client as ``client_m``. Version 2 has the key ``schema``; lines without it are of version 1, which
knew accuracy and loss only and wrote ``left_out`` for ``rejected``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.engine.evaluation import Evaluation, ModelScores, Scores
from pfedbred.engine.history import Point
from pfedbred.engine.screening import Rejections
from pfedbred.errors import SettingError
from pfedbred.io.shapes import COUNT, NUMBER, Each, Maybe, expect
from pfedbred.io.strict import check_regular_file, parse_json, reading
from pfedbred.runs.layout import METRICS

SCHEMA = 2
_CLIENT = "client_"


class MetricsFile:
    """Writes metrics.jsonl, one line at a time: pooled values in full, those of clients with four digits."""

    def __init__(self, folder: Path, keep: int = 0) -> None:
        """Keeps the first ``keep`` bytes of an existing file and appends to them."""
        self._file = (folder / METRICS).open("ab")
        self._file.truncate(keep)

    def write(self, point: Point) -> None:
        """Adds a line, which other processes can read from then on."""
        line: dict[str, Any] = {
            "schema": SCHEMA,
            "round": point.round,
            "seconds": round(point.seconds, 3),
            "global": _model_line(point.scores.global_),
            "personal": _model_line(point.scores.personal),
            "rejected": point.rejections.rejected,
            "skipped": point.rejections.skipped,
            "skipped_in_row": point.rejections.skipped_in_row,
        }
        if point.diagnostics:
            line["diagnostics"] = {name: _numbers(values, None) for name, values in point.diagnostics.items()}
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Waits until all lines are on disk; returns how many bytes they take."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size  # not the position: the file was opened at an end since cut off

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def size_of(folder: Path) -> int:
    """Bytes of the metrics in a folder; 0 if there are none."""
    path = folder / METRICS
    return path.stat().st_size if path.exists() else 0


def _model_line(scores: ModelScores) -> dict[str, Any]:
    return {"train": _scores_line(scores.train), "test": _scores_line(scores.test)}


def _scores_line(scores: Scores) -> dict[str, Any]:
    return {
        **{name: _numbers(values, None) for name, values in scores.values.items()},
        **{f"{_CLIENT}{name}": _numbers(values, 4) for name, values in scores.clients.items()},
    }


def _numbers(values: np.ndarray, digits: int | None) -> Any:
    """Nested lists. JSON has no NaN, so a value that does not exist is null."""
    if values.ndim > 1:
        return [_numbers(each, digits) for each in values]
    numbers = [float(value) if math.isfinite(value) else None for value in values]
    return numbers if digits is None else [value if value is None else round(value, digits) for value in numbers]


def read_points(folder: Path, size: int | None = None) -> list[Point]:
    """The evaluations in the first ``size`` bytes of metrics.jsonl, or in all of it."""
    path = folder / METRICS
    check_regular_file(path)
    with reading(path), path.open("rb") as file:
        text = file.read(size)
    if size is not None and len(text) < size:
        raise SettingError(f"{path} is shorter than its checkpoint says: the run cannot be resumed from it")
    return [_point(parse_json(line, path), path) for line in text.splitlines()]


_PART = {"accuracy": [Maybe(NUMBER)], "loss": [Maybe(NUMBER)]}
_LINE = {
    "round": COUNT,
    "seconds": NUMBER,
    "global": {"train": _PART, "test": _PART},
    "personal": {"train": _PART, "test": _PART},
    "rejected": [Each(COUNT)],
    "skipped": [COUNT],
    "skipped_in_row": [COUNT],
}


def _point(line: Any, path: Path) -> Point:
    expect(line, dict, path)
    if "schema" not in line and "left_out" in line:
        line = {**line, "rejected": line["left_out"]}
    elif line.get("schema", SCHEMA) != SCHEMA:
        raise SettingError(f"{path} was written by another version: its schema is {line['schema']!r}, not {SCHEMA}")
    expect(line, _LINE, path)
    expect(line.get("diagnostics", {}), Each([Maybe(NUMBER)]), path, "'diagnostics'")

    def model(name: str) -> ModelScores:
        return ModelScores(*(_scores(line[name][part], path) for part in ("train", "test")))

    diagnostics = {name: _array(values, path) for name, values in line.get("diagnostics", {}).items()}
    rejections = Rejections(line["rejected"], line["skipped"], line["skipped_in_row"])
    scores = Evaluation(model("global"), model("personal"))
    return Point(line["round"], line["seconds"], scores, rejections, diagnostics)


def _scores(part: Mapping[str, Any], path: Path) -> Scores:
    values, clients = {}, {}
    for name, entry in part.items():
        if isinstance(entry, list) and entry and isinstance(entry[0], list):
            expect(entry, [[Maybe(NUMBER)]], path, repr(name))
            clients[name.removeprefix(_CLIENT)] = _array(entry, path)
        else:
            expect(entry, [Maybe(NUMBER)], path, repr(name))
            values[name] = _array(entry, path)
    for name in ("accuracy", "loss"):
        if name not in clients:
            raise SettingError(f"{path} is damaged: it has no {_CLIENT}{name}")
    return Scores(values, clients)


def _array(values: list[Any], path: Path) -> np.ndarray:
    """Numbers by seed, or by seed and client, as many for each seed; NaN where there is none."""
    rows = [each if isinstance(each, list) else [each] for each in values]
    if len({len(row) for row in rows}) > 1:
        raise SettingError(f"{path} is damaged: its seeds have different numbers of clients")
    array = np.array(rows, float)
    return array if values and isinstance(values[0], list) else array.reshape(-1)
