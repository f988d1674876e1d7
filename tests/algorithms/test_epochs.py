"""Local work in epochs, on clients of unequal size: against plain NumPy, in every executor, and as so many steps."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_reference as common
from support import numpy_reference as reference
from support import numpy_simple as simple

import pfedbred
from pfedbred import algorithms
from pfedbred.data.minibatches import permute
from pfedbred.engine import selection
from pfedbred.engine.keys import data_key
from pfedbred.settings.signatures import alternatives

federation, task = common.federation, common.task  # clients of 7, 12, 5 and 20 samples, minibatches of 3
ROUNDS, EVERYONE = 2, range(len(common.SIZES))


def minibatches(federation: pfedbred.Federation, i: int, passes: int, last: str) -> list[reference.Batch]:
    """What client i reads in so many passes: each a shuffled order of its own samples, cut into minibatches."""
    x, y = federation.train.client(i)
    found = []
    for each in range(passes):
        order = permute(
            data_key(jax.random.key(common.SEED), i), jnp.uint32(each), jnp.arange(len(y)), jnp.uint32(len(y))
        )
        rows = np.asarray(order).astype(int)
        assert sorted(rows) == list(range(len(y)))
        cut = [rows[begin : begin + common.BATCH] for begin in range(0, len(y), common.BATCH)]
        if last == "drop" and len(cut) > 1:
            cut = [each for each in cut if len(each) == common.BATCH]
        found += [(x[each], y[each]) for each in cut]
    return found


def simulate(
    federation: pfedbred.Federation,
    task: pfedbred.Task,
    name: str,
    settings: dict[str, Any],
    executor: str = "in-turn",
    **plan: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The library's initial params, G, and P as rows."""
    how = pfedbred.Plan(selection.fixed(common.FIXED), batch_size=common.BATCH, executor=executor, **plan)
    backend = pfedbred.ResidentBackend(pfedbred.make(name, task, settings), task, federation, how)
    states = backend.init([common.SEED])
    start = common.as_vector(backend.global_model(states))
    states = backend.advance(states, ROUNDS)
    personal = [common.as_vector(backend.personal_model(states, i)) for i in EVERYONE]
    return start, common.as_vector(backend.global_model(states)), np.stack(personal)


def average(uploads: list[np.ndarray]) -> np.ndarray:
    """Of the selected clients, by their training samples."""
    weights = np.array([common.SIZES[i] for i in common.FIXED], float)
    return np.average(np.stack([uploads[i] for i in common.FIXED]), axis=0, weights=weights)


@pytest.mark.parametrize("last", ["keep", pytest.param("drop", marks=pytest.mark.full)])
@pytest.mark.full
def test_ditto_in_epochs_is_its_transcription(federation, task, last):
    given = {"lam": 0.7, "alpha": 0.11, "epochs": 2, "epochs_personal": 1}
    start, global_, personal = simulate(federation, task, "ditto", given, last_batch=last)
    w, clients = start, [simple.Client(start, 0.0) for _ in EVERYONE]
    passes = [minibatches(federation, i, 3 * ROUNDS, last) for i in EVERYONE]
    for t in range(ROUNDS):
        uploads = []
        for i in EVERYONE:
            own = len(passes[i]) // (3 * ROUNDS)  # minibatches in a pass
            steps = {"lam": 0.7, "alpha": 0.11, "R": 2 * own, "R_personal": own}
            uploads.append(simple.ditto(w, clients[i], passes[i][3 * own * t : 3 * own * (t + 1)], steps))
        w = average(uploads)
    np.testing.assert_allclose(global_, w, **common.TOLERANCE)
    np.testing.assert_allclose(personal, np.stack([each.v for each in clients]), **common.TOLERANCE)


@pytest.mark.parametrize("executor", ["in-turn", "vmap"])
@pytest.mark.full
def test_mg_meta_in_epochs_is_its_transcription(federation, task, executor):
    """A step of mg-meta takes two minibatches; where a pass has an odd number, the last step begins another pass."""
    steps = {each: value for each, value in common.STEPS.items() if each != "R"}
    start, global_, personal = simulate(federation, task, "mg-meta", {**steps, "epochs": 1}, executor)
    w, clients = start, [reference.Client(start, start) for _ in EVERYONE]
    passes = [minibatches(federation, i, 2 * ROUNDS, "keep") for i in EVERYONE]
    for t in range(ROUNDS):
        uploads = []
        for i in EVERYONE:
            R = -(-(len(passes[i]) // (2 * ROUNDS)) // 2)
            settings = dataclasses.replace(reference.Settings(**common.STEPS), R=R)
            batches = passes[i][2 * R * t : 2 * R * (t + 1)]
            uploads.append(reference.client_round("mg-meta", settings, w, clients[i], batches))
        w = average(uploads)
    np.testing.assert_allclose(global_, w, **common.TOLERANCE)
    np.testing.assert_allclose(personal, np.stack([each.theta for each in clients]), **common.TOLERANCE)


@pytest.mark.full
def test_fedu_in_epochs_is_its_transcription(federation, task):
    """The server's step for a client counts the steps that this client took."""
    given = {"lam": 0.3, "alpha": 0.11, "epochs": 1}
    start, _, personal = simulate(federation, task, "fedu", given)
    models = [start for _ in EVERYONE]
    passes = [minibatches(federation, i, ROUNDS, "keep") for i in EVERYONE]
    for t in range(ROUNDS):
        steps = [len(passes[i]) // ROUNDS for i in EVERYONE]
        local = []
        for i in EVERYONE:
            w = models[i]
            for batch in passes[i][t * steps[i] : (t + 1) * steps[i]]:
                w = w - 0.11 * reference.gradient(w, batch)
            local.append(w)
        for i in common.FIXED:
            apart = sum(local[i] - local[j] for j in common.FIXED) / len(models)
            models[i] = local[i] - 0.3 * 0.11 * steps[i] * apart
    np.testing.assert_allclose(personal, np.stack(models), **common.TOLERANCE)


IN_EPOCHS = {
    "apfl": {"epochs": 1},
    "fedamp": {"epochs": 1},
    "fedavg+ft": {"epochs": 2},
    "fedbabu+ft": {"epochs": 1, "tune_epochs": 1},
    "fedem": {"epochs": 1},
    "fedper": {"epochs": 1},
    "fedprox": {"epochs": 1},
    "fedrep": {"epochs": 1, "epochs_head": 2},
    "fedu": {"epochs": 1},
    "heurfedamp": {"epochs": 1},
    "local": {"epochs": 1},
    "mime": {"epochs": 1},
    "mr-mtl": {"epochs": 1},
    "per-fedavg": {"epochs": 1},
    "pfedbayes": {"epochs": 1},
    "pfedvem": {"epochs": 1, "epochs_head": 2},
    "reptile": {"epochs": 1, "adapt_epochs": 1},
    "scaffold": {"epochs": 1},
}


# Their local work is that of another method that is here.
ALIKE = ("fedper", "fedprox", "fedu", "heurfedamp", "local", "mr-mtl", "pfedbayes", "reptile")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else pytest.mark.full) for name in IN_EPOCHS],
)
@pytest.mark.few_cases
def test_clients_side_by_side_are_clients_in_a_python_loop(federation, task, name):
    def params(executor: str) -> list[np.ndarray]:
        plan = pfedbred.Plan(selection.fixed(common.FIXED), batch_size=common.BATCH, executor=executor)
        algorithm = pfedbred.make(name, task, IN_EPOCHS[name])
        backend = pfedbred.ResidentBackend(algorithm, task, federation, plan)
        states = backend.advance(backend.init([common.SEED]), ROUNDS)
        models = [backend.global_model(states), *(backend.personal_model(states, i) for i in EVERYONE)]
        return jax.tree.leaves(jax.device_get(models))

    for ours, plain in zip(params("vmap"), params("loop"), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def equal() -> pfedbred.Federation:
    """Three clients of twelve samples."""
    rng = np.random.default_rng(0)
    samples = [[(rng.normal(size=(12, 4)), rng.integers(0, 2, 12)) for _ in range(3)] for _ in range(2)]
    return pfedbred.from_clients(*samples)


def passes_and_steps(name: str, task: pfedbred.Task) -> tuple[dict[str, int], dict[str, int]]:
    """Settings with one pass of six minibatches, two for further kinds of local work, and with as many steps."""
    one, two = (algorithms.make(name, task, {"R": R}).client.draws for R in (1, 2))
    minibatches = {"R": two - one}  # of a step
    places = alternatives(algorithms.builder(name))
    passes = {each: 1 if other == "R" else 2 for each, other in places.items()}
    return passes, {other: 6 * passes[each] // minibatches.get(other, 1) for each, other in places.items()}


@pytest.mark.parametrize(
    "name", dict.fromkeys(["mg-meta", *sorted(pfedbred.ALGORITHMS), "mg-meta+am+ft", "ditto+server"])
)
@pytest.mark.few_cases(8)
@pytest.mark.broad
def test_epochs_on_equal_clients_are_so_many_steps_to_the_bit(name, equal):
    """Six minibatches a pass, for every method; methods with two kinds of local work have two numbers of passes."""
    model = pfedbred.models.dnn((4,), 2, hidden=4, dtype=jnp.float64)
    task = pfedbred.Task(model._replace(norms=("hidden",)))  # to fedbn any params will do
    found = []
    for settings in passes_and_steps(name, task):
        plan = pfedbred.Plan(selection.uniform(2), batch_size=2)
        backend = pfedbred.ResidentBackend(pfedbred.make(name, task, settings), task, equal, plan)
        states = backend.advance(backend.init([0]), ROUNDS)
        models = [backend.global_model(states), *(backend.personal_model(states, i) for i in range(equal.clients))]
        found.append(jax.tree.leaves(jax.device_get(models)))
    for ours, other in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, other)


@pytest.mark.broad
def test_one_epoch_uses_every_sample_once_and_weighs_it_by_its_minibatch(federation, task):
    """A step so small that the params hardly move adds up the gradients of the minibatches."""
    start, _, _ = simulate(federation, task, "local", {"alpha": 1e-6, "epochs": 1})
    algorithm = pfedbred.make("local", task, {"alpha": 1e-6, "epochs": 1})
    plan = pfedbred.Plan(selection.fixed(common.FIXED), batch_size=common.BATCH)
    backend = pfedbred.ResidentBackend(algorithm, task, federation, plan)
    states = backend.advance(backend.init([common.SEED]), 1)
    for i in EVERYONE:
        moved = (start - common.as_vector(backend.personal_model(states, i))) / 1e-6
        batches = minibatches(federation, i, 1, "keep")
        np.testing.assert_allclose(
            moved, sum(reference.gradient(start, each) for each in batches), rtol=1e-3, atol=1e-4
        )


def test_epochs_and_steps_exclude_each_other():
    with pytest.raises(pfedbred.SettingError, match="epochs replaces R: give only one of them"):
        pfedbred.Experiment.from_mapping({"algorithm": "fedavg", "settings": {"R": 5, "epochs": 2}})
    settings = pfedbred.Experiment.from_mapping({"algorithm": "fedavg", "settings": {"epochs": 2}}).settings
    assert settings["epochs"] == 2
    assert "R" not in settings
    assert "epochs" not in pfedbred.Experiment.from_mapping({"algorithm": "fedavg"}).settings
