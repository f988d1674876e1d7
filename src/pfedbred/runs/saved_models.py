"""Trained models as safetensors files, with a name for every tensor.

A run folder keeps G and every P at the end of the run, or of the rounds chosen on validation samples, in
``models.safetensors``; :func:`export` takes one of them out with all that is needed to use it: the model's settings,
how inputs are normalised, what words and labels stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from pfedbred import algorithms, models, tasks
from pfedbred import settings as settings_
from pfedbred.algorithms.base import Task
from pfedbred.data.federation import client_number
from pfedbred.engine.backend import Backend, DataInfo
from pfedbred.errors import SettingError
from pfedbred.io import tensors
from pfedbred.runs import model_file
from pfedbred.runs.calibration import of_one
from pfedbred.runs.chosen import MODELS as MODEL_KINDS
from pfedbred.runs.chosen import ChosenRounds
from pfedbred.runs.layout import COMPARISON, GLOBAL_MODEL, MODELS, SWEEP, TABLE
from pfedbred.runs.start_params import FROZEN
from pfedbred.settings import schedules
from pfedbred.types import Tree

S = TypeVar("S")
_CHOSEN_ON = "validation"
_NOT_EXPORTED = ": make one with 'pfedbred export'"


def write_models(
    folder: Path,
    experiment: Mapping[str, Any],
    backend: Backend[S],
    state: S,
    round_: int,
    chosen: ChosenRounds | None = None,
    fitted: Mapping[str, Any] | None = None,
) -> None:
    """Writes the models of a finished run into its folder; G alone where personal models stay with their clients.

    ``experiment`` are its options as plain values. The models are those of the last round, ``round_``, or the
    ``chosen`` ones, if there are any. ``fitted`` is their calibration as
    :meth:`pfedbred.runs.calibration.RunCalibration.facts` gives it.
    """
    federation, last = backend.federation, None if chosen else backend.models(state)
    trees = chosen.models if chosen else last and dict(zip(MODEL_KINDS, map(tensors.named, last), strict=True))
    if not trees or "personal" not in trees:
        model = backend.global_model(state)
        if chosen:
            model, round_ = chosen.tree("global", (0,), model), int(chosen.rounds["global"][0])
        write_model(
            folder / GLOBAL_MODEL,
            jax.device_get(model),
            experiment,
            federation,
            round_,
            backend.task,
            chosen=bool(chosen),
        )
        return
    arrays = {f"{kind}.{name}": np.asarray(leaf) for kind, tree in trees.items() for name, leaf in tree.items()}
    facts = {
        "format": model_file.KEPT,
        "seeds": list(range(experiment["seed"], experiment["seed"] + experiment["seeds"])),
        **_facts(experiment, federation, round_, backend.task),
        "clients": federation.clients,
        "client_names": federation.names,
        **({"chosen_rounds": {kind: rounds.tolist() for kind, rounds in chosen.rounds.items()}} if chosen else {}),
        "calibration": fitted,
    }
    frozen = {f"{FROZEN}{name}": array for name, array in _frozen(backend.task).items()}
    model_file.save(folder / MODELS, arrays | frozen | _data_arrays(federation), facts)


def write_model(
    path: Path,
    model: Tree,
    experiment: Mapping[str, Any],
    data: DataInfo,
    round_: int,
    task: Task,
    *,
    client: int | None = None,
    name: str | None = None,
    chosen: bool = False,
) -> None:
    """Writes one model as :func:`export` does: a client's P, or G if no client is named.

    ``data`` describes what it was trained on: a Federation, or a description of one without samples. ``chosen`` is
    whether its round was chosen on validation samples.
    """
    arrays = {name: np.asarray(leaf) for name, leaf in tensors.named(model).items()}
    whose = {} if client is None else {"client": client, "client_name": name or str(client)}
    facts = {
        "format": model_file.EXPORTED,
        "kind": "global" if client is None else "personal",
        "seed": experiment["seed"],
        **_facts(experiment, data, round_, task),
        **whose,
        **({"chosen_on": _CHOSEN_ON} if chosen else {}),
    }
    model_file.save(path, arrays | _frozen(task) | _data_arrays(data), facts)


def _frozen(task: Task) -> dict[str, np.ndarray]:
    """The params that no client trains."""
    frozen = task.model.frozen
    return {} if frozen is None else {name: np.asarray(leaf) for name, leaf in tensors.named(frozen).items()}


def _facts(experiment: Mapping[str, Any], federation: DataInfo, round_: int, task: Task) -> dict[str, Any]:
    """What made the models, and what their inputs and outputs stand for.

    Facts that are not worked out here are options of the experiment, by the same name.
    """
    found = {
        "model": experiment["model"] if experiment["model"] in models.MODELS else "custom",
        "settings": _plain_settings(experiment["settings"]) | _scheduled(experiment, round_),
        "round": round_,
        "dataset": federation.name,
        "shape": list(federation.shape),
        "classes": federation.classes,
        "labels": federation.labels,
        "features": federation.features,
        "vocabulary": federation.text.vocabulary if federation.text else None,
        "task": task.kind.name if task.kind.name in tasks.TASKS else tasks.usual(task.kind.labels),
        "target": None if task.target is None else task.target._asdict(),
        "columns": None if federation.encoding is None else federation.encoding.facts(),
    }
    options = {name: fact.earlier for name, fact in model_file.FACTS.items() if name not in found}
    return found | {name: experiment.get(name, earlier) for name, earlier in options.items()}


def _scheduled(experiment: Mapping[str, Any], round_: int) -> dict[str, float]:
    """The value of each setting with a schedule in the round after ``round_``, or the last: a newcomer trains so."""
    if str(experiment["algorithm"]).split("+")[0] not in algorithms.ALGORITHMS:
        return {}
    known, rounds = settings_.declared(algorithms.builder(experiment["algorithm"])), experiment["rounds"]
    return {
        name: float(schedules.table(name, value, rounds, known[name].annotation)[min(round_, rounds - 1)])
        for name, value in experiment["settings"].items()
        if isinstance(value, Mapping) and name in known and schedules.may_vary(known[name].annotation)
    }


def _plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without objects (priors, means, solvers): predictions do not need them, and a file cannot hold them."""
    plain = {
        name: value
        for name, value in settings.items()
        if not (isinstance(value, str) and (value.startswith("<") or ":" in value))
    }
    if not isinstance(settings.get("sigma", 0.0), int | float):
        plain["sigma"] = None  # a prior's, which may be large or in a file; FedAMP's sigma is a number
    return plain


def _data_arrays(federation: DataInfo) -> dict[str, np.ndarray]:
    """What turns a sample into the model's input."""
    vectors = federation.text.vectors if federation.text else None
    given = {"input.shift": federation.shift, "input.scale": federation.scale, "input.vectors": vectors}
    columns = {} if federation.encoding is None else federation.encoding.arrays()
    given |= {f"input.{name}": array for name, array in columns.items()}
    return {name: np.asarray(array) for name, array in given.items() if array is not None}


def export(
    folder: str | Path, *, client: int | str | None = None, seed: int | None = None, out: str | Path | None = None
) -> Path:
    """Writes one model of a finished run: a client's P, or G if no client is given. Returns the file.

    A client is given by its number, or as a text by its name or number.
    """
    arrays, about = extracted(folder, client=client, seed=seed)
    path = Path(out or default_path(Path(folder), about))
    model_file.save(path, arrays, about)
    return path


def default_path(folder: Path, about: Mapping[str, Any], suffix: str = ".safetensors") -> Path:
    """Where a model of the run in that folder is written by default."""
    name = Path(GLOBAL_MODEL).stem if about["kind"] == "global" else f"client-{about['client']}"
    return folder / f"{name}{suffix}"


def extracted(
    folder: str | Path, *, client: int | str | None = None, seed: int | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of one model of a finished run, and facts about it; arguments as for :func:`export`."""
    folder = Path(folder)
    file, facts = model_file.read(folder / MODELS, model_file.KEPT, _hint(folder))
    seeds, clients, names = (facts.pop(name) for name in ("seeds", "clients", "client_names"))
    chosen, kept = facts.pop("chosen_rounds", None), facts.pop("calibration")
    facts.pop("members")  # of one model
    if isinstance(client, str):
        client = client_number(client, names or [str(number) for number in range(clients)])
    ensemble = facts["posterior"] == "ensemble" and client is not None
    if ensemble and seed is not None:
        raise SettingError("the run's personal models are ensembles of all seeds: leave the seed out")
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise SettingError(f"the run has no seed {seed}; its seeds are {', '.join(map(str, seeds))}")
    if client is not None and not 0 <= client < clients:
        raise SettingError(f"there is no client {client}; clients are 0 to {clients - 1}")
    kind = "global" if client is None else "personal"
    first = slice(None) if ensemble else slice(seeds.index(seed), seeds.index(seed) + 1)
    place = [first] if client is None else [first, slice(client, client + 1)]
    arrays = {}
    for name in file.keys():  # noqa: SIM118  (not a mapping)
        if name.startswith("input.own."):
            if client is not None:
                arrays[name] = file.get_tensor(name)[client : client + 1]
        elif name.startswith("input."):
            arrays[name] = file.get_tensor(name)
        elif name.startswith(FROZEN):
            arrays[name.removeprefix(FROZEN)] = file.get_tensor(name)
        elif name.startswith(f"{kind}."):
            if tuple(file.get_slice(name).get_shape()[: len(place)]) != (len(seeds), clients)[: len(place)]:
                raise SettingError(f"{folder / MODELS} is damaged: {name!r} is not of these seeds and clients")
            part = file.get_slice(name)[tuple(place)]
            arrays[name.removeprefix(f"{kind}.")] = part.reshape(
                (len(seeds),) * ensemble + tuple(part.shape[len(place) :])
            )
    about = {**facts, "format": model_file.EXPORTED, "kind": kind, "seed": seed}
    if ensemble:
        about["members"] = seeds
    if chosen:
        round_ = max(chosen[kind]) if ensemble else chosen[kind][seeds.index(seed)]
        about |= {"round": round_, "chosen_on": _CHOSEN_ON}
    if kept is not None:
        about["calibration"] = of_one(kept, 0 if ensemble else seeds.index(seed), client)
    if client is not None:
        about["client"] = client
        about["client_name"] = names[client] if names else str(client)
    return arrays, about


def _hint(folder: Path) -> str:
    """A hint for a folder without models."""
    if (folder / TABLE).exists() or (folder / COMPARISON).exists():
        return f": {folder} is a comparison, choose one of the runs in it"
    if (folder / SWEEP).exists():
        return f": {folder} is a sweep, which keeps no models; run its best point with 'pfedbred run'"
    if (folder / GLOBAL_MODEL).exists():
        return f": its personal models are with their clients, and G is {folder / GLOBAL_MODEL}"
    return ": the run is not finished, or kept no models"


def read_model(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of an exported model, and its facts."""
    file, about = model_file.read(path, model_file.EXPORTED, _NOT_EXPORTED)
    return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118  (not a mapping)


def facts(path: Path) -> dict[str, Any]:
    """The facts of an exported model."""
    return model_file.read(path, model_file.EXPORTED, _NOT_EXPORTED)[1]
