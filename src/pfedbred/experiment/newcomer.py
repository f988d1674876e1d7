"""A personal model for a client that joins after training: from the global model and its own samples alone.

The client does what a new client would do in a round of the method, with a server that sends G and learns nothing from
it; no data of other clients is needed. FedPer's client trains its own head from the initial one, FedEM's estimates its
mixture weights by EM, and FedAMP's trains its own model near the mean of all. What a server keeps beside G (control
variates, momenta, learned strengths, deviations) is not in the file of a model, and starts from its initial value.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred import tasks
from pfedbred.algorithms.base import Algorithm, ServerState
from pfedbred.data.federation import Federation, Split
from pfedbred.data.labels import named_as
from pfedbred.engine.newcomers import frozen
from pfedbred.engine.plan import Plan
from pfedbred.engine.resident import ResidentBackend
from pfedbred.engine.selection import fixed
from pfedbred.errors import SettingError, nearest
from pfedbred.io import tensors
from pfedbred.runs import layout, model_file
from pfedbred.runs.saved_models import export
from pfedbred.runs.trained_model import TrainedModel, load_model
from pfedbred.settings.values import Constraint, Count, check
from pfedbred.types import Tree

BatchSize = Annotated[int, Constraint("a whole number from 1 to 1000000", lambda value: 1 <= value <= 10**6)]


def adapt(
    model: str | Path,
    x: Any,
    y: Sequence[Any] | np.ndarray,
    *,
    rounds: int = 5,
    batch_size: int = 20,
    name: str = "new",
    out: str | Path | None = None,
    encoded: bool = False,
    network: Any = None,
    algorithm: Any = None,
) -> TrainedModel:
    """Gives a new client its personal model.

    Args:
      model: an exported global model, or the folder of a run.
      x: the client's samples, as :meth:`TrainedModel.predict` takes them.
      y: their labels, by name if the model's labels have names; or numbers.
      rounds: of local training.
      batch_size: samples in a minibatch.
      name: of the client.
      out: file for the model, which ``pfedbred predict`` reads.
      encoded: whether samples are already encoded, as in a prepared federation.
      network: the network of a custom model, as given to ``run``.
      algorithm: a custom algorithm, as given to ``run``.

    Returns:
      The personal model.
    """
    check("rounds", rounds, Count)
    check("batch_size", batch_size, BatchSize)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(model)
        if layout.finished(path):
            path = export(path, out=Path(folder) / "global.safetensors")
        given = load_model(path, network, algorithm)
        if given.about["kind"] != "global":
            raise SettingError(f"{path} is a personal model: a new client starts from a global one")
        personal = _personal(given, given.samples(x, encoded=encoded), _labels(given, y), rounds, batch_size)
        made = Path(out) if out else Path(folder) / "personal.safetensors"
        _write(path, given, personal, made, name)
        return load_model(made, network, algorithm)


def _personal(given: TrainedModel, x: np.ndarray, y: np.ndarray, rounds: int, batch_size: int) -> Tree:
    """P after ``rounds`` rounds of the client alone."""
    if len(x) != len(y) or not len(x):
        raise SettingError(f"there are {len(x)} samples and {len(y)} labels: give one label for each sample")
    split = Split(x, y, np.array([0, len(x)]))
    shift, scale = (None if each is None else np.asarray(each) for each in given.normalisation)
    about = given.about
    data = Federation("new", split, split, about["classes"], shift, scale, given.text, task=about["task"])
    plan = Plan(fixed([0]), batch_size=batch_size)
    backend = ResidentBackend(frozen(given.algorithm), given.task, data, plan)
    servers = backend.servers(backend.init([0]))
    like = jax.tree.map(lambda leaf: leaf[0], servers.server)
    server = _with_model(given.algorithm, like, given.params, about["algorithm"])
    states = backend.init_from(servers._replace(server=jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], server)))
    return backend.personal_model(backend.advance(states, rounds), 0)


def _with_model(algorithm: Algorithm, state: ServerState, model: Tree, name: str) -> ServerState:
    """A server's state whose G is that model."""
    found = algorithm.server.adopt(state, model)
    if _alike(found, state):
        found = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), found, state)
        pairs = zip(*map(jax.tree.leaves, (algorithm.server.model(found), model)), strict=True)
        if all(np.array_equal(*pair) for pair in pairs):
            return found
    raise SettingError(f"{name} does not say how its server starts from a global model: see Server.adopt")


def _alike(one: Tree, other: Tree) -> bool:
    """Whether two trees have the same structure and shapes."""
    shapes: Any = [jax.tree.map(lambda leaf: tuple(leaf.shape), tree) for tree in (one, other)]
    return bool(shapes[0] == shapes[1])


def _labels(given: TrainedModel, y: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Labels as the data holds them."""
    kind = tasks.get(given.about["task"]).labels
    if kind == "numbers":
        try:
            return np.asarray(y, np.float32)
        except ValueError:
            raise SettingError("the labels must be numbers, as those that the model was trained on") from None
    if kind == "sets":
        raise SettingError("a model for several labels at a time cannot be adapted yet")
    known = {label: i for i, label in enumerate(given.label_names)}
    labels = [named_as(str(each), list(known)) for each in y]
    for each in labels:
        if each not in known:
            raise SettingError(f"the model has no label {each!r}{nearest(each, list(known))}")
    return np.array([known[each] for each in labels], np.int32)


def _write(source: Path, given: TrainedModel, personal: Tree, out: Path, name: str) -> None:
    """The model's file, with the client's params instead of the global ones; inputs are encoded as before."""
    file, about = model_file.read(source, model_file.EXPORTED, "")
    old = tensors.named(given.params)
    kept = {each: file.get_tensor(each) for each in file.keys() if each not in old}  # noqa: SIM118  (not a mapping)
    new = {each: np.asarray(leaf) for each, leaf in tensors.named(personal).items()}
    facts = {**about, "kind": "personal", "client": 0, "client_name": name, "calibration": None}
    facts.pop("chosen_on", None)
    model_file.save(out, kept | new, facts)
