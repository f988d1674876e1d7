"""metrics.jsonl: one line per evaluation.

A line holds the round, the seconds since the start, and for each model and part of the data any metric ``m`` as a list
over seeds, and by client as ``client_m``. The part ``validation`` is there if samples are kept for it. Version 2 has
the key ``schema``; lines without it are of version 1, which knew accuracy and loss only and wrote ``left_out`` for
``rejected``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pfedbred.data.federation import Part
from pfedbred.engine.history import Point
from pfedbred.engine.scores import Evaluation, ModelScores, Scores
from pfedbred.engine.screening import Rejections
from pfedbred.errors import SettingError
from pfedbred.io.atomic import WriteError, open_private
from pfedbred.io.shapes import COUNT, FRACTION, NUMBER, Each, Maybe, expect
from pfedbred.io.strict import check_regular_file, finite_or_none, parse_json, reading
from pfedbred.runs.layout import METRICS

SCHEMA = 2
_MODELS = ("global", "personal")
_PARTS: tuple[Part, ...] = ("train", "test")  # of every line; a line may have others
_CLIENT = "client_"
_SPREAD = ("worst_decile", "client_std")  # how the first metric spreads over the clients: not one for each client


class MetricsFile:
    """Writes metrics.jsonl, one line at a time: pooled values in full, those of clients with four digits."""

    def __init__(self, folder: Path, keep: int = 0) -> None:
        """Keeps the first ``keep`` bytes of an existing file and appends to them."""
        self._folder, self._size = folder, keep
        size_of(folder)  # before it is opened
        self._file = open_private(folder / METRICS, "ab")
        self._file.truncate(keep)
        self._digest = digest(folder, keep)

    def write(self, point: Point) -> None:
        """Adds a line, which other processes can read from then on."""
        self.check()
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
        text = json.dumps(line, allow_nan=False).encode() + b"\n"
        self._file.write(text)
        self._file.flush()
        self._digest.update(text)
        self._size += len(text)

    def check(self, content: bool = False) -> None:
        """Raises an error if the file was removed, or its size or (which takes longer to check) its content changed."""
        same = (self._folder / METRICS).stat().st_size == self._size
        if not same or (content and digest(self._folder, self._size).digest() != self._digest.digest()):
            raise WriteError(f"{self._folder / METRICS} has been changed while the run was writing it")

    def sync(self) -> dict[str, Any]:
        """Waits until all lines are on disk; returns what a checkpoint records about them: size and checksum."""
        os.fsync(self._file.fileno())
        self.check()
        return {"metrics": self._size, "metrics_sha256": self._digest.hexdigest()}

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def size_of(folder: Path) -> int:
    """Bytes of the metrics in a folder; 0 if there are none."""
    path = folder / METRICS
    return check_regular_file(path) if path.exists() else 0


def digest(folder: Path, size: int) -> hashlib._Hash:
    """The SHA-256 of the first ``size`` bytes of the metrics in a folder."""
    found = hashlib.sha256()
    check_regular_file(folder / METRICS)
    with reading(folder / METRICS), open(folder / METRICS, "rb") as file:
        while piece := file.read(min(size, 2**20)):
            found.update(piece)
            size -= len(piece)
    return found


def _model_line(scores: ModelScores) -> dict[str, Any]:
    return {part: _scores_line(each) for part, each in scores.parts.items()}


def _scores_line(scores: Scores) -> dict[str, Any]:
    return {
        **{name: _numbers(values, None) for name, values in scores.values.items()},
        **{f"{_CLIENT}{name}": _numbers(values, 4) for name, values in scores.clients.items()},
    }


def _numbers(values: np.ndarray, digits: int | None) -> Any:
    """Nested lists. JSON has no NaN, so a value that does not exist is null."""
    if values.ndim > 1:
        return [_numbers(each, digits) for each in values]
    return [finite_or_none(value if digits is None else _rounded(float(value), digits)) for value in values]


def _rounded(value: float, digits: int) -> float:
    """Rounded to ``digits`` decimals, or a small number to as many significant digits."""
    return round(value, digits) if abs(value) >= 0.1 else float(f"{value:.{digits}g}")


def read_points(folder: Path, size: int | None = None) -> list[Point]:
    """The evaluations in the first ``size`` bytes of metrics.jsonl, or in all of it."""
    path = folder / METRICS
    check_regular_file(path)
    with reading(path), path.open("rb") as file:
        text = file.read(size)
    if size is not None and len(text) < size:
        raise SettingError(f"{path} is shorter than its checkpoint says: the run cannot be resumed from it")
    points = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            where = f"{path}, line {number}"
            points.append(_point(parse_json(line, where), where))
            _check_alike(points[0], points[-1], where)
    return points


def _check_alike(first: Point, point: Point, where: str) -> None:
    """Rejects an evaluation that lacks a metric or seed of the first one, or whose values differ in their clients."""
    found = _by_name(point)
    missing = [name for name in _by_name(first) if name not in found]
    if missing:
        raise SettingError(f"{where} is damaged: it has no {missing[0][-1]!r} of the {missing[0][1]} samples")
    scores = [part for model in point.scores for part in model.parts.values()]
    arrays = [array for each in scores for array in (*each.values.values(), *each.clients.values())]
    seeds = first.scores.global_.test.loss.shape
    clients = {array.shape[1:] for array in arrays if array.ndim > 1}
    if {array.shape[:1] for array in arrays} != {seeds} or len(clients) > 1:
        raise SettingError(f"{where} is damaged: not all of its values have the same seeds and clients")
    for name, values in point.diagnostics.items():
        if values.shape != seeds:
            raise SettingError(f"{where} is damaged: the diagnostic {name!r} has {len(values)} seeds, not {seeds[0]}")


def _by_name(point: Point) -> list[tuple[int, Part, str]]:
    """What a line has: model, part and metric."""
    return [
        (model, part, name)
        for model, scores in enumerate(point.scores)
        for part, each in scores.parts.items()
        for name in each.values
    ]


_PART = {"loss": [Maybe(NUMBER)]}
_LINE = {
    "round": COUNT,
    "seconds": NUMBER,
    **{model: dict.fromkeys(_PARTS, _PART) for model in _MODELS},
    "rejected": [Each(COUNT)],
    "skipped": [COUNT],
    "skipped_in_row": [COUNT],
}


def _point(line: Any, where: str) -> Point:
    expect(line, dict, where)
    if "schema" not in line and "left_out" in line:
        line = {**line, "rejected": line["left_out"]}
    elif line.get("schema", SCHEMA) != SCHEMA:
        raise SettingError(f"{where} was written by another version: its schema is {line['schema']!r}, not {SCHEMA}")
    expect(line, _LINE, where)
    diagnostics = line.get("diagnostics", {})
    expect(diagnostics, Each([Maybe(NUMBER)]), where, "'diagnostics'")
    models = [_model_scores(line[model], where) for model in _MODELS]
    return Point(
        line["round"],
        line["seconds"],
        Evaluation(*models),
        Rejections(line["rejected"], line["skipped"], line["skipped_in_row"]),
        {name: np.array(values, float) for name, values in diagnostics.items()},
    )


def _model_scores(line: Mapping[str, Any], where: str) -> ModelScores:
    parts = [part for part in get_args(Part) if part in line]
    if "validation" in parts:
        expect(line["validation"], _PART, where, "'validation'")
    return ModelScores(**{part: _scores(line[part], where) for part in parts})


def _scores(part: Mapping[str, Any], where: str) -> Scores:
    """Numbers by seed, or by seed and client; NaN where there is none."""
    values, clients = {}, {}
    for name, entry in part.items():
        if isinstance(entry, list) and entry and isinstance(entry[0], list):
            expect(entry, [[Maybe(NUMBER)]], where, repr(name))
            if len({len(row) for row in entry}) > 1:
                raise SettingError(f"{where} is damaged: not all of its values have the same seeds and clients")
            clients[name.removeprefix(_CLIENT)] = np.array(entry, float)
        else:
            expect(entry, [Maybe(FRACTION if name == "accuracy" else NUMBER)], where, repr(name))
            values[name] = np.array(entry, float)
    for name in values:
        if name not in (*clients, *_SPREAD):
            raise SettingError(f"{where} is damaged: it has no {_CLIENT + name!r}")
    return Scores(values, clients)
