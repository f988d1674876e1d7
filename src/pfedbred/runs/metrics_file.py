"""metrics.jsonl: a line for each evaluation of a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.io.shapes import expect
from pfedbred.io import strict
from pfedbred.engine.evaluation import Evaluation, ModelScores, Scores
from pfedbred.engine.screening import Health
from pfedbred.errors import SettingError
from pfedbred.io.shapes import COUNT
from pfedbred.io.shapes import NUMBER
from pfedbred.io.shapes import Each
from pfedbred.io.shapes import Maybe
from pfedbred.experiment.loop import Point


class Metrics:
    """metrics.jsonl, a line at a time.

    Scores of all clients together are written as they are, those of single clients with four digits.
    """

    def __init__(self, folder: Path, keep: int = 0) -> None:
        """Keeps so many bytes of what is there, and goes on after them."""
        self._file = (folder / "metrics.jsonl").open("ab")
        self._file.truncate(keep)

    def write(self, point: Point) -> None:
        """Adds a line, which others can read from then on."""
        line = {
            "round": point.round,
            "seconds": round(point.seconds, 3),
            "global": _model_line(point.scores.global_),
            "personal": _model_line(point.scores.personal),
            "left_out": point.health.left_out,
            "skipped": point.health.skipped,
            "skipped_in_row": point.health.in_row,
        }
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def settle(self) -> int:
        """Sees that all lines are on the disk; returns how many bytes they take."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size  # not where it stands: it was opened at an end that may be cut off

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def size_of(folder: Path) -> int:
    """Bytes of the metrics in a folder; none if there are no metrics."""
    path = folder / "metrics.jsonl"
    return path.stat().st_size if path.exists() else 0


def _model_line(scores: ModelScores) -> dict[str, Any]:
    return {"train": _scores_line(scores.train), "test": _scores_line(scores.test)}


def _scores_line(scores: Scores) -> dict[str, Any]:
    return {
        name: _numbers(values, 4 if name in ("client_accuracy", "client_loss") else None)
        for name, values in scores._asdict().items()
    }


def _numbers(values: np.ndarray, digits: int | None) -> Any:
    """Nested lists; JSON has no NaN, so what does not exist is null."""
    if values.ndim > 1:
        return [_numbers(each, digits) for each in values]
    numbers = [float(value) if math.isfinite(value) else None for value in values]
    return numbers if digits is None else [value if value is None else round(value, digits) for value in numbers]


def read_points(folder: Path, size: int | None) -> list[Point]:
    """The evaluations in the first ``size`` bytes of metrics.jsonl; in all of it, if that is None."""
    path = folder / "metrics.jsonl"
    try:
        with path.open("rb") as file:
            text = file.read(size)
    except OSError as problem:
        raise SettingError(f"cannot read {path}: {problem.strerror}") from None
    if size is not None and len(text) < size:
        raise SettingError(f"{path} is shorter than it was: it cannot be gone on with")
    points = []
    for line in text.splitlines():
        facts = strict.parse_json(line, path)
        expect(facts, _POINT, path)
        points.append(_point(facts))
    return points


_SCORES = {
    name: [[Maybe(NUMBER)]] if name in ("client_accuracy", "client_loss") else [Maybe(NUMBER)]
    for name in Scores._fields
}
_POINT = {
    "round": COUNT,
    "seconds": NUMBER,
    "global": {"train": _SCORES, "test": _SCORES},
    "personal": {"train": _SCORES, "test": _SCORES},
    "left_out": [Each(COUNT)],
    "skipped": [COUNT],
    "skipped_in_row": [COUNT],
}


def _point(line: Mapping[str, Any]) -> Point:
    def model(of: Mapping[str, Any]) -> ModelScores:
        train, test = (Scores(*(_array(of[part][name]) for name in Scores._fields)) for part in ("train", "test"))
        return ModelScores(train, test)

    health = Health(line["left_out"], line["skipped"], line["skipped_in_row"])
    return Point(line["round"], line["seconds"], Evaluation(model(line["global"]), model(line["personal"])), health)


def _array(values: list[Any]) -> np.ndarray:
    """Numbers of each seed, or of each seed and client, which must be as many; NaN where there is none."""
    rows = [each if isinstance(each, list) else [each] for each in values]
    if len({len(row) for row in rows}) > 1:
        raise SettingError("metrics.jsonl is damaged: its seeds have different numbers of clients")
    array = np.array(rows, float)
    return array if values and isinstance(values[0], list) else array.reshape(-1)
