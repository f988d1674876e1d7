"""FedAMP, HeurFedAMP, FedU, ``+ft`` and ``+am`` against plain NumPy transcriptions, to 1e-10 in float64.

Then what they reduce to, and that no test sample ever reaches a model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation
from support import numpy_mixing as mixing
from support import numpy_reference as reference
from test_reference import (
    BATCH,
    CLASSES,
    FEATURES,
    FIXED,
    ROUNDS,
    SEED,
    SIZES,
    TOLERANCE,
    USED,
    _slopes,
    as_vector,
    chosen_by_round,
    sequences,
)
from test_reference import STEPS as ALGORITHM_1

import pfedbred
from pfedbred.algorithms.base import Algorithm, Client, Server
from pfedbred.engine import selection
from pfedbred.settings.signatures import declared

TASK = pfedbred.Task(pfedbred.models.mclr((FEATURES,), CLASSES, dtype=jnp.float64))
FEDERATION = small_federation(SIZES, FEATURES, CLASSES)
SELECTIONS = {"fixed": selection.fixed(FIXED), "changing": selection.uniform(2)}
EVERYONE = selection.fixed(range(len(SIZES)))

# All different within a method. FedAMP's sigma is close to the squared distances that occur, so that its weights
# differ, and alpha_k is below sigma / N, as the paper requires.
SETTINGS: dict[str, dict[str, Any]] = {
    "fedamp": {"lam": 0.35, "sigma": 1.3, "alpha_k": 0.22, "alpha": 0.17, "R": 4},
    "heurfedamp": {"lam": 0.9, "sigma": 2.5, "self_weight": 0.3, "alpha": 0.17, "R": 4},
    "fedu": {"lam": 1.7, "alpha": 0.13, "R": 4},
    "scaffold": {"alpha": 0.11, "alpha_server": 0.7, "R": 4},
    "per-fedavg": {"alpha": 0.13, "alpha_m": 0.17, "R": 4},
    "fedem": {"alpha": 0.4, "M": 3, "R": 3},
    **{name: {each: ALGORITHM_1[each] for each in USED[name]} for name in reference.NAMES},
}
SETTINGS["pfedme"]["beta"] = 0.7  # +am then comes on top: the product of the two
FT_ALPHA, AM_BETA = 0.31, 1.6


@pytest.fixture(scope="module", autouse=True)
def _compile_quickly():
    """Most of the time goes into compiling programs that then run for milliseconds."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Library:
    """One experiment in the library."""

    def __init__(
        self,
        name: str | Algorithm,
        settings: dict[str, Any],
        *,
        select: selection.Select = SELECTIONS["changing"],
        participation: str = "all",
        rounds: int = ROUNDS,
        federation: pfedbred.Federation = FEDERATION,
        task: pfedbred.Task = TASK,
    ) -> None:
        plan = pfedbred.Plan(select, participation=participation, batch_size=BATCH)
        algorithm = pfedbred.make(name, task, settings) if isinstance(name, str) else name
        self.backend = pfedbred.ResidentBackend(algorithm, task, federation, plan)
        with jax.disable_jit(isinstance(name, str)):  # op by op is faster, but not for all algorithms together
            self.states = jax.tree.map(jnp.copy, self.backend.init([SEED]))  # to be donated, none twice
        self.start = self.backend.global_model(self.states)
        self.states = self.backend.advance(self.states, rounds)
        self.global_ = self.backend.global_model(self.states)
        self.personal = [self.backend.personal_model(self.states, i) for i in range(federation.clients)]


_LIBRARY: dict[Any, Library] = {}


def library(name: str, settings: dict[str, Any], how: str = "changing", participation: str = "all") -> Library:
    """Remembered: several tests look at the same run, and most of the time is compiling."""
    key = (name, tuple(sorted(settings.items())), how, participation)
    if key not in _LIBRARY:
        select = EVERYONE if how == "everyone" else SELECTIONS[how]
        _LIBRARY[key] = Library(name, settings, select=select, participation=participation)
    return _LIBRARY[key]


def wrapped(name: str) -> dict[str, Any]:
    """The settings of a base and its wrappers."""
    base, *suffixes = name.split("+")
    given = dict(SETTINGS[base])
    if "ft" in suffixes:
        given["ft_alpha"] = FT_ALPHA
    if "am" in suffixes:
        given["am_beta"] = 2.0 if base == "mg-meta" else AM_BETA
    return given


def reference_run(settings: dict[str, Any], how: str, participation: str) -> mixing.Run:
    known = {key: value for key, value in settings.items() if key in mixing.Settings.__dataclass_fields__}
    return mixing.Run(
        mixing.Settings(**{"alpha": 0.0, "R": 0, **known}),
        sequences(FEDERATION, SEED),
        [FEDERATION.train.client(i) for i in range(len(SIZES))],
        chosen_by_round(SELECTIONS[how], SEED, ROUNDS),
        participation,
    )


def expected_vectors(name: str, start: np.ndarray, how: str, participation: str) -> tuple[np.ndarray, list[np.ndarray]]:
    base, *_ = name.split("+")
    given = wrapped(name)
    run = reference_run(given, how, participation)
    paper = None
    if base in reference.NAMES:
        beta = given.get("beta", 1.0) * given.get("am_beta", 1.0)
        paper = reference.Settings(**ALGORITHM_1, beta=beta)
    return mixing.run_vectors(base, run, start, given.get("ft_alpha"), paper)


def check(name: str, how: str, participation: str) -> None:
    result = library(name, wrapped(name), how, participation)
    start = as_vector(result.start)
    global_, personal = expected_vectors(name, start, how, participation)
    assert np.abs(global_ - start).max() > 0.01  # something was trained
    np.testing.assert_allclose(as_vector(result.global_), global_, **TOLERANCE, err_msg="global model")
    for i, (mine, wanted) in enumerate(zip(result.personal, personal, strict=True)):
        np.testing.assert_allclose(as_vector(mine), wanted, **TOLERANCE, err_msg=f"personal model of client {i}")


# The library against the references ------------------------------------------------------------------------


@pytest.mark.broad
@pytest.mark.parametrize(
    ("how", "participation"),
    [
        ("changing", "sample"),
        pytest.param("changing", "all", marks=pytest.mark.full),
        pytest.param("fixed", "sample", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("name", ["fedamp", pytest.param("heurfedamp", marks=pytest.mark.full), "fedu"])
def test_three_rounds_agree(name, how, participation):
    check(name, how, participation)


WRAPPED = [  # each once, since a wrapper does not know who takes part
    ("pfedme+ft+am", "all"),
    *(
        pytest.param(*case, marks=pytest.mark.full)
        for case in (
            ("pfedme+am", "sample"),
            ("mg-meta+am", "all"),
            ("scaffold+am", "all"),
            ("fedamp+am", "all"),
            ("fedu+am", "sample"),
            ("fedavg+ft", "sample"),
            ("per-fedavg+ft", "all"),
            ("fedamp+ft", "all"),
            ("fedu+ft", "all"),
        )
    ),
]


@pytest.mark.parametrize(("name", "participation"), WRAPPED)
def test_wrappers_agree(name, participation):
    check(name, "changing", participation)


@pytest.mark.full
@pytest.mark.parametrize(("suffix", "participation"), [("+ft", "all"), ("+am", "sample")])
def test_wrappers_agree_where_a_model_is_a_mixture(suffix, participation):
    """FedEM's P has weights pi_i beside the components, and a fine-tuning step moves both."""
    given = wrapped("fedem" + suffix)
    result = library("fedem" + suffix, given, participation=participation)
    run = reference_run(given, "changing", participation)
    start = components(result.start)
    shared, pi = mixing.fedem(run, start)
    assert np.abs(shared - start).max() > 0.01
    assert np.ptp(np.stack(pi), axis=0).min() > 0.01  # clients differ in their mixtures
    np.testing.assert_allclose(components(result.global_), shared, **TOLERANCE)
    for i, mine in enumerate(result.personal):
        models, log_pi = shared, np.log(pi[i])
        if suffix == "+ft":
            models, log_pi = mixing.fine_tuned_mixture(shared, log_pi, run.ahead(i, 0), FT_ALPHA)
        np.testing.assert_allclose(components(mine), models, **TOLERANCE, err_msg=f"components of client {i}")
        weights = np.exp(log_pi) / np.exp(log_pi).sum()
        np.testing.assert_allclose(np.asarray(jax.nn.softmax(mine.log_weights)), weights, **TOLERANCE)


def components(mixture: Any) -> np.ndarray:
    """FedEM's components as rows."""
    count = len(mixture.log_weights)
    return np.stack([as_vector(jax.tree.map(lambda leaf, m=m: leaf[m], mixture.components)) for m in range(count)])


# That the comparisons above can tell -----------------------------------------------------------------------


def uploads(name: str) -> list[np.ndarray]:
    """What a FedAMP server holds after the run, with every client selected: the clients' own models."""
    run = reference_run(SETTINGS[name], "changing", "all")
    run.chosen_by_round = [range(len(SIZES))] * ROUNDS
    start = as_vector(TASK.model.init(jax.random.key(SEED)))
    return mixing.METHODS[name](run, start)[1]


def off_diagonal(matrix: np.ndarray) -> np.ndarray:
    return matrix[~np.eye(len(matrix), dtype=bool)]


def test_attention_differs_between_pairs_and_with_the_square():
    models = uploads("fedamp")
    settings = reference_run(SETTINGS["fedamp"], "fixed", "all").settings
    xi = mixing.attention(models, settings)
    others = off_diagonal(xi)
    assert others.max() > 1.5 * others.min() > 0
    assert np.diag(xi).min() > 0.1  # a convex combination, as the paper asks
    not_squared = [
        settings.alpha_k
        * mixing.attention_derivative(np.sqrt(mixing.squared_distance(models[i], models[j])), settings.sigma)
        for i in range(len(models))
        for j in range(len(models))
        if i != j
    ]
    assert np.abs(np.array(not_squared) / others - 1).max() > 0.1


def test_heuristic_attention_differs_between_pairs():
    xi = mixing.heuristic_attention(
        uploads("heurfedamp"), reference_run(SETTINGS["heurfedamp"], "fixed", "all").settings
    )
    others = off_diagonal(xi)
    assert others.max() > 1.2 * others.min() > 0
    np.testing.assert_allclose(xi.sum(axis=1), 1, atol=1e-12)


def test_attention_is_the_derivative_of_its_penalty():
    """A(x) = 1 - e^{-x/sigma} at x = ||w_i - w_j||^2, by differences in x."""
    for x in (0.1, 1.0, 3.0):
        slope = ((1 - np.exp(-(x + 1e-6) / 1.3)) - (1 - np.exp(-(x - 1e-6) / 1.3))) / 2e-6
        np.testing.assert_allclose(mixing.attention_derivative(x, 1.3), slope, rtol=1e-8)


def test_mixture_gradient_is_that_of_its_loss():
    rng = np.random.default_rng(5)
    models, log_pi = rng.normal(size=(2, CLASSES * (FEATURES + 1))), rng.normal(size=2)
    batch = FEDERATION.train.client(1)

    def loss(everything: np.ndarray) -> float:
        each, weights = everything[2:].reshape(models.shape), np.exp(everything[:2])
        likelihood = sum(weights[m] / weights.sum() * np.exp(-mixing.sample_losses(each[m], batch)) for m in range(2))
        return float(-np.mean(np.log(likelihood)))

    everything = np.concatenate([log_pi, models.ravel()])
    moved, moved_log_pi = mixing.fine_tuned_mixture(models, log_pi, batch, 1.0)
    step = everything - np.concatenate([moved_log_pi, moved.ravel()])
    np.testing.assert_allclose(step, _slopes(loss, everything), rtol=0, atol=1e-8)


# Reductions ------------------------------------------------------------------------------------------------


def vectors(result: Library) -> np.ndarray:
    return np.stack([as_vector(each) for each in [result.global_, *result.personal]])


@pytest.mark.parametrize(
    ("name", "how", "participation"),
    [
        pytest.param("fedamp", "changing", "all", marks=pytest.mark.full),
        pytest.param("heurfedamp", "changing", "all", marks=pytest.mark.full),
        pytest.param("fedu", "everyone", "all", marks=pytest.mark.full),
    ],
)
def test_without_regularisation_clients_are_alone(name, how, participation):
    """Personal models are those of ``local``; FedU only keeps what is uploaded, so there all clients are selected.

    All train from the first round on, because a client that begins later begins with what it is sent then.
    """
    settings = {"alpha": 0.17, "R": 4}
    alone = library("local", settings, "changing", participation)  # with "all", whoever is selected
    free = library(name, {**SETTINGS[name], **settings, "lam": 0.0}, how, participation)
    np.testing.assert_allclose(vectors(free)[1:], vectors(alone)[1:], **TOLERANCE)
    assert np.abs(vectors(free)[1:] - as_vector(free.start)).max() > 0.1


@pytest.mark.full
@pytest.mark.parametrize("name", ["pfedme", "fedu", "fedamp", "per-fedavg"])
def test_wrappers_that_should_change_nothing_do_not(name):
    plain = library(name, SETTINGS[name])
    same = library(name + "+ft+am", {**SETTINGS[name], "ft_alpha": 0.0, "am_beta": 1.0})
    np.testing.assert_allclose(vectors(same), vectors(plain), rtol=0, atol=1e-12)


@pytest.mark.full
def test_mg_meta_with_am_is_mg_meta_with_its_own_momentum():
    own = library("mg-meta", {**SETTINGS["mg-meta"], "beta": 2.0})
    np.testing.assert_allclose(vectors(library("mg-meta+am", wrapped("mg-meta+am"))), vectors(own), **TOLERANCE)


def test_am_is_by_default_the_papers():
    assert declared(pfedbred.algorithms.wrappers.am)["am_beta"].default == 2.0


@pytest.mark.full
@pytest.mark.parametrize("name", ["fedu", "fedamp", "per-fedavg"])
def test_fine_tuning_changes_personal_models_and_no_training(name):
    plain, tuned = library(name, SETTINGS[name]), library(name + "+ft", wrapped(name + "+ft"))
    kept = [jax.tree.leaves((each.states.server, each.states.clients)) for each in (tuned, plain)]
    for mine, wanted in zip(*kept, strict=True):
        np.testing.assert_array_equal(mine, wanted)
    assert np.abs(vectors(tuned)[1:] - vectors(plain)[1:]).max(axis=1).min() > 1e-3


# No test sample reaches a model ----------------------------------------------------------------------------


def _other_test_samples(federation: pfedbred.Federation) -> pfedbred.Federation:
    """The same training samples, and test samples that differ in number, place and label."""
    train = [federation.train.client(i) for i in range(federation.clients)]
    rng = np.random.default_rng(9)
    test = [(rng.normal(5.0, 3.0, (4 + i, FEATURES)), rng.integers(0, CLASSES, 4 + i)) for i in range(len(train))]
    return pfedbred.from_clients(train, test, name="other tests")


class Side(NamedTuple):
    """One algorithm among those that run together."""

    base: Algorithm
    tuned: Algorithm


def together(sides: dict[str, Side]) -> Algorithm:
    """All of them as one algorithm, to compile once. Its models are those of all, P with and without fine-tuning."""
    clients = {name: side.tuned.client for name, side in sides.items()}
    servers = {name: side.tuned.server for name, side in sides.items()}
    asking = [name for name, server in servers.items() if server.prepare]

    def train(message, state, data):
        both = {name: client.train(message[name], state[name], data)[:2] for name, client in clients.items()}
        return {name: each[0] for name, each in both.items()}, {name: each[1] for name, each in both.items()}

    def model(message, state, data):
        return {
            name: [which.client.model(message[name], state[name], data) for which in side]
            for name, side in sides.items()
        }

    def of(uploads, name):
        return uploads._replace(upload=uploads.upload[name])

    return Algorithm(
        Client(
            init=lambda message: {name: client.init(message[name]) for name, client in clients.items()},
            train=train,
            model=model,
            draws=max(client.draws for client in clients.values()),
            model_draws=max(client.model_draws for client in clients.values()),
            prepare=lambda message, state, data: {
                name: clients[name].prepare(message[name], state[name], data) for name in asking
            },
        ),
        Server(
            init=lambda key, count: {name: server.init(key, count) for name, server in servers.items()},
            send=lambda state, i: {name: server.send(state[name], i) for name, server in servers.items()},
            aggregate=lambda state, uploads: {
                name: server.aggregate(state[name], of(uploads, name)) for name, server in servers.items()
            },
            model=lambda state: {name: server.model(state[name]) for name, server in servers.items()},
            prepare=lambda state, uploads: {
                **state,
                **{name: servers[name].prepare(state[name], of(uploads, name)) for name in asking},
            },
        ),
        predict=lambda model, x: DEEP.model.apply(model["fedavg"][1], x),
    )


DEEP = pfedbred.Task(pfedbred.models.dnn((FEATURES,), CLASSES, hidden=2, dtype=jnp.float64)._replace(norms=("hidden",)))
SHORT = {"R": 1, "R_personal": 1, "R_head": 1, "R_body": 1, "K": 1, "M": 2, "adapt_steps": 1}


@pytest.fixture(scope="module")
def with_other_test_samples() -> list[Library]:
    """Every algorithm for a round, on the same training samples and two sets of test samples."""
    federation = small_federation((5, 9, 4), FEATURES, CLASSES)
    sides = {}
    for name, build in pfedbred.ALGORITHMS.items():
        given = {key: value for key, value in SHORT.items() if key in declared(build)}
        tuned = pfedbred.make(name + "+ft", DEEP, {**given, "ft_alpha": 0.5})
        sides[name] = Side(pfedbred.make(name, DEEP, given), tuned)
    return [
        Library(together(sides), {}, federation=each, task=DEEP, rounds=1)
        for each in (federation, _other_test_samples(federation))
    ]


@pytest.mark.slow
def test_test_samples_change_no_model(with_other_test_samples):
    """Bit for bit: models are made of training samples alone, fine-tuning included."""
    one, other = with_other_test_samples
    assert not np.array_equal(one.backend.federation.test.x, other.backend.federation.test.x)
    for name in pfedbred.ALGORITHMS:
        assert np.any(as_flat(one.personal[0][name][0]) != as_flat(one.personal[0][name][1])), name  # tuned
        for mine, theirs in ((one.global_, other.global_), *zip(one.personal, other.personal, strict=True)):
            np.testing.assert_array_equal(as_flat(mine[name]), as_flat(theirs[name]), err_msg=name)


def as_flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
