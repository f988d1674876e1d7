"""Learned strengths: a linear-Gaussian federation, in which everything is known in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import pfedbred
from pfedbred.algorithms import learned_strength
from pfedbred.algorithms.curvature import block_keys, curvature
from pfedbred.algorithms.strength import Learning
from pfedbred.bregman.evidence import Evidence, effective_in_block, effective_numbers
from pfedbred.data.minibatches import Batch, ClientData, Inputs

FEATURES = 3
EXACT = {"alpha": 0.3, "alpha_m": 1 / 15, "K": 30, "R": 1, "prox_start": "theta"}  # w moves to the mean of all theta


class Hierarchy:
    """theta_i ~ N(w, diag(variances)), y = [x, 1] theta_i + noise; numbers are standardised as the library does."""

    def __init__(self, clients: int, variances: list[float], noise: float, seed: int, sizes: tuple[int, int]) -> None:
        rng = np.random.default_rng(seed)
        self.x, labels = [], []
        w = rng.normal(size=FEATURES + 1)
        for _ in range(clients):
            x = rng.normal(size=(rng.integers(*sizes), FEATURES))
            theta = w + np.sqrt(variances) * rng.normal(size=FEATURES + 1)
            self.x.append(x)
            labels.append(np.column_stack([x, np.ones(len(x))]) @ theta + noise * rng.normal(size=len(x)))
        pairs = list(zip(self.x, labels, strict=True))
        self.federation = pfedbred.from_clients(pairs, pairs, task="regression")
        everything = np.concatenate(labels)
        self.unit = everything.std()
        self.y = [(each - everything.mean()) / self.unit for each in labels]

    @property
    def designs(self) -> list[np.ndarray]:
        return [np.column_stack([x, np.ones(len(x))]) for x in self.x]

    def optimum(self, by_entry: bool) -> tuple[np.ndarray, np.ndarray, float]:
        """The w, variances of the prior, and noise variance that maximise the marginal likelihood, by SciPy."""
        d = FEATURES + 1

        def profiled(logs: np.ndarray) -> tuple[float, np.ndarray]:
            noise, spread = np.exp(logs[0]), np.diag(np.exp(logs[1:]) * np.ones(d))
            covariances = [a @ spread @ a.T + noise * np.eye(len(a)) for a in self.designs]
            left = sum(a.T @ np.linalg.solve(c, a) for a, c in zip(self.designs, covariances, strict=True))
            right = sum(a.T @ np.linalg.solve(c, y) for a, c, y in zip(self.designs, covariances, self.y, strict=True))
            w = np.linalg.solve(left, right)
            total = 0.0
            for a, c, y in zip(self.designs, covariances, self.y, strict=True):
                residual = y - a @ w
                total += np.linalg.slogdet(c)[1] + residual @ np.linalg.solve(c, residual)
            return total / 2, w

        start = np.full(1 + (d if by_entry else 1), -2.0)
        tight = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 40_000, "maxfev": 40_000, "adaptive": True}
        best = minimize(lambda logs: profiled(logs)[0], start, method="Nelder-Mead", options=tight)
        return profiled(best.x)[1], np.exp(best.x[1:]), float(np.exp(best.x[0]))


def trained(hierarchy: Hierarchy, rounds: int = 250, **settings):
    biggest = max(map(len, hierarchy.x))
    return pfedbred.run(
        federation=hierarchy.federation,
        task="regression",
        model=pfedbred.models.mclr((FEATURES,), 1, dtype=jnp.float64),
        algorithm="pfedme" if "sigma" not in settings else "pfedbred",
        settings={**EXACT, **({"mean": "identity"} if "sigma" in settings else {}), **settings},
        rounds=rounds,
        eval_every=rounds,
        aggregated=len(hierarchy.x),
        weights="uniform",
        batch_size=biggest,
        screening="norms",
    )


def w_of(run) -> np.ndarray:
    layer = run.global_model()["output"]
    return np.append(np.asarray(layer["weight"])[0], np.asarray(layer["bias"])[0])


def learned_of(run) -> Evidence:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], run.state.server.extra)


@pytest.mark.parametrize("steps", [{}, {"R": 6, "alpha_m": 0.02, "K": 5}], ids=["one local step", "six"])
def test_estimates_are_those_of_the_largest_marginal_likelihood(steps):
    """However far the local model goes in a round: theta is held near the global one."""
    hierarchy = Hierarchy(12, [0.5] * 4, 0.7, seed=3, sizes=(12, 13))
    w, variances, noise = hierarchy.optimum(by_entry=False)
    run = trained(hierarchy, lam="learned", **steps)
    found = learned_of(run)
    np.testing.assert_allclose(w_of(run), w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(2 * found.loss / found.free, noise, rtol=1e-4)
    np.testing.assert_allclose(found.effective["all"] / found.spread["all"], 1 / variances[0], rtol=1e-4)


@pytest.mark.broad
def test_a_learned_sigma_is_that_of_the_largest_marginal_likelihood():
    hierarchy = Hierarchy(20, [0.05, 0.5, 2.0, 1.0], 0.5, seed=5, sizes=(12, 13))
    w, variances, noise = hierarchy.optimum(by_entry=True)
    run = trained(hierarchy, lam="learned", sigma="learned", rounds=500)
    found = learned_of(run)
    sigma = jax.tree.map(lambda spread, effective: spread / effective, found.spread, found.effective)["output"]
    np.testing.assert_allclose(w_of(run), w, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(2 * found.loss / found.free, noise, rtol=1e-3)
    np.testing.assert_allclose(np.append(sigma["weight"][0], sigma["bias"]), variances, rtol=1e-2)


@pytest.mark.broad
def test_the_truth_is_recovered_within_its_standard_error():
    """200 clients of a true hierarchy: log tau has a standard error of about sqrt(2 / (clients x params))."""
    truth = np.asarray([0.1, 0.4, 1.0, 0.4])
    hierarchy = Hierarchy(200, list(truth), 0.6, seed=8, sizes=(20, 60))
    run = trained(hierarchy, lam="learned", sigma="learned", rounds=150)
    found = learned_of(run)
    sigma = jax.tree.map(lambda spread, effective: spread / effective, found.spread, found.effective)["output"]
    variances = np.append(sigma["weight"][0], sigma["bias"]) * hierarchy.unit**2
    # Of each entry there are 200 values, each known up to the noise: their variance has a relative error of about 0.1.
    np.testing.assert_allclose(np.log(variances / truth), 0, atol=3 * np.sqrt(2 / 200))
    noise = 2 * found.loss / found.free * hierarchy.unit**2
    samples = sum(map(len, hierarchy.x))
    np.testing.assert_allclose(np.log(noise / 0.36), 0, atol=3 * np.sqrt(2 / samples))


@pytest.mark.parametrize("lam", ["learned", "learned(layer)", "learned(client)", "learned(client x layer)"])
@pytest.mark.few_cases
@pytest.mark.full
def test_clients_that_do_not_differ_have_a_strong_prior(lam):
    """All clients alike, or one alone: divergences vanish, lam goes to its limit, and all stays finite."""
    hierarchy = Hierarchy(6, [0.0] * 4, 0.5, seed=1, sizes=(15, 16))
    alone = Hierarchy(1, [1.0] * 4, 0.5, seed=1, sizes=(15, 16))
    for given, strong in ((hierarchy, True), (alone, False)):
        run = trained(given, lam=lam, rounds=80)
        leaves = jax.tree.leaves((run.state.server, run.state.clients.state))
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves)
        if strong and "client" not in lam:
            distance = [np.abs(w_of(run) - flat(run.personal_model(i))).max() for i in range(len(given.x))]
            assert max(distance) < 0.05


def flat(params) -> np.ndarray:
    layer = params["output"]
    return np.append(np.asarray(layer["weight"])[0], np.asarray(layer["bias"])[0])


def test_a_clients_own_strength_is_that_of_its_own_evidence():
    """With w fixed (no main steps), client i's tau maximises the marginal likelihood of its own data alone."""
    hierarchy = Hierarchy(3, [0.5] * 4, 0.7, seed=2, sizes=(25, 26))
    run = trained(hierarchy, lam="learned(client)", alpha_m=1e-12, rounds=400)
    own = jax.tree.map(lambda leaf: np.asarray(leaf)[0], run.state.clients.state.strength)
    w = w_of(run)
    for i, (design, y) in enumerate(zip(hierarchy.designs, hierarchy.y, strict=True)):

        def cost(logs, design=design, y=y):
            covariance = np.exp(logs[1]) * design @ design.T + np.exp(logs[0]) * np.eye(len(y))
            residual = y - design @ w
            return np.linalg.slogdet(covariance)[1] + residual @ np.linalg.solve(covariance, residual)

        best = minimize(cost, [-2.0, -2.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
        np.testing.assert_allclose(own.spread["all"][i] / own.effective["all"][i], np.exp(best[1]), rtol=1e-3)
        np.testing.assert_allclose(2 * own.loss[i] / own.free[i], np.exp(best[0]), rtol=1e-3)


# Curvature -------------------------------------------------------------------------------------------------------


def client_data(x, y, key=None) -> ClientData:
    size = jnp.int32(len(x))
    return ClientData(Inputs(jnp.asarray(x)), jnp.asarray(y), None, jnp.int32(0), size, key=key)


@pytest.mark.full
def test_the_curvature_of_a_linear_model_is_its_hessian():
    """For softmax regression, by finite differences of the gradient; 90 samples are two pieces, the second padded."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 4)), rng.integers(0, 3, 90)
    task = pfedbred.Task(pfedbred.models.mclr((4,), 3, dtype=jnp.float64))
    params = task.model.init(jax.random.key(1))
    vector, unravel = ravel_pytree(params)
    gradient = jax.grad(lambda vector: 90 * task.loss(unravel(vector), Batch(jnp.asarray(x), jnp.asarray(y))))
    step = 1e-5
    expected = np.stack(
        [(gradient(vector + step * e) - gradient(vector - step * e)) / (2 * step) for e in np.eye(len(vector))]
    )
    found, loss = curvature(task, params, client_data(x, y), block_keys(task, params, 256))
    np.testing.assert_allclose(found.block, expected, atol=1e-6)
    np.testing.assert_allclose(loss, 90 * task.loss(params, Batch(jnp.asarray(x), jnp.asarray(y))), rtol=1e-12)
    # The diagonal is an estimate: over many keys its mean is the diagonal.
    many = jax.vmap(lambda key: curvature(task, params, client_data(x, y, key), None)[0].diagonal)(
        jax.random.split(jax.random.key(2), 4000)
    )
    estimate = jax.vmap(lambda tree: ravel_pytree(tree)[0])(many)
    error = np.std(estimate, axis=0) / np.sqrt(4000)
    assert np.all(np.abs(np.mean(estimate, axis=0) - np.diag(expected)) < 4 * error)
    assert np.all(error < 0.05 * np.diag(expected))


def test_effective_numbers_are_traces():
    """gamma = tr(H (H + P)^-1), as a sum over params, whatever the scale of P."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(5, 5))
    h = root @ root.T
    for scale in (1e-8, 1.0, 1e8):
        p = scale * rng.uniform(0.5, 2, 5)
        found = effective_in_block(jnp.asarray(h), jnp.asarray(p))
        expected = np.diag(np.eye(5) - np.linalg.inv(h + np.diag(p)) @ np.diag(p))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    diagonal = np.diag(h)
    np.testing.assert_allclose(
        effective_numbers(jnp.asarray(diagonal), jnp.asarray(p)), diagonal / (diagonal + p), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lam": "learnt"}, "lam must be a number > 0 or learned"),
        ({"lam": "learned(head)"}, "with SCOPE one of global, client, layer, client x layer"),
        ({"lam": -1}, "lam must be a number > 0"),
        ({"lam": "learned(layer, 0)"}, "lam must be"),
        ({"lam": "learned(client)", "sigma": "learned"}, "a learned sigma is the same for all clients"),
        ({"lam": "learned(client x layer)", "sigma": "learned"}, "not learned(client x layer)"),
        ({"lam": "learned", "prior": "student-t"}, "exponential family"),
        ({"lam": "learned", "sigma": np.eye(4)}, "exponential family that is separable over params"),
        ({"prior": "bernoulli", "sigma": "learned"}, "needs the gaussian prior"),
    ],
)
def test_what_cannot_be_learned_is_said(settings, message):
    with pytest.raises(pfedbred.SettingError, match=None) as refused:
        pfedbred.run(rounds=1, algorithm="pfedbred", settings=settings)
    assert message in str(refused.value)


def test_a_tempered_strength_is_that_part_of_what_the_evidence_says():
    """By entry: lam n_i = temper / Sigma_j."""
    task = pfedbred.Task(pfedbred.models.mclr((2,), 2, dtype=jnp.float64))
    w = task.model.init(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(9, 2))
    data = client_data(x, np.arange(9) % 2)

    def held(temper):
        learning = Learning(temper=temper)
        strength = learned_strength.get(task, "gaussian", learning, "learned")
        known = jax.tree.map(lambda leaf: jnp.arange(1.0, leaf.size + 1).reshape(leaf.shape), w)
        return strength.received(learned_strength.Message(w, known), None, data)[1].by_part

    ratios = jax.tree.map(lambda part, whole: part / whole, held(0.25), held(1.0))
    assert all(np.allclose(leaf, 0.25) for leaf in jax.tree.leaves(ratios))
    whole = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(held(1.0))])
    np.testing.assert_allclose(np.sort(whole), np.sort([*np.arange(1, 5) / 9, *np.arange(1, 3) / 9]))


def test_shifted_coordinates_lead_to_the_same_marginal_likelihood():
    """Where theta_i reaches the minimum, its start does not matter."""
    hierarchy = Hierarchy(20, [0.05, 0.5, 2.0, 1.0], 0.5, seed=5, sizes=(12, 13))
    w, variances, noise = hierarchy.optimum(by_entry=True)
    run = trained(hierarchy, lam="learned", sigma="learned", theta_init="shifted", rounds=500)
    found = learned_of(run)
    sigma = jax.tree.map(lambda spread, effective: spread / effective, found.spread, found.effective)["output"]
    np.testing.assert_allclose(w_of(run), w, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(2 * found.loss / found.free, noise, rtol=1e-3)
    np.testing.assert_allclose(np.append(sigma["weight"][0], sigma["bias"]), variances, rtol=1e-2)


def test_shifted_prior_is_its_transcription():
    """Three rounds of two local steps on all samples, of a linear regression; data is read in single precision."""
    hierarchy = Hierarchy(4, [0.5] * 4, 0.7, seed=2, sizes=(12, 13))
    temper, alpha, alpha_m, initial, steps = 0.4, 0.2, 0.03, 15.0, 2
    start = {"output": {"weight": np.array([[0.3, -0.2, 0.1]]), "bias": np.array([0.2])}}
    run = pfedbred.run(
        federation=hierarchy.federation,
        task="regression",
        model=pfedbred.models.mclr((FEATURES,), 1, dtype=jnp.float64),
        algorithm="shifted-prior",
        settings={"temper": temper, "alpha": alpha, "alpha_m": alpha_m, "R": steps},
        start_from=start,
        rounds=3,
        aggregated=4,
        weights="uniform",
        batch_size=12,
        screening="norms",
    )
    w = flat(start)
    theta, seen = [w] * 4, [w] * 4
    gamma, spread, loss, free = np.zeros(4), np.zeros(4), 0.0, 0.0
    for _ in range(3):
        lam = np.full(4, initial)
        if free:
            lam = np.clip(temper * (2 * loss / free) * gamma / spread / 12, initial / 1e4, initial * 1e4)
        local, found = [], []
        for i, (x, y) in enumerate(zip(hierarchy.designs, hierarchy.y, strict=True)):
            v, own = theta[i] + w - seen[i], w
            for _ in range(steps):
                slope = x.T @ (x @ v - y) / 12 + lam * (v - w)
                v = v - alpha * slope / (1 + alpha * lam)
                own = own - alpha_m * initial * (own - v)
            theta[i], seen[i] = v, w
            local.append(own)
            determined = 1 - 12 * lam * np.diag(np.linalg.inv(x.T @ x + np.diag(12 * lam)))
            found.append((determined, (v - w) ** 2, np.sum((x @ v - y) ** 2) / 2, 12 - determined.sum()))
        means = [np.mean(each, axis=0) for each in zip(*found, strict=True)]
        kept = zip((gamma, spread, loss, free), means, strict=True)
        gamma, spread, loss, free = (old + 0.3 * (new - old) for old, new in kept)
        w = np.mean(local, axis=0)
    np.testing.assert_allclose(w_of(run), w, rtol=1e-5)
    for i in range(4):
        np.testing.assert_allclose(flat(run.personal_model(i)), theta[i], rtol=1e-5)


def test_a_learned_sigma_takes_a_strength_learned_by_layer():
    """As learned-prior's default is: Sigma has a strength for each entry anyway."""
    task = pfedbred.Task(pfedbred.models.mclr((2,), 2))
    assert pfedbred.make("learned-prior", task, {"sigma": "learned"})


def test_a_schedule_and_a_sweep_of_lam_still_work():
    run = pfedbred.run(clients=4, rounds=2, algorithm="pfedme", settings={"lam": {"schedule": "linear", "start": 5.0}})
    assert run.points[-1].round == 2


# With every backend ----------------------------------------------------------------------------------------------


EVERY = ["learned", "learned(layer)", "learned(client x layer)"]


@pytest.mark.full
@pytest.mark.parametrize("lam", EVERY)
@pytest.mark.few_cases
def test_executors_and_backends_agree(lam):
    """vmap, one client after another, and clients that come and go: the same models to rounding."""

    def models(**options):
        run = pfedbred.run(
            clients=5,
            model="dnn",
            rounds=3,
            aggregated=5,
            algorithm="learned-prior",
            settings={"lam": lam, "R": 3},
            participation="sample",
            **options,
        )
        return [run.global_model(), run.personal_model(2)]

    usual = models(executor="in-turn", store="device")
    for options in ({"executor": "vmap", "store": "device"}, {"executor": "in-turn", "store": "memory"}):
        for one, other in zip(usual, models(**options), strict=True):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), one, other)


class StopAfter(pfedbred.Callback):
    """Stops a run after so many rounds."""

    def __init__(self, rounds):
        self.rounds = rounds

    def most_rounds(self, progress):
        return 1

    def stop_reason(self, progress):
        return "enough" if progress.round == self.rounds else None


@pytest.mark.full
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    options = {
        "clients": 4,
        "model": "dnn",
        "aggregated": 4,
        "algorithm": "learned-prior",
        "settings": {"R": 2, "lam": "learned(client x layer)"},
        "rounds": 4,
        "eval_every": 1,
    }
    whole = pfedbred.run(**options)
    half = pfedbred.run(**options, out=tmp_path / "run", callbacks=[StopAfter(2)])
    assert half.round == 2
    resumed = pfedbred.run(**options, out=tmp_path / "run", resume=True)
    for one, other in zip(
        jax.tree.leaves((whole.state.server, whole.state.clients)),
        jax.tree.leaves((resumed.state.server, resumed.state.clients)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
