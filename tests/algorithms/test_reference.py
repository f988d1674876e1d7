"""The library against a plain NumPy transcription of Algorithm 1, in float64: the same models to 1e-10.

The two share what is random: the initial params, the rows of each minibatch, and whose uploads are averaged.
Everything computed from these is computed twice.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import numpy_reference as reference

import pfedbred
from pfedbred.data.minibatches import draw_rows
from pfedbred.engine import selection
from pfedbred.engine.keys import data_key, select_key

jax.config.update("jax_enable_x64", True)

FEATURES, CLASSES, BATCH, ROUNDS, SEED = 6, 3, 3, 3, 11
SIZES = (7, 12, 5, 20)  # mostly not multiples of the batch size: minibatches reach from one pass into the next
FIXED = (3, 0)  # of different sizes, and not in order

# All different, so that swapping two would show, and large, so that every term counts.
STEPS = {"lam": 2.0, "alpha": 0.11, "alpha_m": 0.17, "eta_a": 0.13, "eta": 0.3, "K": 3, "R": 4}
USED = {
    "fedavg": ("alpha", "R"),
    "pfedme": ("lam", "alpha", "alpha_m", "K", "R"),
    "fo": ("lam", "alpha", "alpha_m", "eta_a", "K", "R"),
    "mfo": ("lam", "alpha", "alpha_m", "eta", "K", "R"),
    "mg": tuple(STEPS),
    "mg-meta": tuple(STEPS),
    "mg-meta-literal": tuple(STEPS),
}
LONGEST = 2 * STEPS["R"] * 5  # minibatches: two for each local step, of at most five rounds
TOLERANCE = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(scope="module")
def federation() -> pfedbred.Federation:
    """Clients that differ in size, in where their samples lie, and in which labels they hold."""
    rng = np.random.default_rng(0)

    def samples(i: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(loc=0.5 * i - 0.7, scale=1 + 0.3 * i, size=(count, FEATURES))
        preferences = np.roll([0.6, 0.3, 0.1], i)
        return x, rng.choice(CLASSES, count, p=preferences)

    train = [samples(i, size) for i, size in enumerate(SIZES)]
    test = [samples(i, 4) for i in range(len(SIZES))]
    made = pfedbred.from_clients(train, test)
    assert made.classes == CLASSES
    return made


@pytest.fixture(scope="module")
def task() -> pfedbred.Task:
    return pfedbred.Task(pfedbred.models.mclr((FEATURES,), CLASSES, dtype=jnp.float64))


def as_vector(params: Any) -> np.ndarray:
    """The library's params in the reference's order."""
    layer = params["output"]
    assert layer["weight"].dtype == jnp.float64
    return reference.pack(np.asarray(layer["weight"]), np.asarray(layer["bias"]))


@functools.partial(jax.jit, static_argnames="count")
def draw_all(key: jax.Array, offsets: jax.Array, sizes: jax.Array, count: int) -> jax.Array:
    """Row numbers (client, minibatch, place), with the engine's key for each client."""

    def draw(i: jax.Array) -> jax.Array:
        return draw_rows(data_key(key, i), offsets[i], sizes[i], jnp.uint32(0), count, BATCH)

    return jax.vmap(draw)(jnp.arange(len(SIZES)))


def sequences(federation: pfedbred.Federation, seed: int) -> list[list[reference.Batch]]:
    """The minibatches that each client reads, as many as any test needs.

    All are drawn at once, so the engine must also continue in each round where it stopped in the last.
    """
    train = federation.train
    drawn = draw_all(jax.random.key(seed), jnp.asarray(train.offsets), jnp.asarray(train.sizes), LONGEST)
    result = []
    for i, rows in enumerate(np.asarray(drawn)):
        own = np.arange(train.offsets[i], train.offsets[i + 1])
        for start in range(0, rows.size - len(own) + 1, len(own)):  # shuffled passes over the client's own data
            assert np.array_equal(np.sort(rows.ravel()[start : start + len(own)]), own)
        result.append([(train.x[each], train.y[each]) for each in rows])
    return result


def chosen_by_round(select: selection.Select, seed: int, rounds: int) -> list[list[int]]:
    """Whose uploads the engine averages in each round."""
    key, sizes = jax.random.key(seed), jnp.asarray(SIZES)
    return [np.asarray(select(select_key(key, t), sizes)).tolist() for t in range(rounds)]


class Pair:
    """One experiment, set up in the library and for the reference."""

    def __init__(
        self,
        federation: pfedbred.Federation,
        task: pfedbred.Task,
        name: str,
        *,
        select: selection.Select | None = None,
        participation: str = "all",
        beta: float = 1.0,
        executor: str = "in-turn",
        seeds: tuple[int, ...] = (SEED,),
        settings: dict[str, Any] | None = None,
        expected: dict[str, Any] | None = None,
    ) -> None:
        """``settings`` go to the library alone; ``expected`` is their meaning for the reference."""
        self.name, self.participation, self.federation, self.seeds = name, participation, federation, seeds
        self.select = select or selection.fixed(FIXED)
        self.settings = reference.Settings(**STEPS, beta=beta, **(expected or {}))
        given = {each: STEPS[each] for each in USED[name]} | {"beta": beta} | (settings or {})
        algorithm = pfedbred.make(name, task, given)
        plan = pfedbred.Plan(self.select, participation=participation, batch_size=BATCH, executor=executor)
        self.backend = pfedbred.ResidentBackend(algorithm, task, federation, plan)
        with jax.disable_jit():  # compiling the initial state for each test would take as long as the rest
            self.states = self.backend.init(list(seeds))
        self.start = [as_vector(self.backend.global_model(self.states, s)) for s in range(len(seeds))]
        self.rounds = 0

    def advance(self, rounds: int) -> None:
        self.states = self.backend.advance(self.states, rounds=rounds)
        self.rounds += rounds

    def library(self, position: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The library's global model, and its personal models as rows."""
        personal = [as_vector(self.backend.personal_model(self.states, i, position)) for i in range(len(SIZES))]
        return as_vector(self.backend.global_model(self.states, position)), np.stack(personal)

    def reference(self, position: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The same by the reference, from the start."""
        seed = self.seeds[position]
        global_, personal = reference.run(
            self.name,
            self.settings,
            self.start[position],
            sequences(self.federation, seed),
            SIZES,
            chosen_by_round(self.select, seed, self.rounds),
            self.participation,
        )
        return global_, np.stack(personal)

    def check(self, position: int = 0) -> None:
        global_, personal = self.library(position)
        expected_global, expected_personal = self.reference(position)
        assert np.all(np.isfinite(expected_personal))
        assert np.abs(expected_global - self.start[position]).max() > 0.01  # something was trained
        np.testing.assert_allclose(global_, expected_global, **TOLERANCE, err_msg="global model")
        for i, (mine, expected) in enumerate(zip(personal, expected_personal, strict=True)):
            np.testing.assert_allclose(mine, expected, **TOLERANCE, err_msg=f"personal model of client {i}")


# The library against the reference -------------------------------------------------------------------------


# The others' own code is the mean strategy, which the reductions tie to these.
REPRESENTATIVES = [("fedavg", "all", 2.0), ("pfedme", "sample", 1.0), ("fo", "all", 1.0), ("mg", "sample", 2.0)]


@pytest.mark.parametrize(
    ("name", "participation", "beta"),
    [
        pytest.param(*case, marks=[] if case in REPRESENTATIVES else [pytest.mark.full])
        for case in itertools.product(reference.NAMES, ("all", "sample"), (1.0, 2.0))
    ],
)
@pytest.mark.broad
def test_three_rounds_agree(name, participation, beta, federation, task):
    pair = Pair(federation, task, name, participation=participation, beta=beta)
    pair.advance(ROUNDS)
    pair.check()


SIGMA = np.random.default_rng(4).uniform(0.5, 3.0, CLASSES * (FEATURES + 1))
_weight, _bias = reference.unpack(SIGMA, FEATURES)
# The library's vector follows jax.flatten_util.ravel_pytree, which sorts by name: the biases come first.
SIGMA_IN_LIBRARY = np.concatenate([_bias, _weight.ravel()])

PRIORS = [
    pytest.param({"sigma": SIGMA_IN_LIBRARY}, {"sigma": SIGMA}, id="diagonal", marks=pytest.mark.full),
    pytest.param({"prior": "bernoulli"}, {"prior": "bernoulli"}, id="bernoulli", marks=pytest.mark.full),
    pytest.param({"prior": "poisson"}, {"prior": "poisson"}, id="poisson", marks=pytest.mark.full),
    pytest.param({"prior": "exponential"}, {"prior": "exponential"}, id="exponential", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("settings", "expected"), PRIORS)
def test_every_prior_agrees(settings, expected, federation, task):
    pair = Pair(federation, task, "mg", settings=settings, expected=expected)
    pair.advance(ROUNDS)
    pair.check()


@pytest.mark.broad
@pytest.mark.parametrize("participation", [pytest.param("all", marks=pytest.mark.full), "sample"])
@pytest.mark.full
def test_a_selection_that_changes_agrees_after_every_round(participation, federation, task):
    """With ``sample``, clients then differ in how often they have trained and how far they have read."""
    select = selection.uniform(2)
    pair = Pair(federation, task, "mg-meta", select=select, participation=participation)
    chosen = chosen_by_round(select, SEED, 5)
    assert len({tuple(sorted(each)) for each in chosen}) > 1, "choose another seed"
    for _ in chosen:
        pair.advance(1)
        pair.check()


@pytest.mark.full
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_the_other_executors_agree_for_every_seed(executor, federation, task):
    select = selection.uniform(2)
    pair = Pair(federation, task, "mg", select=select, executor=executor, seeds=(SEED, 5), beta=2.0)
    pair.advance(ROUNDS)
    assert np.abs(pair.start[0] - pair.start[1]).max() > 0.1
    for position in range(2):
        pair.check(position)


# The reference against itself ------------------------------------------------------------------------------


def _slopes(function, at: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Central differences in each entry."""
    return np.array([(function(at + e) - function(at - e)) / (2 * step) for e in step * np.eye(len(at))])


def test_reference_gradient_is_that_of_its_loss(federation):
    rng = np.random.default_rng(1)
    v = rng.normal(size=CLASSES * (FEATURES + 1))
    batch = federation.train.client(1)
    slopes = _slopes(lambda u: reference.loss(u, batch), v)
    np.testing.assert_allclose(reference.gradient(v, batch), slopes, rtol=0, atol=1e-8)


_EXPECTED = [pytest.param(each.values[1], id=each.id) for each in PRIORS]


@pytest.mark.parametrize("expected", [pytest.param({}, id="spherical"), *_EXPECTED])
def test_reference_regulariser_gradients_are_those_of_the_divergence(expected):
    """And the divergence is one: zero where the two are equal, positive where not."""
    rng = np.random.default_rng(2)
    v, m = rng.normal(size=(2, CLASSES * (FEATURES + 1)))
    settings = reference.Settings(**STEPS, **expected)
    in_personal = _slopes(lambda u: reference.regulariser(settings, u, m), v)
    in_mean = _slopes(lambda u: reference.regulariser(settings, v, u), m)
    np.testing.assert_allclose(reference.regulariser_in_personal(settings, v, m), in_personal, rtol=0, atol=1e-7)
    np.testing.assert_allclose(reference.regulariser_in_mean(settings, v, m), in_mean, rtol=0, atol=1e-7)
    assert reference.regulariser(settings, v, m) > 0
    assert abs(reference.regulariser(settings, v, v)) < 1e-12


def test_algorithms_differ_in_the_reference(federation):
    """Otherwise agreement would not tell which of them the library runs."""
    settings = reference.Settings(**STEPS)
    start = np.random.default_rng(3).normal(size=CLASSES * (FEATURES + 1))
    batches = sequences(federation, SEED)
    results = [
        reference.run(name, settings, start, batches, SIZES, [FIXED] * ROUNDS, "all")[0] for name in reference.NAMES
    ]
    for a in range(len(results)):
        for b in range(a):
            assert np.abs(results[a] - results[b]).max() > 1e-4, (reference.NAMES[a], reference.NAMES[b])
