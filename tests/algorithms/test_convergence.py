"""On heterogeneous quadratics every method must reach its fixed point, which is known in closed form.

Client i has f_i(w) = 1/2 w^T A_i w - b_i^T w + const, by linear regression with minibatches of all its samples, so
gradients are exact: grad f_i(w) = A_i w - b_i. All clients are selected and have the same number of samples. The
closed forms are solved here in NumPy, from the problems stated in the methods' papers or, where a method's fixed point
differs from the solution of its problem, from its update.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.linalg import inv, matrix_power, solve
from support import small_rounds

import pfedbred
from pfedbred import settings as settings_
from pfedbred.data.federation import Split

CLIENTS, SAMPLES, DIMENSION = 4, 8, 3
ALPHA = 0.2
EYE = np.eye(DIMENSION)
CLOSE = {"rtol": 0, "atol": 1e-9}
APART = 0.01  # answers that should differ do so by more than this, ten million times the tolerance


def _federation() -> tuple[pfedbred.Federation, list[np.ndarray], list[np.ndarray]]:
    """The data, and all A_i and b_i. A_i have eigenvalues from 0.3 to 1.6 along directions that differ by client."""
    rng = np.random.default_rng(3)
    x, y = [], []
    for i in range(CLIENTS):
        left, _ = np.linalg.qr(rng.normal(size=(SAMPLES, DIMENSION)))
        right, _ = np.linalg.qr(rng.normal(size=(DIMENSION, DIMENSION)))
        x.append(left @ np.diag(np.sqrt(SAMPLES * rng.uniform(0.3, 1.6, DIMENSION))) @ right)
        y.append(x[-1] @ rng.normal(0.5 * i, 1.0, DIMENSION) + 0.3 * rng.normal(size=SAMPLES))
    offsets = np.arange(0, SAMPLES * CLIENTS + 1, SAMPLES, dtype=np.int32)
    split = Split(np.concatenate(x), np.concatenate(y), offsets)
    hessians = [each.T @ each / SAMPLES for each in x]
    return (
        pfedbred.Federation("quadratics", split, split, 1),
        hessians,
        [each.T @ labels / SAMPLES for each, labels in zip(x, y, strict=True)],
    )


FEDERATION, A, B = _federation()
TASK = pfedbred.Task(
    pfedbred.models.Model(
        init=lambda key: {"output": jax.random.normal(key, (DIMENSION,), jnp.float64)},
        apply=lambda w, x: x @ w["output"],
        head=("output",),
    ),
    losses=lambda prediction, y: 0.5 * (prediction - y) ** 2,
)
EACH = range(CLIENTS)
full = pytest.mark.full

BATCHES = small_rounds.minibatches(FEDERATION, rounds=1, draws=10)
STATIC = {"R", "K", "M", "R_personal", "adapt_steps", "order", "jacobian"}  # decide the program; so do FedAMP's two:
STATIC_IN = {"fedamp": STATIC | {"sigma", "alpha_k"}}


@functools.cache
def program(name: str, static: tuple[tuple[str, Any], ...]) -> Any:
    """The models after so many rounds, compiled once for all values of the other settings."""

    def run(rounds: Any, numbers: dict[str, Any]) -> Any:
        return small_rounds.play(pfedbred.ALGORITHMS[name](TASK, **dict(static), **numbers), BATCHES, rounds=rounds)

    return jax.jit(run)


def limit(name: str, rounds: int = 2000, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """G, and the P of all clients as rows, after so many rounds that nothing moves any more."""
    settings_.resolve(pfedbred.ALGORITHMS[name], settings)
    known = STATIC_IN.get(name, STATIC)
    run = program(name, tuple(sorted((key, value) for key, value in settings.items() if key in known)))
    numbers = {key: float(value) for key, value in settings.items() if key not in known}
    (_, before), (global_, personal) = run(rounds, numbers), run(rounds + 1, numbers)
    personal = flat(personal)
    np.testing.assert_allclose(personal, flat(before), rtol=0, atol=1e-11, err_msg="not converged: take more rounds")
    return flat(global_)[0], personal


def flat(models: Any) -> np.ndarray:
    """The params as rows; of a mixture, its only component."""
    params = getattr(models, "components", models)["output"]
    return np.asarray(params).reshape(-1, DIMENSION)


# Closed forms ----------------------------------------------------------------------------------------------

OWN = np.stack([solve(A[i], B[i]) for i in EACH])  # argmin f_i
COMMON = solve(sum(A), sum(B))  # argmin of the mean


def gradient(i: int, w: np.ndarray) -> np.ndarray:
    return A[i] @ w - B[i]


def drifted(R: int, mu: float = 0.0) -> np.ndarray:
    """Where FedAvg or FedProx with R steps stand still.

    Steps on h_i(v) = f_i(v) + mu/2 ||v - w||^2 contract by M_i = I - alpha (A_i + mu) to its minimiser v_i, with
    v_i - w = (A_i + mu)^{-1} (b_i - A_i w), so that v_{i,R} - w = (I - M_i^R) (v_i - w). The mean of this is zero.
    """
    gains = [(EYE - matrix_power(EYE - ALPHA * (A[i] + mu * EYE), R)) @ inv(A[i] + mu * EYE) for i in EACH]
    return solve(sum(gains[i] @ A[i] for i in EACH), sum(gains[i] @ B[i] for i in EACH))


def prox(i: int, mean: np.ndarray, lam: float) -> np.ndarray:
    """argmin f_i(theta) + lam/2 ||theta - mean||^2."""
    return solve(A[i] + lam * EYE, B[i] + lam * mean)


# One model for all -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("scaffold", {"R": 5}),
        ("mime", {"R": 5, "momentum": 0.0}),
        ("mime", {"R": 5, "momentum": 0.5}),
        pytest.param("fedavg", {"R": 1}, marks=full),
        pytest.param("fedprox", {"R": 1, "mu": 0.7}, marks=full),
        pytest.param("fedem", {"R": 1, "M": 1}, marks=full),
        pytest.param("reptile", {"R": 1, "epsilon": 0.6, "adapt_steps": 2}, marks=full),
    ],
)
def test_the_minimiser_of_the_mean_is_reached(name, settings):
    """SCAFFOLD and Mime even with five local steps, which is their purpose."""
    global_, personal = limit(name, alpha=ALPHA, **settings)
    np.testing.assert_allclose(global_, COMMON, **CLOSE)
    if name == "reptile":  # P is adapted: two steps towards the client's own minimiser
        expected = [OWN[i] + matrix_power(EYE - ALPHA * A[i], 2) @ (COMMON - OWN[i]) for i in EACH]
        np.testing.assert_allclose(personal, expected, **CLOSE)
    else:
        np.testing.assert_allclose(personal, np.tile(COMMON, (CLIENTS, 1)), **CLOSE)


@pytest.mark.parametrize(
    ("name", "settings", "mu"),
    [
        ("fedprox", {"mu": 0.7}, 0.7),
        pytest.param("fedavg", {}, 0.0, marks=full),
        pytest.param("reptile", {"epsilon": 0.6, "adapt_steps": 1}, 0.0, marks=full),
    ],
)
def test_client_drift_is_as_predicted(name, settings, mu):
    """With five local steps FedAvg, FedProx and Reptile settle elsewhere, at a point that is known too."""
    global_, _ = limit(name, alpha=ALPHA, R=5, **settings)
    np.testing.assert_allclose(global_, drifted(5, mu), **CLOSE)
    assert np.abs(global_ - COMMON).max() > APART


def test_per_fedavg_solves_its_meta_problem():
    """E (I - alpha A_i) grad f_i(w - alpha grad f_i(w)) = 0, and P is one step from there."""
    inner, outer = 0.4, 0.3
    global_, personal = limit("per-fedavg", alpha=inner, alpha_m=outer, R=1, order="exact")
    J = [EYE - inner * A[i] for i in EACH]  # w - alpha grad f_i(w) = J_i w + alpha b_i, and grad f_i of that ...
    w = solve(sum(J[i] @ A[i] @ J[i] for i in EACH), sum(J[i] @ (B[i] - inner * A[i] @ B[i]) for i in EACH))
    np.testing.assert_allclose(global_, w, **CLOSE)
    for i in EACH:
        np.testing.assert_allclose(personal[i], w - inner * gradient(i, w), **CLOSE)
    assert np.abs(w - COMMON).max() > APART


@full
def test_per_fedavg_of_first_order_settles_elsewhere():
    """E grad f_i(w - alpha grad f_i(w)) = 0: without the Jacobian."""
    global_, _ = limit("per-fedavg", alpha=0.4, alpha_m=0.3, R=1, order="first")
    J = [EYE - 0.4 * A[i] for i in EACH]
    w = solve(sum(A[i] @ J[i] for i in EACH), sum(J[i] @ B[i] for i in EACH))
    np.testing.assert_allclose(global_, w, **CLOSE)
    assert np.abs(global_ - limit("per-fedavg", alpha=0.4, alpha_m=0.3, R=1, order="exact")[0]).max() > APART


# Algorithm 1 -----------------------------------------------------------------------------------------------

LAM = 2.0
PROXIMAL = {"lam": LAM, "alpha": 0.3, "alpha_m": 0.4, "K": 60, "R": 1}  # 60 steps: the proximal map to 1e-15


def algorithm_1(eta_a: float = 0.0, eta: float = 0.0, exact: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """w and all theta_i where Algorithm 1 with R = 1 and an exact proximal map stands still, by one linear system.

    Unknown are w and, of each client, mu_i, theta_i and the memory m_i = w_{i,1}; J_i = Dmu_i^T:

        mu_i    = (I - eta_a A_i) w + eta_a b_i - eta (m_i - theta_i)
        theta_i = (A_i + lam)^{-1} (b_i + lam mu_i)
        m_i     = w - alpha_m lam J_i (mu_i - theta_i)
        0       = sum_i J_i (mu_i - theta_i)
    """
    d, rate = DIMENSION, PROXIMAL["alpha_m"] * LAM
    size = d * (1 + 3 * CLIENTS)
    left, right = np.zeros((size, size)), np.zeros(size)

    def part(i: int, which: int) -> slice:
        start = d * (1 + 3 * i + which)
        return slice(start, start + d)

    w = slice(0, d)
    for i in EACH:
        mu, theta, memory = (part(i, which) for which in range(3))
        J = EYE - eta_a * A[i] if exact else EYE
        left[mu, mu], left[mu, w], left[mu, memory], left[mu, theta] = EYE, -(EYE - eta_a * A[i]), eta * EYE, -eta * EYE
        right[mu] = eta_a * B[i]
        left[theta, theta], left[theta, mu] = A[i] + LAM * EYE, -LAM * EYE
        right[theta] = B[i]
        left[memory, memory], left[memory, w], left[memory, mu], left[memory, theta] = EYE, -EYE, rate * J, -rate * J
        left[w, mu], left[w, theta] = J, -J
    answer = solve(left, right)
    return answer[w], np.stack([answer[part(i, 1)] for i in EACH])


def test_pfedme_minimises_the_mean_of_moreau_envelopes():
    """The envelope's gradient is lam (w - prox_i(w)), and w - prox_i(w) = (A_i + lam)^{-1} (A_i w - b_i)."""
    inverses = [inv(A[i] + LAM * EYE) for i in EACH]
    w = solve(sum(inverses[i] @ A[i] for i in EACH), sum(inverses[i] @ B[i] for i in EACH))
    global_, personal = limit("pfedme", **PROXIMAL)
    np.testing.assert_allclose(global_, w, **CLOSE)
    np.testing.assert_allclose(personal, [prox(i, w, LAM) for i in EACH], **CLOSE)
    np.testing.assert_allclose(algorithm_1()[0], w, **CLOSE)  # the system above, where it needs to be nothing more


@pytest.mark.parametrize("R", [pytest.param(1, marks=full), 4])
def test_mr_mtl_reaches_the_solution_of_pfedme(R):
    """Its problem is pFedMe's, minimised in all theta_i and w together. Local steps do not move the answer."""
    global_, personal = limit("mr-mtl", lam=LAM, alpha=ALPHA, R=R)
    w, theta = algorithm_1()
    np.testing.assert_allclose(global_, w, **CLOSE)
    np.testing.assert_allclose(personal, theta, **CLOSE)
    np.testing.assert_allclose(personal, laplacian_minimiser(LAM), **CLOSE)


@full
def test_fo_minimises_the_mean_of_envelopes_at_its_means():
    """F_i(w) = env_i(mu_i(w)), so 0 = sum_i Dmu_i^T (mu_i - prox_i(mu_i)), mu_i = (I - eta_a A_i) w + eta_a b_i."""
    eta_a = 0.5
    J = [EYE - eta_a * A[i] for i in EACH]
    gains = [J[i] @ inv(A[i] + LAM * EYE) for i in EACH]
    left = sum(gains[i] @ A[i] @ J[i] for i in EACH)
    w = solve(left, sum(gains[i] @ (B[i] - eta_a * A[i] @ B[i]) for i in EACH))
    global_, personal = limit("fo", eta_a=eta_a, jacobian="exact", **PROXIMAL)
    np.testing.assert_allclose(global_, w, **CLOSE)
    np.testing.assert_allclose(personal, [prox(i, w - eta_a * gradient(i, w), LAM) for i in EACH], **CLOSE)


@pytest.mark.parametrize(
    ("name", "means", "exact"),
    [
        ("mg", {"eta_a": 0.5, "eta": 0.3}, True),
        pytest.param("mg", {"eta_a": 0.5, "eta": 0.3}, False, marks=full),
        pytest.param("fo", {"eta_a": 0.5}, False, marks=full),
        pytest.param("mfo", {"eta": 0.3}, True, marks=full),
    ],
)
def test_algorithm_1_settles_where_its_equations_do(name, means, exact):
    """Memory included; and the identity in place of the Jacobian moves the answer."""
    jacobian = "exact" if exact else "identity"
    global_, personal = limit(name, 3000, jacobian=jacobian, **means, **PROXIMAL)
    w, theta = algorithm_1(**means, exact=exact)
    np.testing.assert_allclose(global_, w, **CLOSE)
    np.testing.assert_allclose(personal, theta, **CLOSE)
    if "eta_a" in means:
        assert np.abs(w - algorithm_1(**means, exact=not exact)[0]).max() > APART


# A model beside the global one -----------------------------------------------------------------------------


@full
def test_local_reaches_every_clients_own_minimiser():
    _, personal = limit("local", alpha=ALPHA, R=2)
    np.testing.assert_allclose(personal, OWN, **CLOSE)


def test_ditto_is_held_at_the_solution_of_fedavg():
    global_, personal = limit("ditto", alpha=ALPHA, lam=0.8, R=1, R_personal=2)
    np.testing.assert_allclose(global_, COMMON, **CLOSE)
    np.testing.assert_allclose(personal, [prox(i, COMMON, 0.8) for i in EACH], **CLOSE)


@full
def test_apfl_with_a_fixed_mixture_predicts_as_local_training():
    """grad f_i vanishes at a v_i + (1 - a) w, so P is argmin f_i whatever a > 0 is, beside FedAvg's w."""
    global_, personal = limit("apfl", alpha=ALPHA, mixing=0.6, eta_mixing=0.0, R=1)
    np.testing.assert_allclose(global_, COMMON, **CLOSE)
    np.testing.assert_allclose(personal, OWN, **CLOSE)


# A model for every client, mixed on the server -------------------------------------------------------------


def stacked(blocks: np.ndarray) -> np.ndarray:
    """An N x N array of d x d blocks as one matrix."""
    return np.block([[blocks[i][j] for j in EACH] for i in EACH])


def laplacian_minimiser(lam: float) -> np.ndarray:
    """argmin sum_i f_i(w_i) + lam/4 sum_{i,j} ||w_i - w_j||^2 / N: A_i w_i - b_i + lam (w_i - mean) = 0."""
    pull = lam * (np.eye(CLIENTS) - np.full((CLIENTS, CLIENTS), 1 / CLIENTS))
    blocks = [[pull[i, j] * EYE + (A[i] if i == j else 0) for j in EACH] for i in EACH]
    return solve(stacked(blocks), np.concatenate(B)).reshape(CLIENTS, DIMENSION)


def fedu_fixed_point(lam: float, alpha: float, R: int) -> np.ndarray:
    """Where x_i = M_i^R w_i + (I - M_i^R) argmin f_i and w_i = x_i - lam alpha R (x_i - mean x) both hold."""
    mix = np.eye(CLIENTS) - lam * alpha * R * (np.eye(CLIENTS) - np.full((CLIENTS, CLIENTS), 1 / CLIENTS))
    M = [matrix_power(EYE - alpha * A[i], R) for i in EACH]
    blocks = [[(EYE if i == j else 0 * EYE) - mix[i, j] * M[j] for j in EACH] for i in EACH]
    right = [sum(mix[i, j] * (EYE - M[j]) @ OWN[j] for j in EACH) for i in EACH]
    return solve(stacked(blocks), np.concatenate(right)).reshape(CLIENTS, DIMENSION)


@pytest.mark.parametrize("R", [pytest.param(1, marks=full), 3])
def test_fedu_settles_where_its_two_steps_do(R):
    global_, personal = limit("fedu", alpha=ALPHA, lam=0.6, R=R)
    expected = fedu_fixed_point(0.6, ALPHA, R)
    np.testing.assert_allclose(personal, expected, **CLOSE)
    np.testing.assert_allclose(global_, expected.mean(axis=0), **CLOSE)


@full
def test_fedu_tends_to_the_minimiser_of_its_problem():
    """As the step goes to zero, in proportion: so the server's step is that of the problem which it states."""
    wanted = laplacian_minimiser(0.6)
    errors = [np.abs(fedu_fixed_point(0.6, alpha, 1) - wanted).max() for alpha in (1e-2, 1e-3, 1e-4)]
    np.testing.assert_allclose(np.array(errors[:-1]) / errors[1:], 10, rtol=0.1)
    small = limit("fedu", 20_000, alpha=0.01, lam=0.6, R=1)[1]
    assert np.abs(small - wanted).max() < 1.1 * errors[0]


def attentive(weights: np.ndarray, pull: float) -> np.ndarray:
    """All w_i with A_i w_i - b_i + pull (w_i - sum_j xi_ij w_j) = 0, given xi."""
    rest = pull * (np.eye(CLIENTS) - weights)
    blocks = [[rest[i, j] * EYE + (A[i] if i == j else 0) for j in EACH] for i in EACH]
    return solve(stacked(blocks), np.concatenate(B)).reshape(CLIENTS, DIMENSION)


def by_distance(w: np.ndarray, alpha_k: float, sigma: float) -> np.ndarray:
    xi = np.array([[alpha_k * np.exp(-np.sum((w[i] - w[j]) ** 2) / sigma) / sigma for j in EACH] for i in EACH])
    np.fill_diagonal(xi, 0)
    return xi + np.diag(1 - xi.sum(axis=1))


def by_cosine(w: np.ndarray, self_weight: float, sigma: float) -> np.ndarray:
    cosines = np.array([[w[i] @ w[j] / np.sqrt(w[i] @ w[i] * (w[j] @ w[j])) for j in EACH] for i in EACH])
    xi = np.exp(sigma * cosines)
    np.fill_diagonal(xi, 0)
    return (1 - self_weight) * xi / xi.sum(axis=1, keepdims=True) + self_weight * np.eye(CLIENTS)


def settled(weights: Any, pull: float) -> np.ndarray:
    """The fixed point with weights that depend on it: weights and models in turn, from the clients' own minimisers."""
    w = OWN
    for _ in range(500):
        w = attentive(weights(w), pull)
    np.testing.assert_allclose(w, attentive(weights(w), pull), rtol=0, atol=1e-12)
    return w


AMP = {"lam": 0.9, "sigma": 4.0, "alpha_k": 0.6, "alpha": 0.15}


@pytest.mark.parametrize("R", [pytest.param(1, marks=full), 3])
def test_fedamp_settles_where_its_messages_and_losses_balance(R):
    """Neither R nor alpha_k is in the answer: grad f_i(w_i) + lam sum_j A'(||w_i - w_j||^2) (w_i - w_j) = 0."""
    global_, personal = limit("fedamp", R=R, **AMP)
    xi = by_distance(personal, AMP["alpha_k"], AMP["sigma"])
    np.testing.assert_allclose(personal, attentive(xi, AMP["lam"] / AMP["alpha_k"]), **CLOSE)
    others = xi[~np.eye(CLIENTS, dtype=bool)]
    assert others.max() > 1.5 * others.min()
    wanted = settled(lambda w: by_distance(w, 1.0, AMP["sigma"]), AMP["lam"])
    np.testing.assert_allclose(personal, wanted, **CLOSE)
    np.testing.assert_allclose(global_, (xi @ personal).mean(axis=0), **CLOSE)


def test_fedamp_minimises_half_the_penalty_that_its_paper_states():
    """The paper's u_i leaves out the 2 of the gradient of A(||w_i - w_j||^2), so lam/2 stands where it has lam."""
    _, personal = limit("fedamp", R=3, **AMP)

    def objective(flat_models: np.ndarray, weight: float) -> float:
        w = flat_models.reshape(CLIENTS, DIMENSION)
        losses = sum(0.5 * w[i] @ A[i] @ w[i] - B[i] @ w[i] for i in EACH)
        pairs = [(i, j) for j in EACH for i in range(j)]
        return losses + weight * sum(1 - np.exp(-np.sum((w[i] - w[j]) ** 2) / AMP["sigma"]) for i, j in pairs)

    at, h = personal.ravel(), 1e-5
    for weight, stationary in ((AMP["lam"] / 2, True), (AMP["lam"], False)):
        slopes = [(objective(at + e, weight) - objective(at - e, weight)) / (2 * h) for e in h * np.eye(at.size)]
        assert (np.abs(slopes).max() < 1e-8) == stationary


def test_heurfedamp_settles_where_its_messages_and_losses_balance():
    global_, personal = limit("heurfedamp", lam=0.7, sigma=1.5, self_weight=0.3, alpha=0.15, R=2)
    xi = by_cosine(personal, 0.3, 1.5)
    np.testing.assert_allclose(personal, attentive(xi, 0.7), **CLOSE)
    np.testing.assert_allclose(personal, settled(lambda w: by_cosine(w, 0.3, 1.5), 0.7), **CLOSE)
    np.testing.assert_allclose(global_, (xi @ personal).mean(axis=0), **CLOSE)


# And they are different answers ----------------------------------------------------------------------------


def test_the_answers_differ_where_the_problems_do():
    """In closed form, so that agreement above tells which problem was solved."""
    inverses = [inv(A[i] + LAM * EYE) for i in EACH]
    one_for_all = {
        "mean": COMMON,
        "fedavg, R = 5": drifted(5),
        "fedprox, R = 5": drifted(5, 0.7),
        "moreau": solve(sum(inverses[i] @ A[i] for i in EACH), sum(inverses[i] @ B[i] for i in EACH)),
        "fo": algorithm_1(eta_a=0.5)[0],
        "mfo": algorithm_1(eta=0.3)[0],
        "mg": algorithm_1(eta_a=0.5, eta=0.3)[0],
        "mg, Jacobian I": algorithm_1(eta_a=0.5, eta=0.3, exact=False)[0],
        "mean of minimisers": OWN.mean(axis=0),
    }
    one_each = {
        "local": OWN,
        "ditto": np.stack([prox(i, COMMON, 0.8) for i in EACH]),
        "pfedme": algorithm_1()[1],
        "fo": algorithm_1(eta_a=0.5)[1],
        "fedu": fedu_fixed_point(0.6, ALPHA, 1),
        "fedu, R = 3": fedu_fixed_point(0.6, ALPHA, 3),
        "fedu's problem": laplacian_minimiser(0.6),
        "fedamp": settled(lambda w: by_distance(w, 1.0, AMP["sigma"]), AMP["lam"]),
        "heurfedamp": settled(lambda w: by_cosine(w, 0.3, 1.5), 0.7),
    }
    for answers in (one_for_all, one_each):
        names = list(answers)
        for k, name in enumerate(names):
            for other in names[:k]:
                assert np.abs(answers[name] - answers[other]).max() > 1e-4, (name, other)
