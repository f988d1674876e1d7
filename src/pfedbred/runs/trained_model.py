"""A trained model: predictions for samples, from the arrays and facts of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred import algorithms, models, tasks
from pfedbred import settings as settings_
from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.algorithms.batch_statistics import with_statistics
from pfedbred.algorithms.ensemble import Members, outputs_of_members
from pfedbred.algorithms.exchange import exchange
from pfedbred.algorithms.posterior import with_posterior
from pfedbred.data.columns import Encoding, numbers_of, restored
from pfedbred.data.federation import first_nonfinite_row
from pfedbred.data.minibatches import Batch, Inputs
from pfedbred.data.text import Text
from pfedbred.engine import calibration
from pfedbred.errors import SettingError
from pfedbred.io import tensors
from pfedbred.runs.saved_models import read_model
from pfedbred.runs.start_params import without_statistics
from pfedbred.settings.schedules import may_vary
from pfedbred.types import Array, Tree, Words


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model to use.

    Attributes:
      params: its arrays, in the structure the algorithm gives them.
      about: the facts in its file.
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

    def __repr__(self) -> str:
        """One line: whose model it is, and what made it."""
        about = self.about
        whose = f"P of client {about.get('client_name')}" if about["kind"] == "personal" else "G"
        what = f"{about['algorithm']} on {about['dataset']}, {about['model']}, round {about['round']}"
        return f"TrainedModel({whose}: {what})"

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
        ``encoded``, samples are already encoded, as in a prepared federation.
        """
        return np.asarray(self.outputs(self.params, jnp.asarray(self.samples(x, encoded=encoded))))

    def outputs(self, params: Tree, samples: Array) -> Array:
        """The outputs for samples that are numbers of the model's shape, as a JAX function of arrays."""
        inputs = Inputs(samples, self._shift, self._scale).take(slice(None))
        return self.algorithm.predict(params, inputs)

    @property
    def label_names(self) -> list[str]:
        """The names of the labels; numbers if they have none."""
        return [str(each) for each in self.about["labels"] or range(self.about["classes"])]

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

    def deviations(self, x: Any, *, encoded: bool = False) -> np.ndarray:
        """(n,) by how much the members of an ensemble differ: the standard deviation of the numbers they predict."""
        if not isinstance(self.params, Members) or self.task.kind.labels != "numbers":
            raise SettingError(
                "deviations are those of an ensemble's members that predict numbers: use posterior=ensemble"
            )
        samples = jnp.asarray(self.samples(x, encoded=encoded))
        inputs = Inputs(samples, self._shift, self._scale).take(slice(None))
        every = outputs_of_members(self.algorithm, self.params, inputs)
        return np.asarray(jax.vmap(self.task.scores)(every)).std(axis=0)

    def sets(self, x: Any, *, encoded: bool = False) -> list[tuple[Any, ...]]:
        """The labels that each sample may have, the most likely first, by name if they have names.

        They contain the true label with the frequency ``about["calibration"]["coverage"]``: over this client's samples
        if ``own`` is true, else over all clients' samples together.
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
        """(n, 2) the interval in which the label of each sample lies, with the same frequency as for :meth:`sets`."""
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


def _several(structure: Tree, count: int) -> Tree:
    """Shapes and types of this many models."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), structure)


def _constant(algorithm: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without schedules, which files of earlier versions hold, and on which no model's shape depends."""
    if isinstance(algorithm, Algorithm):
        return about["settings"]
    known = settings_.declared(algorithms.builder(algorithm or about["algorithm"]))
    return {
        name: value
        for name, value in about["settings"].items()
        if name not in known or not may_vary(known[name].annotation) or isinstance(value, int | float)
    }


def load_model(path: str | Path, model: Any = None, algorithm: Any = None) -> TrainedModel:
    """A model written by ``pfedbred export``; a custom network or algorithm must be given as to ``run``."""
    path = Path(path)
    return restored_model(*read_model(path), path, model, algorithm)


def restored_model(
    arrays: Mapping[str, np.ndarray], about: Mapping[str, Any], path: Path, model: Any = None, algorithm: Any = None
) -> TrainedModel:
    """The model of these arrays, as :func:`load_model` gives it; ``path`` is where they are from, for errors."""
    arrays, about = dict(arrays), {"calibration": None, "members": None, **about}
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
    if about["members"]:
        structure = Members(_several(structure, len(about["members"])))
        arrays = {f"models.{name}": array for name, array in arrays.items()}
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
