"""SCAFFOLD, Mime, FedEM, FedPer, FedRep and FedBABU against plain NumPy transcriptions of their papers, in float64.

As in ``test_reference``, the two sides share the initial params, the rows of each minibatch and the selection;
everything computed from these is computed twice, and agrees to 1e-10.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation
from support import numpy_reference
from support import numpy_stateful as reference
from test_reference import TOLERANCE, _slopes, as_vector

import pfedbred
from pfedbred.data.minibatches import draw_rows
from pfedbred.engine import selection
from pfedbred.engine.keys import data_key, select_key

jax.config.update("jax_enable_x64", True)

FEATURES, CLASSES, HIDDEN, BATCH, ROUNDS, SEED = 6, 3, 4, 5, 3, 11
# A pass over all local samples takes chunks of 64: a part, one and a part, two and a part, exactly one.
SIZES = (7, 70, 150, 64, 20)
FIXED = selection.fixed((2, 0, 1))  # of different sizes, and not in order
CHANGING = selection.uniform(2)
ALONE = selection.fixed([0])

# All different within a method, and large, so that every term counts.
SETTINGS: dict[str, dict[str, Any]] = {
    "fedavg": {"alpha": 0.14, "R": 5},
    "scaffold": {"alpha": 0.11, "alpha_server": 1.3, "R": 4},
    "mime": {"alpha": 0.17, "momentum": 0.7, "R": 4},
    "fedem": {"alpha": 0.4, "R": 5},
    "fedper": {"alpha": 0.19, "R": 4},
    "fedrep": {"alpha": 0.21, "R_head": 3, "R": 5},
    "fedbabu": {"alpha": 0.16, "R": 4, "tune_steps": 6},
}
NAMES = tuple(name for name in SETTINGS if name != "fedavg")
NETWORKS = ("fedper", "fedrep", "fedbabu", "pfedvem")
COMPONENTS = 4  # not the number of classes
LONGEST = 60  # minibatches; no test reads more, fine-tuning included


@pytest.fixture(scope="module")
def federation() -> pfedbred.Federation:
    return small_federation(SIZES, FEATURES, CLASSES)


def single(federation: pfedbred.Federation, i: int) -> pfedbred.Federation:
    """One of the clients, alone."""
    return pfedbred.from_clients([federation.train.client(i)], [federation.test.client(i)])


def layers(params: Any) -> np.ndarray:
    """The network's body, then its head, in the reference's order."""
    parts = [(np.asarray(params[name]["weight"]), np.asarray(params[name]["bias"])) for name in ("hidden", "output")]
    return np.concatenate([numpy_reference.pack(*part) for part in parts])


def stacked(components: Any) -> np.ndarray:
    """The components of a mixture as rows."""
    weight, bias = (np.asarray(components["output"][name]) for name in ("weight", "bias"))
    return np.stack([numpy_reference.pack(*each) for each in zip(weight, bias, strict=True)])


@functools.cache
def draw_all(clients: int, batch_size: int) -> Any:
    """Row numbers (client, minibatch, place) for the engine's key of each client, compiled once."""

    def draw(key: jax.Array, i: jax.Array, offset: jax.Array, size: jax.Array) -> jax.Array:
        return draw_rows(data_key(key, i), offset, size, jnp.uint32(0), LONGEST, batch_size) - offset

    every = jax.jit(jax.vmap(draw, in_axes=(None, 0, 0, 0)))
    return lambda key, offsets, sizes: every(key, jnp.arange(clients), offsets, sizes)


@functools.cache
def choose_all(select: selection.Select) -> Any:
    """Whose uploads the engine averages in each of a few rounds."""
    return jax.jit(lambda key, sizes: jnp.stack([select(select_key(key, t), sizes) for t in range(5)]))


def softmax(z: Any) -> np.ndarray:
    p = np.exp(np.asarray(z) - np.max(z, axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


class Run:
    """One experiment in the library, and what the reference needs to repeat it."""

    def __init__(
        self,
        federation: pfedbred.Federation,
        name: str,
        *,
        select: selection.Select | None = None,
        participation: str = "all",
        weights: str = "unbounded",  # by samples; that a large client's share is bounded is tested elsewhere
        batch_size: int = BATCH,
        **settings: Any,
    ) -> None:
        self.federation, self.name, self.rounds, self.batch_size = federation, name, 0, batch_size
        self.select, self.participation, self.weights = select or FIXED, participation, weights
        self.settings = SETTINGS.get(name, {}) | settings
        given = {"M": COMPONENTS} | self.settings if name == "fedem" else self.settings
        if name == "fedem":
            self.settings = {key: self.settings[key] for key in SETTINGS[name]}
        if name in NETWORKS:
            model = pfedbred.models.dnn((FEATURES,), CLASSES, hidden=HIDDEN, dtype=jnp.float64)
        else:
            model = pfedbred.models.mclr((FEATURES,), CLASSES, dtype=jnp.float64)
        task = pfedbred.Task(model)
        self.algorithm = pfedbred.make(name, task, given)
        plan = pfedbred.Plan(
            self.select, participation=participation, weights=weights, batch_size=batch_size, executor="in-turn"
        )
        self.backend = pfedbred.ResidentBackend(self.algorithm, task, federation, plan)
        with jax.disable_jit():  # compiling the initial state for each test would take as long as the rest
            self.states = self.backend.init([SEED])
        self.start = self.vector(self.shared())
        self.predict = jax.jit(self.algorithm.predict)

    def personal(self, i: int) -> Any:
        """P of client i."""
        return self.backend.personal_model(self.states, i)

    def shared(self) -> Any:
        """G."""
        return self.backend.global_model(self.states)

    def vector(self, model: Any) -> Any:
        """The library's params in the reference's form: a vector, or the components and their weights."""
        if self.name == "fedem":
            return stacked(model.components), softmax(model.log_weights)
        return layers(model) if self.name in NETWORKS else as_vector(model)

    def advance(self, rounds: int) -> None:
        self.states = self.backend.advance(self.states, rounds=rounds)
        self.rounds += rounds

    def world(self) -> reference.World:
        """The same federation for the reference, before the first round."""
        train, key, clients = self.federation.train, jax.random.key(SEED), range(self.federation.clients)
        offsets, sizes = jnp.asarray(train.offsets)[:-1], jnp.asarray(train.sizes)
        rows = np.asarray(draw_all(len(clients), self.batch_size)(key, offsets, sizes))
        chosen = np.asarray(choose_all(self.select)(key, sizes))[: self.rounds].tolist()
        made = [reference.Client(train.client(i), list(rows[i])) for i in clients]
        return reference.World(made, chosen, self.participation, self.weights)

    def check(self) -> None:
        """Both models of every client, after the rounds so far."""
        clients = range(self.federation.clients)
        mine = self.vector(self.shared())
        personal = [self.vector(self.personal(i)) for i in clients]
        if self.name == "fedem":
            components, pi = reference.fedem(self.world(), self.start[0], **self.settings)
            assert np.abs(components - self.start[0]).max() > 0.01
            assert np.abs(pi - 1 / len(components)).max() > 0.01
            expected: Any = (components, np.full(len(components), 1 / len(components)))
            expected_personal: Any = [(components, pi[i]) for i in clients]
            x = self.federation.test.x
            models = [(self.personal(i), pi[i]) for i in clients]
            for model, weights in [*models, (self.shared(), expected[1])]:
                shown = reference.mixture_prediction(components, weights, x)
                agree(softmax(self.predict(model, x)), shown, "prediction")
        elif self.name in NETWORKS:
            start = np.split(self.start, [HIDDEN * (FEATURES + 1)])
            global_, networks = getattr(reference, self.name)(self.world(), *start, **self.settings)
            expected, expected_personal = np.concatenate(global_), [np.concatenate(each) for each in networks]
            assert np.abs(expected - self.start).max() > 0.01
        else:
            expected, expected_personal = getattr(reference, self.name)(self.world(), self.start, **self.settings)
            assert np.abs(expected - self.start).max() > 0.01
        agree(mine, expected, "global model")
        for i in clients:
            agree(personal[i], expected_personal[i], f"personal model of client {i}")


def agree(mine: Any, expected: Any, what: str) -> None:
    for left, right in zip(jax.tree.leaves(mine), jax.tree.leaves(expected), strict=True):
        assert np.all(np.isfinite(right))
        np.testing.assert_allclose(left, right, **TOLERANCE, err_msg=what)


# The library against the reference -------------------------------------------------------------------------


# SCAFFOLD and FedEM are below, with a selection that changes; FedPer trains as FedRep does, both parts at once.
REPRESENTATIVES = [("mime", "sample"), ("fedrep", "sample"), ("fedbabu", "all")]


@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "participation"),
    [
        pytest.param(*case, marks=[] if case in REPRESENTATIVES else [pytest.mark.full])
        for case in itertools.product(NAMES, ("all", "sample"))
    ],
)
def test_three_rounds_agree(name, participation, federation):
    run = Run(federation, name, participation=participation)
    run.advance(ROUNDS)
    run.check()


CHANGES = (
    ("scaffold", "sample"),
    ("fedem", "sample"),
    *(
        pytest.param(*case, marks=pytest.mark.full)
        for case in (("scaffold", "all"), ("mime", "sample"), ("fedem", "all"), ("fedper", "all"))
    ),
)


@pytest.mark.broad
@pytest.mark.parametrize(("name", "participation"), CHANGES)
def test_a_selection_that_changes_agrees(name, participation, federation):
    """What a client keeps from rounds in which it was selected, only trained, or neither, matters later.

    Uploads have equal weights here, as in the papers of SCAFFOLD and Mime.
    """
    run = Run(federation, name, select=CHANGING, participation=participation, weights="uniform")
    for rounds in (2, 3):
        run.advance(rounds)
        run.check()
    chosen = [set(each) for each in run.world().chosen_by_round]
    clients = range(len(SIZES))
    away = [(i, t) for i in clients for t in range(1, 4) if i in chosen[t - 1] and i not in chosen[t]]
    assert any(i in each for i, t in away for each in chosen[t + 1 :]), "choose another seed"


# Exact reductions ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_scaffold_with_one_client_is_sgd(federation):
    """Then c_i = c, and the two cancel; fedavg with one client is SGD as well."""
    alone, settings = single(federation, 1), {"alpha": 0.11, "R": 4}
    scaffold = Run(alone, "scaffold", select=ALONE, alpha_server=1.0, **settings)
    fedavg = Run(alone, "fedavg", select=ALONE, **settings)
    agree(scaffold.start, fedavg.start, "start")
    for run in (scaffold, fedavg):
        run.advance(ROUNDS)
    w = scaffold.start
    for batch in scaffold.world().clients[0].next(ROUNDS * settings["R"]):
        w = w - settings["alpha"] * numpy_reference.gradient(w, batch)
    for run in (scaffold, fedavg):
        agree(run.vector(run.shared()), w, run.name)


@pytest.mark.full
def test_fedem_with_one_component_is_fedavg(federation):
    """In its component and in what it predicts, for everyone."""
    settings = {"alpha": 0.14, "R": 5}
    fedem = Run(federation, "fedem", M=1, **settings)
    fedavg = Run(federation, "fedavg", **settings)
    component = jax.tree.map(lambda leaf: jnp.array(leaf[:, 0]), fedem.states.server.model)
    fedavg.states = fedavg.states._replace(server=fedavg.states.server._replace(model=component))
    for run in (fedem, fedavg):
        run.advance(ROUNDS)
    w = fedavg.shared()
    agree(as_vector(w), reference.fedavg(fedem.world(), fedem.start[0][0], **settings), "fedavg")
    agree(stacked(fedem.shared().components)[0], as_vector(w), "component")
    x = federation.test.x
    expected = softmax(fedavg.predict(w, x))
    for model in (*map(fedem.personal, range(len(SIZES))), fedem.shared()):
        agree(softmax(fedem.predict(model, x)), expected, "prediction")


@pytest.mark.full
def test_mime_without_momentum_on_one_client_s_whole_data_is_gradient_descent(federation):
    """Then the gradient at w on the minibatch is c, and the two cancel."""
    size = SIZES[1]
    run = Run(single(federation, 1), "mime", select=ALONE, batch_size=size, momentum=0.0)
    run.advance(ROUNDS)
    w = run.start
    for _ in range(ROUNDS * run.settings["R"]):
        w = w - run.settings["alpha"] * numpy_reference.gradient(w, federation.train.client(1))
    agree(run.vector(run.shared()), w, "gradient descent")


# The reference against itself ------------------------------------------------------------------------------


def test_reference_gradients_are_those_of_their_losses(federation):
    rng = np.random.default_rng(1)
    batch = federation.train.client(0)
    body, head = rng.normal(size=HIDDEN * (FEATURES + 1)), rng.normal(size=CLASSES * (HIDDEN + 1))
    close = {"rtol": 0, "atol": 1e-8}
    slopes = _slopes(lambda u: reference.mlp_loss(u, head, batch), body)
    np.testing.assert_allclose(reference.body_gradient(body, head, batch), slopes, **close)
    slopes = _slopes(lambda u: reference.mlp_loss(body, u, batch), head)
    np.testing.assert_allclose(reference.head_gradient(body, head, batch), slopes, **close)

    v, q, (x, y) = rng.normal(size=CLASSES * (FEATURES + 1)), rng.uniform(size=SIZES[0]), batch

    def weighted(u: np.ndarray) -> float:
        return float(np.mean(-q * np.log(reference.probabilities(u, x)[np.arange(len(y)), y])))

    np.testing.assert_allclose(reference.weighted_gradient(v, batch, q), _slopes(weighted, v), **close)
    np.testing.assert_allclose(reference.probabilities(v, x).sum(axis=1), 1.0, rtol=0, atol=1e-12)
