"""Trained models as safetensors files, with a name for every tensor.

A run folder keeps G and every P at the end of the run, or of the rounds chosen on validation samples, in
``models.safetensors``; :func:`export` takes one of them out with all that is needed to use it: the model's settings,
how inputs are normalised, what words and labels stand for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred import algorithms, models, tasks
from pfedbred import settings as settings_
from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.algorithms.batch_statistics import with_statistics
from pfedbred.algorithms.exchange import exchange
from pfedbred.algorithms.posterior import with_posterior
from pfedbred.data.columns import Encoding, numbers_of, restored
from pfedbred.data.federation import client_number, first_nonfinite_row
from pfedbred.data.minibatches import Batch, Inputs
from pfedbred.data.text import Text
from pfedbred.engine import calibration
from pfedbred.engine.backend import Backend, DataInfo
from pfedbred.errors import SettingError
from pfedbred.io import tensors
from pfedbred.runs import model_file
from pfedbred.runs.calibration import of_one
from pfedbred.runs.chosen import MODELS as MODEL_KINDS
from pfedbred.runs.chosen import Chosen
from pfedbred.runs.layout import COMPARISON, GLOBAL_MODEL, MODELS, SWEEP, TABLE
from pfedbred.runs.start_params import FROZEN, without_statistics
from pfedbred.settings.schedules import may_vary
from pfedbred.types import Array, Tree, Words

S = TypeVar("S")
_CHOSEN_ON = "validation"
_NOT_EXPORTED = ": make one with 'pfedbred export'"


def write_models(
    folder: Path,
    experiment: Mapping[str, Any],
    backend: Backend[S],
    state: S,
    round_: int,
    chosen: Chosen | None = None,
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

    ``data`` describes what it was trained on: a Federation, or all of one but the samples. ``chosen`` is whether its
    round was chosen on validation samples.
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
    """What made the models, and what their inputs and outputs stand for."""
    return {
        "model": experiment["model"] if experiment["model"] in models.MODELS else "custom",
        **{name: experiment.get(name, fact.earlier) for name, fact in model_file.FACTS.items() if fact.option},
        "settings": _plain_settings(experiment["settings"]),
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
    arrays, about = taken(folder, client=client, seed=seed)
    path = Path(out or usual_path(Path(folder), about))
    model_file.save(path, arrays, about)
    return path


def usual_path(folder: Path, about: Mapping[str, Any], suffix: str = ".safetensors") -> Path:
    """Where a model of the run in that folder is written, unless somebody says otherwise."""
    name = Path(GLOBAL_MODEL).stem if about["kind"] == "global" else f"client-{about['client']}"
    return folder / f"{name}{suffix}"


def taken(
    folder: str | Path, *, client: int | str | None = None, seed: int | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of one model of a finished run, and what there is to say of it; arguments as for :func:`export`."""
    folder = Path(folder)
    file, facts = model_file.read(folder / MODELS, model_file.KEPT, _instead_of_models(folder))
    seeds, clients, names = (facts.pop(name) for name in ("seeds", "clients", "client_names"))
    chosen, kept = facts.pop("chosen_rounds", None), facts.pop("calibration")
    if isinstance(client, str):
        client = client_number(client, names or [str(number) for number in range(clients)])
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise SettingError(f"the run has no seed {seed}; its seeds are {', '.join(map(str, seeds))}")
    if client is not None and not 0 <= client < clients:
        raise SettingError(f"there is no client {client}; clients are 0 to {clients - 1}")
    kind = "global" if client is None else "personal"
    place = [seeds.index(seed)] if client is None else [seeds.index(seed), client]
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
            part = file.get_slice(name)[tuple(slice(each, each + 1) for each in place)]
            arrays[name.removeprefix(f"{kind}.")] = part.reshape(part.shape[len(place) :])
    about = {**facts, "format": model_file.EXPORTED, "kind": kind, "seed": seed}
    if chosen:
        about |= {"round": chosen[kind][seeds.index(seed)], "chosen_on": _CHOSEN_ON}
    if kept is not None:
        about["calibration"] = of_one(kept, seeds.index(seed), client)
    if client is not None:
        about["client"] = client
        about["client_name"] = names[client] if names else str(client)
    return arrays, about


def _instead_of_models(folder: Path) -> str:
    """What to say of a folder without models."""
    if (folder / TABLE).exists() or (folder / COMPARISON).exists():
        return f": {folder} is a comparison, choose one of the runs in it"
    if (folder / SWEEP).exists():
        return f": {folder} is a sweep, which keeps no models; run its best point with 'pfedbred run'"
    if (folder / GLOBAL_MODEL).exists():
        return f": its personal models are with their clients, and G is {folder / GLOBAL_MODEL}"
    return ": the run is not finished, or kept no models"


def read_model(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of an exported model, and what it says of itself."""
    file, about = model_file.read(path, model_file.EXPORTED, _NOT_EXPORTED)
    return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118  (not a mapping)


def facts(path: Path) -> dict[str, Any]:
    """What an exported model says of itself."""
    return model_file.read(path, model_file.EXPORTED, _NOT_EXPORTED)[1]


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model to use.

    Attributes:
      params: its arrays, in the structure the algorithm gives them.
      about: what the file says of it.
      algorithm: the method that it was trained with.
      task: what it predicts, and its network.
      encoding: how the cells of a table become inputs, if it is for such a table.
      text: the vocabulary, if it is for texts.
    """

    params: Tree
    about: Mapping[str, Any]
    algorithm: Algorithm
    task: Task
    encoding: Encoding | None
    _shift: Array | None
    _scale: Array | None
    text: Text | None

    @property
    def normalisation(self) -> tuple[Array | None, Array | None]:
        """Shift and scale: samples become inputs as (x - shift) * scale."""
        return self._shift, self._scale

    def samples(self, x: Any, *, encoded: bool = False) -> np.ndarray:
        """Samples as a federation holds them, given as in :meth:`logits`."""
        if self.encoding is not None and not encoded:
            x = self.encoding.encode(numbers_of(self.encoding.columns, x), 0)
        elif self._shift is not None and not encoded and _has_gaps(x):
            x = np.where(np.isnan(x), self._shift, x)  # a gap in a table that had none: the mean
        if self.text is not None and isinstance(x, Sequence | np.ndarray) and isinstance(x[0], str):
            x = self.text.encode(x, self.about["shape"][0])
        found, expected = np.asarray(x), tuple(self.about["shape"])
        if found.shape[1:] != expected:
            raise SettingError(f"samples have shape {found.shape[1:]}, the model is for {expected}")
        if (bad := first_nonfinite_row(found)) is not None:
            raise SettingError(f"sample {bad} has a feature that is not a finite number")
        return found

    def logits(self, x: Any, *, encoded: bool = False) -> np.ndarray:
        """The outputs for each sample, given as the data holds it: not normalised, words as texts or as ids.

        A row of a table is its cells in the order of the columns, or a mapping by their names; None is a gap. With
        ``encoded``, samples are inputs already, as a prepared federation holds them.
        """
        return np.asarray(self.outputs(self.params, jnp.asarray(self.samples(x, encoded=encoded))))

    def outputs(self, params: Tree, samples: Array) -> Array:
        """The outputs for samples that are numbers of the model's shape, as a JAX function of arrays."""
        inputs = Inputs(samples, self._shift, self._scale).take(slice(None))
        return self.algorithm.predict(params, inputs)

    def input_arrays(self) -> dict[str, np.ndarray]:
        """What turns a sample into an input, by name: the shift and scale of numbers, the statistics of columns."""
        given = {"shift": self._shift, "scale": self._scale}
        columns = {} if self.encoding is None else {f"own.{k}": v[0] for k, v in self.encoding.own._asdict().items()}
        return {name: np.asarray(each) for name, each in (given | columns).items() if each is not None}

    def filled(self, samples: Array) -> Array:
        """With the mean in place of gaps, for a table that had none in training."""
        return samples if self._shift is None else jnp.where(jnp.isnan(samples), self._shift, samples)

    def _scores(self, x: Any, encoded: bool) -> np.ndarray:
        return np.asarray(self.task.scores(jnp.asarray(self.logits(x, encoded=encoded))))

    def predict(self, x: Any, *, encoded: bool = False) -> list[Any]:
        """The most likely label of each sample, or its labels, by name if they have names; or the predicted numbers."""
        return self.task.kind.show(self._scores(x, encoded), self.about["labels"])

    def probabilities(self, x: Any, *, encoded: bool = False, calibrated: bool = True) -> np.ndarray:
        """(n, labels) the probability of each label: softmax(z / T), with T = 1 if not ``calibrated``.

        Samples as for :meth:`logits`.
        """
        kind = self.task.kind
        if kind.labels != "classes":
            raise SettingError(f"probabilities are for classes, and the task of this model is {kind.name}")
        temperature = self._calibration("classes", "probabilities")["temperature"] if calibrated else 1.0
        likely = np.exp(calibration.log_probabilities(self._scores(x, encoded), temperature))
        return likely[:, : self.about["classes"]]

    def sets(self, x: Any, *, encoded: bool = False) -> list[tuple[Any, ...]]:
        """The labels that each sample may have, the most likely first, by name if they have names.

        They hold the true label as often as ``about["calibration"]["coverage"]`` says: of this client's samples if
        ``own`` is true, and else of all clients' samples together.
        """
        threshold = self._calibration("classes", "sets")["threshold"]
        scores = self._scores(x, encoded)
        allowed = calibration.label_sets(scores, np.inf if threshold is None else threshold)[:, : self.about["classes"]]
        names = self.about["labels"] or range(self.about["classes"])
        order = np.argsort(-scores, axis=1, kind="stable")
        return [
            tuple(names[i] for i in places.tolist() if i < len(own) and own[i])
            for places, own in zip(order, allowed, strict=True)
        ]

    def intervals(self, x: Any, *, encoded: bool = False) -> np.ndarray:
        """(n, 2) from and to which number the label of each sample may be, as often as for :meth:`sets`."""
        threshold = self._calibration("numbers", "intervals")["threshold"]
        half = np.inf if threshold is None else threshold
        scores = self._scores(x, encoded).astype(np.float64)
        return np.stack([scores - half, scores + half], axis=1)

    def _calibration(self, labels: str, what: str) -> Mapping[str, Any]:
        kind = self.task.kind
        if kind.labels != labels:
            raise SettingError(f"{what} are for {labels}, and the task of this model is {kind.name}")
        if self.about["calibration"] is None:
            raise SettingError("this model is not calibrated: run with validation=0.2 and coverage=0.9, and export it")
        return self.about["calibration"]


def _has_gaps(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "f" and bool(np.isnan(x).any())


def _encoding(about: Mapping[str, Any], arrays: dict[str, np.ndarray], path: Path) -> Encoding:
    """How the cells of a table become inputs: by the client's own statistics, or for G by everyone's."""
    found = {name.removeprefix("input."): arrays.pop(name) for name in list(arrays) if name.startswith("input.")}
    found = {**{name.replace("everyone.", "own."): array[None] for name, array in found.items()}, **found}
    encoding = restored(about["columns"], found, 1, path)
    if list(encoding.names) != about["features"]:
        raise SettingError(f"{path} is damaged: its columns do not give the inputs {about['features']}")
    return encoding


def _constant(algorithm: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that had a schedule in training, on which no model's shape depends."""
    if isinstance(algorithm, Algorithm):
        return about["settings"]
    known = settings_.declared(algorithms.factory(algorithm or about["algorithm"]))
    return {
        name: value
        for name, value in about["settings"].items()
        if name not in known or not may_vary(known[name].annotation) or isinstance(value, int | float)
    }


def load_model(path: str | Path, model: Any = None, algorithm: Any = None) -> TrainedModel:
    """A model written by ``pfedbred export``; a custom network or algorithm must be given, as it was to ``run``."""
    path = Path(path)
    return restored_model(*read_model(path), path, model, algorithm)


def restored_model(
    arrays: Mapping[str, np.ndarray], about: Mapping[str, Any], path: Path, model: Any = None, algorithm: Any = None
) -> TrainedModel:
    """The model of these arrays, as :func:`load_model` gives it; ``path`` is where they are from, for errors."""
    arrays, about = dict(arrays), {"calibration": None, **about}
    given = {name: arrays.pop(f"input.{name}", None) for name in ("shift", "scale", "vectors")}
    encoding = None if about["columns"] is None else _encoding(about, arrays, path)
    vocabulary = about["vocabulary"]
    text = Text(tuple(vocabulary), given["vectors"]) if vocabulary is not None else None
    if model is None and about["model"] not in models.MODELS:
        raise SettingError(f"{path} holds a custom network: give it as load_model(path, model=...) or --model")
    if algorithm is None and str(about["algorithm"]).split("+")[0] not in algorithms.ALGORITHMS:
        raise SettingError(f"{path} is of a custom algorithm: give it as load_model(path, algorithm=...)")
    shape, words = tuple(about["shape"]), Words(text.count, text.vectors) if text else None
    kind, target = tasks.get(about["task"]), None if about["target"] is None else tasks.Target(**about["target"])
    network = models.get(model or about["model"], shape, kind.outputs(about["classes"]), words, about["batch_norm"])
    network = models.with_precision(network, about["precision"])
    if about["train_only"]:
        network = models.training_only(network, about["train_only"], without_statistics(arrays), str(path))
    task = Task(network, tasks.per_sample(kind, target=target), kind, target)
    made = algorithms.make(algorithm or about["algorithm"], task, _constant(algorithm, about))
    made = with_statistics(made, task, about["batch_norm"])
    made = with_posterior(made, task, about["posterior"])
    sample = Batch(jnp.zeros((1, *shape), jnp.int32 if text else jnp.float32), kind.blank_labels(about["classes"]))
    expected = exchange(made, task, sample)
    structure = expected.global_ if about["kind"] == "global" else expected.personal
    for name, leaf in tensors.named(structure).items():
        if name not in arrays or arrays[name].shape != leaf.shape:
            raise SettingError(
                f"{path} does not fit the model {about['model']!r}: tensor {name!r} is missing or different"
            )
    params = jax.tree.unflatten(
        jax.tree.structure(structure), [jnp.asarray(arrays[name]) for name in tensors.named(structure)]
    )
    shift, scale = (None if given[name] is None else jnp.asarray(given[name]) for name in ("shift", "scale"))
    return TrainedModel(params, about, made, task, encoding, shift, scale, text)
