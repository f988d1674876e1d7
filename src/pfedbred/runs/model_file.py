"""Files of trained models: tensors by name, and facts about them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from pfedbred.algorithms.batch_statistics import BatchNorm
from pfedbred.algorithms.posterior import Posterior
from pfedbred.data.columns import SHAPE
from pfedbred.data.federation import check_classes, names_fit
from pfedbred.errors import SettingError
from pfedbred.io import tensors
from pfedbred.io.shapes import COUNT, NUMBER, Maybe, Some, expect
from pfedbred.io.strict import parse_json
from pfedbred.runs import calibration
from pfedbred.runs.chosen import MODELS as MODEL_KINDS
from pfedbred.tasks import TASKS

KEPT, EXPORTED = "pfedbred models 1", "pfedbred model 1"
_LARGEST_SAMPLE = 2**24
_DTYPES = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U32", "U16", "U8", "BOOL")


class Fact(NamedTuple):
    """A fact that a file records about its models.

    Attributes:
      shape: of the value.
      text: whether it is written verbatim; other facts are in JSON.
      earlier: its value for older files without it; ``...`` if all files have it.
    """

    shape: Any
    text: bool = False
    earlier: Any = ...


FACTS = {
    "dataset": Fact(str, text=True),
    "model": Fact(str, text=True),
    "batch_norm": Fact(str, text=True, earlier="local"),
    "algorithm": Fact(str, text=True),
    "settings": Fact(dict),
    "round": Fact(COUNT),
    "shape": Fact([COUNT]),
    "classes": Fact(COUNT),
    "labels": Fact(Maybe([str])),
    "features": Fact(Maybe([str]), earlier=None),
    "vocabulary": Fact(Maybe([str])),
    "task": Fact(str, earlier="classification"),
    "target": Fact(Maybe({"mean": NUMBER, "std": NUMBER}), earlier=None),
    "columns": Fact(Maybe(SHAPE), earlier=None),
    "precision": Fact(str, text=True, earlier="float32"),
    "train_only": Fact(Maybe([str]), earlier=None),
    "posterior": Fact(Maybe(str), earlier=None),
}
_EARLIER = {
    "calibration": None,
    "members": None,
    **{name: fact.earlier for name, fact in FACTS.items() if fact.earlier is not ...},
}
_TEXTS = {"format", "kind", "client_name", "chosen_on", *(name for name, fact in FACTS.items() if fact.text)}
_OF_RUN = {"seeds": Some(COUNT), "clients": COUNT, "client_names": Maybe([str]), "calibration": Maybe(calibration.KEPT)}
_OF_MODEL = {
    "kind": str,
    "seed": COUNT,
    "calibration": Maybe(calibration.EXPORTED),
    "members": Maybe(Some(COUNT)),  # the seeds of an ensemble
}


def save(path: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Writes arrays by name, and facts: texts verbatim, others as JSON."""
    tensors.write(path, arrays, as_texts(facts))


def as_texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as the metadata of a file."""
    return {name: value if name in _TEXTS else json.dumps(value) for name, value in facts.items()}


def opened(path: Path, hint: str, what: str = "a safetensors file") -> Any:
    """Opens a safetensors file, whatever it holds; ``what`` it is expected to be, for errors."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise SettingError(f"{path} is not a file{hint}" if os.path.exists(path) else f"there is no file {path}{hint}")
    try:
        return safe_open(path, "numpy")
    except SafetensorError:
        raise SettingError(f"{path} is not {what}, or it is damaged") from None
    except OSError as problem:
        raise SettingError(f"cannot read {path}: {problem}") from None


def read(path: Path, expected: str, hint: str) -> tuple[Any, dict[str, Any]]:
    """The file and its facts."""
    what = "a model written by 'pfedbred export'" if expected == EXPORTED else "a file of a run's models"
    file = opened(path, hint, what)
    said = file.metadata() or {}
    if said.get("format") != expected:
        raise SettingError(f"{path} is not a {expected.removesuffix(' 1')} file{hint}")
    facts = {name: text if name in _TEXTS else parse_json(text, path) for name, text in said.items()}
    facts = {**_EARLIER, **facts}
    shapes = {name: fact.shape for name, fact in FACTS.items()}
    expect(facts, shapes | (_OF_RUN if expected == KEPT else _OF_MODEL), path)
    check_classes(facts["classes"], f"{path}: ")
    if not 0 < math.prod(facts["shape"]) <= _LARGEST_SAMPLE:
        raise SettingError(f"{path} is damaged: samples cannot be of shape {facts['shape']}")
    if not names_fit(facts["features"], facts["shape"]):
        raise SettingError(f"{path} is damaged: samples of shape {facts['shape']} are not from {facts['features']}")
    if facts["task"] not in TASKS:
        raise SettingError(f"{path} is for an unknown task: {facts['task']!r}")
    if facts["batch_norm"] not in get_args(BatchNorm):
        raise SettingError(f"{path} is damaged: 'batch_norm' cannot be {facts['batch_norm']!r}")
    if facts["posterior"] not in (None, *get_args(Posterior)):
        raise SettingError(f"{path} is damaged: 'posterior' cannot be {facts['posterior']!r}")
    _check_chosen(facts, path)
    _check_calibration(facts, expected, path)
    if facts["labels"] is not None and len(facts["labels"]) != facts["classes"]:
        raise SettingError(f"{path} is damaged: it names {len(facts['labels'])} of {facts['classes']} labels")
    names = facts.get("client_names")
    if names is not None and len(names) != facts["clients"]:
        raise SettingError(f"{path} is damaged: it names {len(names)} of {facts['clients']} clients")
    for name in file.keys():  # noqa: SIM118  (not a mapping)
        if file.get_slice(name).get_dtype() not in _DTYPES:
            raise SettingError(f"{path} holds {name!r} with an unsupported number type")
    return file, facts


def _check_calibration(facts: Mapping[str, Any], expected: str, path: Path) -> None:
    """Rejects one for other seeds and clients, and temperatures that are not positive."""
    found = facts["calibration"]
    if found is None:
        return
    if expected == KEPT:
        ensemble = facts["posterior"] == "ensemble"
        calibration.check_kept(found, len(facts["seeds"]), facts["clients"], ensemble, path)
    elif found["temperature"] is not None and not found["temperature"] > 0:
        raise SettingError(f"{path} is damaged: its temperature is {found['temperature']}")


def _check_chosen(facts: Mapping[str, Any], path: Path) -> None:
    """Rejects chosen rounds that are not one for each seed; a run without validation samples has none."""
    chosen = facts.get("chosen_rounds")
    if chosen is not None:
        expect(chosen, {kind: [COUNT] for kind in MODEL_KINDS}, path, "'chosen_rounds'")
        if any(len(chosen[kind]) != len(facts.get("seeds", ())) for kind in MODEL_KINDS):
            raise SettingError(f"{path} is damaged: it does not name one chosen round of each seed")
