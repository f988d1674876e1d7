"""Predicting with a trained model on samples in a file: where personal models live, on the clients' own machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred import tasks
from pfedbred.data import prepared
from pfedbred.data.federation import columns_at
from pfedbred.data.labels import named_as
from pfedbred.data.sources.tables import TableRows, read_csv, read_parquet
from pfedbred.data.sources.user_files import inputs_of
from pfedbred.errors import SettingError
from pfedbred.io.npy import Npz, read_npy
from pfedbred.runs.trained_model import TrainedModel, load_model
from pfedbred.tasks import Labels

PERSONAL = "personal.safetensors"
"""A client's personal model, in a run's folder in its home."""


class GivenSamples(NamedTuple):
    """Samples as the file stores them, their labels as texts if it has them, and whether they are inputs already."""

    x: np.ndarray
    labels: list[str] | None
    encoded: bool = False


def find_model(path: Path, network: Any = None) -> TrainedModel:
    """The model in an exported file, or the newest personal model in a client's home; a custom ``network`` is given."""
    if not path.is_dir():
        return load_model(path, network)
    found = personal_models(path)
    if found:
        return load_model(found[0], network)
    if (path / "config.yaml").exists() or (path / "table.json").exists():
        raise SettingError(f"{path} is a run: take a model out of it with 'pfedbred export', and predict with that")
    raise SettingError(f"there is no personal model in {path}: the client has not taken part in a round yet")


def personal_models(home: Path) -> list[Path]:
    """The personal models in a client's home, the newest first."""
    return sorted(home.glob(f"*/{PERSONAL}"), key=lambda path: path.stat().st_mtime, reverse=True)


def predict(model: TrainedModel, samples: GivenSamples, where: Path) -> list[str]:
    """The label of each sample, by name if labels have names."""
    if not len(samples.x):
        raise SettingError(f"{where} holds no samples")
    if model.about["columns"] is not None:
        if samples.x.ndim != 2:
            raise SettingError(f"{where} does not hold a table, but the model is for the columns of one")
        return [_text(each) for each in model.predict(samples.x, encoded=samples.encoded)]
    texts = samples.x.dtype.kind in "OUS"
    if texts != (model.about["vocabulary"] is not None) and (texts or samples.x.dtype.kind != "i"):
        raise SettingError(
            f"{where} holds {'texts' if texts else 'numbers'}, but the model expects {'numbers' if texts else 'texts'}"
        )
    if samples.labels is not None and len(samples.labels) != len(samples.x):
        raise SettingError(f"{where} has {len(samples.x)} samples and {len(samples.labels)} labels")
    return [_text(each) for each in model.predict(samples.x, encoded=samples.encoded)]


class Asked(NamedTuple):
    """What is reported for each sample besides its label."""

    probabilities: bool = False
    sets: bool = False
    intervals: bool = False


def detailed(model: TrainedModel, samples: GivenSamples, predicted: Sequence[str], asked: Asked) -> list[list[str]]:
    """A table for a CSV file, with a header: each sample's prediction, and how sure the model is of it."""
    columns: dict[str, Sequence[str]] = {"prediction": predicted}
    if asked.probabilities:
        calibrated = model.about["calibration"] is not None
        likely = model.probabilities(samples.x, encoded=samples.encoded, calibrated=calibrated)
        names = model.label_names
        columns |= {f"P({name})": [f"{each:.4g}" for each in own] for name, own in zip(names, likely.T, strict=True)}
    if asked.sets:
        columns["set"] = [_text(each) for each in model.sets(samples.x, encoded=samples.encoded)]
    if asked.intervals:
        ends = model.intervals(samples.x, encoded=samples.encoded)
        columns |= {name: [f"{each:.7g}" for each in own] for name, own in zip(("from", "to"), ends.T, strict=True)}
        if model.about["members"]:
            apart = model.deviations(samples.x, encoded=samples.encoded)
            columns["deviation"] = [f"{each:.7g}" for each in apart]
    return [list(columns), *map(list, zip(*columns.values(), strict=True))]


def coverage_words(about: Mapping[str, Any]) -> str:
    """The coverage of a calibrated model, in words, or that it is not calibrated."""
    found = about["calibration"]
    if found is None:
        return "probabilities not calibrated, which needs a run with --coverage"
    whose = "this client's samples" if found["own"] else "all clients' samples together"
    return f"calibrated for {100 * found['coverage']:g} % of {whose}"


def agreement(model: TrainedModel, predicted: Sequence[str], given: Sequence[str]) -> str:
    """How well predictions agree with the labels in a file, in words."""
    if tasks.get(model.about["task"]).labels != "numbers":
        labels = {each: named_as(each, model.label_names) for each in set(given)}
        right = sum(one == labels[other] for one, other in zip(predicted, given, strict=True))
        return f"{right} of {len(predicted)} labels agree with the file, {100 * right / len(predicted):.2f} %"
    errors = np.asarray(predicted, float) - np.asarray(given, float)
    return f"RMSE {np.sqrt(np.mean(errors**2)):.4g}, MAE {np.mean(np.abs(errors)):.4g} against the file's labels"


def _text(prediction: Any) -> str:
    """A prediction as text: a set of labels separated by commas, a number as short as it is exact."""
    if isinstance(prediction, tuple):
        return ",".join(map(str, prediction))
    return f"{prediction:.7g}" if isinstance(prediction, float) else str(prediction)


def read_samples(
    path: Path,
    label_column: str | None = None,
    features: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> GivenSamples:
    """Samples from .npz, .npy, .csv or .parquet; of a prepared federation, its test samples.

    Args:
      path: the file.
      label_column: of a table, the column with the labels.
      features: of a table, the columns with the inputs, in the model's order; if not given, all but the label's.
      labels: where a sample has several labels, their names, which are columns of a table.
      columns: of a model whose inputs are encoded, the columns of its table: they are read as they are, gaps included.
    """
    if path.suffix == prepared.SUFFIX:
        federation = prepared.load(path)
        test, places = federation.test, columns_at(federation.features, features, path)
        return GivenSamples(
            test.x if places is None else test.x[:, places],
            _known(test.y, federation.labels, federation.label_kind),
            encoded=federation.encoding is not None,
        )
    if path.suffix == ".npy":
        return GivenSamples(read_npy(path, "samples"), None)
    if path.suffix == ".npz":
        with Npz(path) as arrays:
            if "x" not in arrays.names:
                raise SettingError(f"{path} has no array 'x', only {', '.join(arrays.names)}")
            label = label_column or "y"
            return GivenSamples(arrays["x"], _texts(arrays[label], labels) if label in arrays.names else None)
    if path.suffix in (".csv", ".parquet"):
        table = read_csv(path) if path.suffix == ".csv" else read_parquet([path])
        return _from_table(table, path, label_column, columns or features, labels, raw=columns is not None)
    raise SettingError(f"cannot read {path}: expected .npz, .npy, .csv, .parquet or .fed")


def _raw_rows(table: TableRows, columns: Sequence[str]) -> np.ndarray:
    rows = np.empty((len(table), len(columns)), object)
    rows[:] = table.rows(columns)
    return rows


def _inputs(table: TableRows, columns: Sequence[str], path: Path) -> np.ndarray:
    """For a model of numbers, images or texts; a table of numbers may have gaps."""
    found = inputs_of(table, columns, str(path))
    texts = next((each for each in found.columns or () if each.categories is not None), None)
    if texts is not None:
        raise table.no_number(texts.name, table.column(texts.name).to_pylist())
    return found.x


def _known(y: np.ndarray, names: Sequence[str] | None, kind: Labels) -> list[str]:
    """The labels of a federation as texts."""
    if kind == "sets":
        return _sets(y, names)
    return [names[i] if names else str(i) for i in y.tolist()]


def _sets(y: np.ndarray, names: Sequence[str] | None) -> list[str]:
    return [",".join(names[i] if names else str(i) for i in np.flatnonzero(row).tolist()) for row in y]


def _texts(labels: np.ndarray, names: Sequence[str] | None) -> list[str]:
    """Labels by name; 1.0 counts as 1, because spreadsheets write it so."""
    if labels.ndim == 2:
        return _sets(labels, names)
    whole = labels.dtype.kind == "f" and bool(np.all(labels == np.round(labels)))
    return [str(each) for each in (labels.astype(np.int64) if whole else labels)]


def _from_table(
    table: TableRows,
    path: Path,
    label_column: str | None,
    features: Sequence[str] | None,
    labels: Sequence[str] | None,
    raw: bool,
) -> GivenSamples:
    if not len(table):
        return GivenSamples(np.zeros((0, 1)), None)
    inputs = features or ()
    missing = [each for each in inputs if each not in table.columns]
    if missing:
        raise SettingError(
            f"{path} has no column {missing[0]!r}, which the model needs; it has {', '.join(table.columns)}"
        )
    if label_column in inputs:
        raise SettingError(f"the column {label_column!r} is one of the model's inputs: it cannot hold the labels")
    guessed = (each for each in ("label", "y") if each in table.columns and each not in inputs)
    label = label_column or next(guessed, None)
    chosen = features or [each for each in table.columns if each not in (label, "client")]
    x = _raw_rows(table, chosen) if raw else _inputs(table, chosen, path)
    if labels is not None:
        known = all(each in table.columns for each in labels)
        return GivenSamples(x, _sets(table.numbers(labels), labels) if known else None)
    if label is None:
        return GivenSamples(x, None)
    number, names = table.names(label)
    return GivenSamples(x, [names[i] for i in number])
