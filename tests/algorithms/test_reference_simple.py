"""Seven simple methods of the library against plain NumPy transcriptions of their papers, in float64: to 1e-10.

As in ``test_reference``, the two share the initial params, the rows of each minibatch and whose uploads are
averaged. The second half tests the methods' exact reductions to one another, with minibatches that are all of a
client's data.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_reference as common
from support import numpy_simple as simple
from support import small_rounds

import pfedbred
from pfedbred.engine import selection

federation, task = common.federation, common.task  # the same fixtures

# All different within a method, so that swapping two would show, and large, so that every term counts.
_PER_FEDAVG = {"alpha": 0.31, "alpha_m": 0.17, "R": 4, "delta": 0.4}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("local", {"alpha": 0.11, "R": 4}),
    "fedprox": ("fedprox", {"mu": 0.9, "alpha": 0.13, "R": 4}),
    "ditto": ("ditto", {"lam": 0.7, "alpha": 0.11, "R": 4, "R_personal": 3}),
    "apfl": ("apfl", {"mixing": 0.37, "alpha": 0.13, "eta_mixing": 0.21, "R": 4}),
    "per-fedavg-first": ("per-fedavg", _PER_FEDAVG | {"order": "first"}),
    "per-fedavg-hessian-free": ("per-fedavg", _PER_FEDAVG | {"order": "hessian-free", "adapt_steps": 2}),
    "per-fedavg-exact": ("per-fedavg", _PER_FEDAVG | {"order": "exact", "adapt_steps": 3}),
    "reptile": ("reptile", {"epsilon": 0.6, "alpha": 0.11, "R": 4, "adapt_steps": 3}),
    "mr-mtl": ("mr-mtl", {"lam": 0.8, "alpha": 0.11, "R": 4}),
}
FULL = 6  # in the full-batch federation, the size of every client and of the minibatch
OTHER_SEED = 0  # with it, the clients are chosen three times, twice, once (in the last round) and never
EXACT = {"rtol": 0, "atol": 1e-12}


def simulate(
    federation: pfedbred.Federation,
    task: pfedbred.Task,
    name: str,
    settings: dict[str, Any],
    *,
    select: selection.Select | None = None,
    participation: str = "all",
    seed: int = common.SEED,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The library's initial params, global model and personal models (as rows) after all rounds."""
    plan = pfedbred.Plan(
        select or selection.fixed(common.FIXED),
        participation=participation,
        batch_size=common.BATCH,
        executor="in-turn",
    )
    backend = pfedbred.ResidentBackend(pfedbred.make(name, task, settings), task, federation, plan)
    with jax.disable_jit():  # compiling the initial state for each test would take as long as the rest
        states = backend.init([seed])
    start = common.as_vector(backend.global_model(states))
    states = backend.advance(states, rounds=common.ROUNDS)
    personal = [common.as_vector(backend.personal_model(states, i)) for i in range(len(common.SIZES))]
    return start, common.as_vector(backend.global_model(states)), np.stack(personal)


def check(
    federation: pfedbred.Federation,
    task: pfedbred.Task,
    name: str,
    settings: dict[str, Any],
    select: selection.Select,
    participation: str,
    seed: int = common.SEED,
) -> list[simple.Client]:
    """Runs both, compares them, and returns what the reference's clients hold."""
    start, global_, personal = simulate(
        federation, task, name, settings, select=select, participation=participation, seed=seed
    )
    expected_global, expected_personal, clients = simple.run(
        name,
        settings,
        start,
        common.sequences(federation, seed),
        common.SIZES,
        common.chosen_by_round(select, seed, common.ROUNDS),
        participation,
    )
    assert np.all(np.isfinite(expected_personal))
    moved = expected_personal if name == "local" else expected_global
    assert np.abs(moved - start).max() > 0.01  # something was trained
    np.testing.assert_allclose(global_, expected_global, **common.TOLERANCE, err_msg="global model")
    for i, (mine, expected) in enumerate(zip(personal, expected_personal, strict=True)):
        np.testing.assert_allclose(mine, expected, **common.TOLERANCE, err_msg=f"personal model of client {i}")
    return clients


# The library against the reference -------------------------------------------------------------------------


# APFL is below, with clients that miss rounds; FedProx and Reptile are FedAvg but for a term or a factor, which the
# reductions and the fixed points see.
REPRESENTATIVES = [("ditto", "sample"), ("per-fedavg-exact", "all")]


@pytest.mark.parametrize(
    ("case", "participation"),
    [
        pytest.param(*each, marks=[] if each in REPRESENTATIVES else [pytest.mark.full])
        for each in itertools.product(CASES, ("all", "sample"))
    ],
)
def test_three_rounds_agree(case, participation, federation, task):
    check(federation, task, *CASES[case], selection.fixed(common.FIXED), participation)


@pytest.mark.broad
@pytest.mark.parametrize(
    "case", ["apfl", *(pytest.param(each, marks=pytest.mark.full) for each in ("reptile", "mr-mtl"))]
)
def test_clients_that_miss_rounds_agree(case, federation, task):
    """They keep their model and mixing weight, and read on where they stopped."""
    clients = check(federation, task, *CASES[case], selection.uniform(2), "sample", seed=OTHER_SEED)
    assert len({client.read for client in clients}) > 2, "choose another seed"


@pytest.mark.full
def test_apfl_keeps_its_mixing_weight_between_0_and_1(federation, task):
    """With a step so large that both ends are reached, by clients that are then seen in P."""
    name, settings = CASES["apfl"]
    clients = check(federation, task, name, settings | {"eta_mixing": 60.0}, selection.fixed(common.FIXED), "all")
    assert {0.0, 1.0} <= {client.share for client in clients}, [client.share for client in clients]


# Exact reductions, in the library --------------------------------------------------------------------------


@functools.cache
def whole(name: str, R: int, **static: Any) -> Any:
    """The global model and the personal models as rows, where every minibatch is all of the client's data.

    The other settings are inputs of the program, which is compiled once for all of them.
    """
    rng = np.random.default_rng(5)
    clients = [
        (rng.normal(0.5 * i - 0.7, 1 + 0.3 * i, (FULL, common.FEATURES)), rng.permutation([0, 1, 2, i % 3, 0, i % 2]))
        for i in range(len(common.SIZES))
    ]
    batches = small_rounds.minibatches(pfedbred.from_clients(clients, clients), rounds=common.ROUNDS, draws=10)
    task = pfedbred.Task(pfedbred.models.mclr((common.FEATURES,), common.CLASSES, dtype=jnp.float64))
    start = common.as_vector(task.model.init(jax.random.key(0)))
    program = jax.jit(
        lambda numbers: small_rounds.play(pfedbred.ALGORITHMS[name](task, R=R, **static, **numbers), batches)
    )

    def run(**numbers: float) -> tuple[np.ndarray, np.ndarray]:
        global_, personal = program(numbers)
        rows = [common.as_vector(jax.tree.map(lambda leaf, i=i: leaf[i], personal)) for i in range(len(clients))]
        moved = rows[0] if name == "local" else common.as_vector(global_)
        assert np.abs(moved - start).max() > 0.01
        return common.as_vector(global_), np.stack(rows)

    return run


def test_fedprox_without_its_term_is_fedavg():
    global_, personal = whole("fedprox", R=3)(mu=0.0, alpha=0.13)
    expected_global, expected_personal = whole("fedavg", R=3)(alpha=0.13)
    np.testing.assert_allclose(global_, expected_global, **EXACT)
    np.testing.assert_allclose(personal, expected_personal, **EXACT)


def test_ditto_without_its_term_trains_locally_beside_fedavg():
    global_, personal = whole("ditto", R=3, R_personal=4)(lam=0.0, alpha=0.13)
    np.testing.assert_allclose(personal, whole("local", R=4)(alpha=0.13)[1], **EXACT)
    np.testing.assert_allclose(global_, whole("fedavg", R=3)(alpha=0.13)[0], **EXACT)


def test_mr_mtl_without_its_term_is_local_training():
    """And its global model is the mean of the clients' own."""
    global_, personal = whole("mr-mtl", R=3)(lam=0.0, alpha=0.13)
    expected = whole("local", R=3)(alpha=0.13)[1]
    np.testing.assert_allclose(personal, expected, **EXACT)
    np.testing.assert_allclose(global_, expected.mean(axis=0), **EXACT)


def test_mr_mtl_is_heurfedamp_that_attends_to_all_alike():
    """Then every u_i is the mean of all models."""
    global_, personal = whole("mr-mtl", R=3)(lam=0.7, alpha=0.13)
    found = whole("heurfedamp", R=3)(lam=0.7, alpha=0.13, sigma=0.0, self_weight=1 / len(common.SIZES))
    np.testing.assert_allclose(found[0], global_, **EXACT)
    np.testing.assert_allclose(found[1], personal, **EXACT)


def test_per_fedavg_without_inner_step_trains_as_fedavg():
    global_, _ = whole("per-fedavg", R=3, order="exact")(alpha=0.0, alpha_m=0.13)
    np.testing.assert_allclose(global_, whole("fedavg", R=3)(alpha=0.13)[0], **EXACT)


def test_apfl_of_own_models_alone_is_local_training():
    _, personal = whole("apfl", R=3)(mixing=1.0, alpha=0.13, eta_mixing=0.0)
    np.testing.assert_allclose(personal, whole("local", R=3)(alpha=0.13)[1], **EXACT)


def test_apfl_without_own_models_is_fedavg():
    global_, personal = whole("apfl", R=3)(mixing=0.0, alpha=0.13, eta_mixing=0.0)
    np.testing.assert_allclose(global_, whole("fedavg", R=3)(alpha=0.13)[0], **EXACT)
    for each in personal:
        np.testing.assert_allclose(each, global_, **EXACT)


def test_reptile_with_a_whole_outer_step_trains_as_fedavg():
    global_, _ = whole("reptile", R=3, adapt_steps=2)(epsilon=1.0, alpha=0.13)
    np.testing.assert_allclose(global_, whole("fedavg", R=3)(alpha=0.13)[0], **EXACT)


@pytest.mark.full
def test_hessian_free_nears_the_exact_hessian_and_first_order_does_not():
    settings = {"alpha": 0.31, "alpha_m": 0.17}
    exact, _ = whole("per-fedavg", R=3, order="exact")(**settings)
    near, _ = whole("per-fedavg", R=3, order="hessian-free")(delta=1e-4, **settings)
    first, _ = whole("per-fedavg", R=3, order="first")(**settings)
    assert np.abs(near - exact).max() < 1e-7
    assert np.abs(first - exact).max() > 1e-2


# The reference against itself ------------------------------------------------------------------------------


def test_reference_hessian_is_the_slope_of_the_gradient(federation):
    rng = np.random.default_rng(6)
    w, direction = rng.normal(size=(2, common.CLASSES * (common.FEATURES + 1)))
    batch, step = federation.train.client(1), 1e-5
    ahead = common.reference.gradient(w + step * direction, batch)
    behind = common.reference.gradient(w - step * direction, batch)
    slope = (ahead - behind) / (2 * step)
    np.testing.assert_allclose(simple.hessian_times(w, direction, batch), slope, rtol=0, atol=1e-8)


def test_methods_differ_in_the_reference(federation):
    """Otherwise agreement would not tell which of them, or which order, the library runs."""
    start = np.random.default_rng(3).normal(size=common.CLASSES * (common.FEATURES + 1))
    batches = common.sequences(federation, common.SEED)
    chosen = [common.FIXED] * common.ROUNDS
    results = {
        case: np.stack(simple.run(name, settings, start, batches, common.SIZES, chosen, "all")[1])
        for case, (name, settings) in CASES.items()
    }
    for a in results:
        for b in results:
            assert a == b or np.abs(results[a] - results[b]).max() > 1e-4, (a, b)
