"""Params to start a run from: an exported model, the G of another run, a file of params, or arrays given in Python."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pfedbred.algorithms.ensemble import Members
from pfedbred.algorithms.posterior import WithPosterior, WithSamples
from pfedbred.errors import SettingError
from pfedbred.io import tensors
from pfedbred.runs import model_file
from pfedbred.runs.layout import GLOBAL_MODEL, MODELS
from pfedbred.types import Tree

_HASHED = re.compile(r"(?P<path>.*)#sha256=(?P<sha256>[0-9a-f]{64})", re.DOTALL)
_FLOATS = ("F64", "F32", "F16", "BF16")
_POSTERIOR = {"covariance", "heads"}  # beside a personal model: of laplace, of sgld
FROZEN = "frozen."
"""Prefix of the params that no client trained, in the file of a run's models."""


@dataclass(frozen=True, eq=False)
class StartParams:
    """Params to start from.

    Attributes:
      arrays: by the path to each, such as ``hidden.weight``.
      where: for errors.
    """

    arrays: Mapping[str, np.ndarray]
    where: str

    @property
    def sha256(self) -> str:
        """The hash of the names, types, shapes and contents of the arrays."""
        found = hashlib.sha256()
        for name in sorted(self.arrays):
            array = np.ascontiguousarray(self.arrays[name])
            found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            found.update(array.reshape(-1).view(np.uint8).data)  # bfloat16 has no buffer of its own
        return found.hexdigest()

    @property
    def __name__(self) -> str:  # the name in records of an object that is not importable
        return f"params sha256={self.sha256}"


def start_params(given: Any) -> StartParams:
    """Params from a file or a run's folder, whose path may be followed by ``#sha256=...``, or from a pytree."""
    if isinstance(given, StartParams):
        return given
    if not isinstance(given, str):
        return _from_tree(given)
    text, sha256 = split(given)
    path = Path(text).expanduser()
    found = StartParams(_of_run(path) if path.is_dir() else _of_file(path), str(path))
    if sha256 not in (None, found.sha256):
        raise SettingError(f"{path} has changed: its params had sha256 {sha256}, and now have {found.sha256}")
    return found


def split(given: str) -> tuple[str, str | None]:
    """The path, and the hash that follows it, if one does."""
    hashed = _HASHED.fullmatch(given)
    return (hashed["path"], hashed["sha256"]) if hashed else (given, None)


def _from_tree(tree: Tree) -> StartParams:
    if isinstance(tree, Members):
        raise _not_one_network("start_from", "an ensemble, with a network of each seed")
    if isinstance(tree, WithPosterior | WithSamples):
        tree = tree.model
    named = tensors.named(jax.device_get(tree))
    arrays = without_statistics({name: np.asarray(leaf) for name, leaf in named.items()})
    wrong = next((name for name, array in arrays.items() if array.dtype.kind not in "fV"), None)  # V: bfloat16
    if wrong is not None or not arrays:
        what = f"{wrong!r} is not an array of numbers" if arrays else f"not {type(tree).__name__}"
        raise SettingError(f"start_from must be a file, a run's folder or params, a pytree of arrays: {what}")
    return StartParams(_of_one_network(arrays, "start_from"), "start_from")


def _of_run(folder: Path) -> dict[str, np.ndarray]:
    """G of a run's first seed, with what no client trained."""
    if not (folder / MODELS).exists() and (folder / GLOBAL_MODEL).exists():
        return _of_file(folder / GLOBAL_MODEL)
    hint = ": start_from takes a file made by 'pfedbred export', or the folder of a finished run that kept its models"
    file, _ = model_file.read(folder / MODELS, model_file.KEPT, hint)
    arrays = {}
    for name in file.keys():  # noqa: SIM118  (not a mapping)
        if name.startswith("global."):
            arrays[name.removeprefix("global.")] = file.get_slice(name)[:1][0]
        elif name.startswith(FROZEN):
            arrays[name.removeprefix(FROZEN)] = file.get_tensor(name)
    return without_statistics(_of_one_network(arrays, str(folder)))


def _of_file(path: Path) -> dict[str, np.ndarray]:
    hint = ": start_from takes a file made by 'pfedbred export', a safetensors file of params, or a run's folder"
    file = model_file.opened(path, hint)
    if not (file.metadata() or {}).get("format", "").startswith("pfedbred "):
        return _of_other_file(file, path)
    file, about = model_file.read(path, model_file.EXPORTED, hint)
    arrays = {name: file.get_tensor(name) for name in file.keys() if not name.startswith("input.")}  # noqa: SIM118
    if about["members"]:
        raise _not_one_network(str(path), "an ensemble, with a network of each seed")
    if about["kind"] == "personal" and about["posterior"] is not None:
        arrays = {name.removeprefix("model."): each for name, each in arrays.items() if name not in _POSTERIOR}
    return without_statistics(_of_one_network(arrays, str(path)))


def _of_other_file(file: Any, path: Path) -> dict[str, np.ndarray]:
    """The arrays of any other safetensors file, all of them params; bfloat16 as float32."""
    arrays = {}
    for name in file.keys():  # noqa: SIM118  (not a mapping)
        kind = file.get_slice(name).get_dtype()
        if kind not in _FLOATS:
            raise SettingError(f"{path} cannot be started from: {name!r} is of type {kind}, not {', '.join(_FLOATS)}")
        array = file.get_tensor(name)
        arrays[name] = array.astype(np.float32) if kind == "BF16" else array
    return without_statistics(arrays)


def _of_one_network(arrays: dict[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """The arrays, unless they are those of a mixture."""
    if "log_weights" in arrays and any(name.startswith("components.") for name in arrays):
        raise _not_one_network(where, "a mixture of several networks, as fedem trains it")
    return arrays


def _not_one_network(where: str, what: str) -> SettingError:
    return SettingError(f"{where} cannot be started from: it is {what}, and start_from takes the params of one network")


def without_statistics(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The params of a network, by the path to each, without the batch statistics that a model may hold beside them."""
    if not any(name.startswith("statistics.") for name in arrays):
        return arrays
    return {name.removeprefix("params."): array for name, array in arrays.items() if not name.startswith("statistics.")}
