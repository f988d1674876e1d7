"""pFedBayes and pFedVEM against plain NumPy transcriptions, in float64: to 1e-10.

As in ``test_reference_stateful``, the two sides share the initial params, the rows of each minibatch and the selection,
and besides these the normal numbers; everything computed from them is computed twice.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation
from support import numpy_bayes as bayes
from test_reference import _slopes, as_vector
from test_reference_stateful import BATCH, CHANGING, CLASSES, FEATURES, HIDDEN, ROUNDS, SEED, SIZES, Run, agree

import pfedbred
from pfedbred.algorithms import mean_field
from pfedbred.algorithms.base import Uploads
from pfedbred.algorithms.body_and_head import BodyAndHead
from pfedbred.algorithms.pfedvem import Upload
from pfedbred.data.minibatches import example_data
from pfedbred.engine.keys import network_key

# All different within a method, and large, so that every term counts.
SETTINGS: dict[str, dict[str, Any]] = {
    "pfedbayes": {"zeta": 2.0, "sigma": 0.3, "alpha": 0.12, "alpha_m": 0.07, "R": 4, "beta": 0.8},
    "pfedvem": {"sigma": 0.4, "alpha_head": 0.17, "alpha": 0.11, "R_head": 3, "R": 2},
}
SAMPLES = 3


@pytest.fixture(scope="module")
def federation() -> pfedbred.Federation:
    return small_federation(SIZES, FEATURES, CLASSES)


@functools.cache
def drawing(entries: int) -> Any:
    """The normal numbers of a client's local step, for a linear layer of so many inputs."""
    layer = {"weight": jnp.zeros((CLASSES, entries)), "bias": jnp.zeros(CLASSES)}

    @jax.jit
    def draw(i: Any, read: Any, step: Any) -> Any:
        key = jax.random.fold_in(network_key(jax.random.key(SEED), i, read * BATCH), step)
        return mean_field.noise(pfedbred.Batch(None, None, key=key), {"output": layer}, SAMPLES)

    def rows(i: int, read: int, step: int) -> np.ndarray:
        found = draw(i, read, step)
        return np.stack([as_vector(jax.tree.map(lambda leaf, k=k: leaf[k], found)) for k in range(SAMPLES)])

    return rows


class Sampled(Run):
    """A run whose method draws normal numbers."""

    def __init__(self, federation: pfedbred.Federation, name: str, **options: Any) -> None:
        super().__init__(federation, name, samples=SAMPLES, **SETTINGS[name], **options)
        self.settings = SETTINGS[name]

    def check(self) -> None:
        """Both models of every client, and the deviations."""
        if self.name == "pfedbayes":
            w, kept = bayes.pfedbayes(self.world(), self.start, drawing(FEATURES), **self.settings)
            expected, personal = w.mean, [each.mean for each in kept]
            agree(as_vector(jax.tree.map(lambda leaf: leaf[0], self.states.server.model.rho)), w.rho, "rho of w")
        else:
            start = np.split(self.start, [HIDDEN * (FEATURES + 1)])
            network, networks, kept = bayes.pfedvem(self.world(), *start, drawing(HIDDEN), **self.settings)
            expected, personal = np.concatenate(network), [np.concatenate(each) for each in networks]
        assert np.abs(expected - self.start).max() > 0.01
        agree(self.vector(self.shared()), expected, "global model")
        for i in range(self.federation.clients):
            agree(self.vector(self.personal(i)), personal[i], f"personal model of client {i}")
            if self.states.clients.participated[0, i]:
                rho = jax.tree.map(lambda leaf, i=i: leaf[0, i], self.states.clients.state.rho)
                agree(as_vector(rho), kept[i].rho, f"rho of client {i}")
        assert max(np.ptp(each.rho) for each in kept) > 0.01  # deviations are learned


@pytest.mark.broad
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("participation", ["sample", pytest.param("all", marks=pytest.mark.full)])
@pytest.mark.broad
def test_three_rounds_agree(name, participation, federation):
    run = Sampled(federation, name, participation=participation)
    run.advance(ROUNDS)
    run.check()


@pytest.mark.full
@pytest.mark.parametrize("name", SETTINGS)
def test_a_selection_that_changes_agrees(name, federation):
    """Clients keep their distributions while they sit out, and draw on where they stopped."""
    run = Sampled(federation, name, select=CHANGING, participation="sample")
    for rounds in (2, 3):
        run.advance(rounds)
        run.check()


# Special cases ---------------------------------------------------------------------------------------------


def test_pfedbayes_without_divergence_trains_every_client_alone():
    """Its own distribution on its own data, and the global one stays; without noise, it is local training."""
    task = pfedbred.Task(pfedbred.models.mclr((FEATURES,), CLASSES, dtype=jnp.float64))
    data = example_data(pfedbred.Batch(jnp.ones((1, FEATURES)), jnp.zeros(1, int)))
    algorithm = pfedbred.make("pfedbayes", task, {"zeta": 0.0, "sigma": 1e-9, "R": 3})
    w = algorithm.server.init(jax.random.key(0), 1).model
    upload, q = jax.jit(lambda w: algorithm.client.train(w, algorithm.client.init(w), data))(w)
    alone = jax.jit(lambda w: pfedbred.make("local", task, {"R": 3}).client.train(w, w, data)[1])(w.mean)
    agree(as_vector(upload.mean), as_vector(w.mean), "the global mean")
    np.testing.assert_allclose(as_vector(q.mean), as_vector(alone), rtol=0, atol=1e-8)
    assert np.abs(as_vector(alone) - as_vector(w.mean)).max() > 0.01


def test_the_m_step_of_pfedvem_is_in_closed_form():
    """rho_i minimises KL(q_i || N(w, rho^2)), and the next w the sum of these over clients."""
    task = pfedbred.Task(pfedbred.models.mclr((FEATURES,), CLASSES, dtype=jnp.float64))
    algorithm = pfedbred.make("pfedvem", task, {"alpha_head": 0.0, "alpha": 0.0, "R": 1, "R_head": 1})
    data = example_data(pfedbred.Batch(jnp.ones((1, FEATURES)), jnp.zeros(1, int)))
    state = algorithm.server.init(jax.random.key(0), 2)
    w = state.model.head

    def other(seed: int) -> Any:
        keys = iter(jax.random.split(jax.random.key(seed), 4))
        return jax.tree.map(lambda leaf: leaf + jax.random.normal(next(keys), leaf.shape), w)

    clients = [mean_field.MeanField(other(1), other(2)), mean_field.MeanField(other(3), other(4))]
    train = jax.jit(lambda q: algorithm.client.train(state.model, q, data)[0])
    uploads = [train(q) for q in clients]

    def away(q: Any, w: Any, log_rho: Any) -> Any:
        return mean_field.divergence(q, w, jax.tree.map(lambda leaf: jnp.exp(log_rho), w))

    log_rhos = [-jnp.log(each.confidence) / 2 for each in uploads]
    assert abs(log_rhos[0] - log_rhos[1]) > 0.01
    for q, log_rho in zip(clients, log_rhos, strict=True):
        assert abs(jax.grad(away, 2)(q, w, log_rho)) < 1e-12
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *uploads)
    assert isinstance(stacked, Upload)
    received = Uploads(stacked, jnp.arange(2), jnp.array([0.9, 0.1]), jnp.ones(2, bool), jax.random.key(0))
    after = algorithm.server.aggregate(state, received).model
    assert isinstance(after, BodyAndHead)

    def total(w: Any) -> Any:
        return sum(away(q, w, log_rho) for q, log_rho in zip(clients, log_rhos, strict=True))

    for leaf in jax.tree.leaves(jax.grad(total)(after.head)):
        np.testing.assert_allclose(leaf, 0, rtol=0, atol=1e-12)


# Mean-field Gaussians --------------------------------------------------------------------------------------


def test_the_divergence_is_an_integral():
    """KL(q || p) = the integral of q log(q / p), by the trapezoidal rule."""
    q = mean_field.MeanField(
        {"a": jnp.array([0.3, -1.0]), "b": jnp.array([0.7])}, {"a": jnp.array([0.1, -0.4]), "b": jnp.array([1.0])}
    )
    mean, sigma = (
        {"a": jnp.array([0.0, 0.4]), "b": jnp.array([1.2])},
        {"a": jnp.array([0.8, 1.1]), "b": jnp.array([0.6])},
    )
    x = np.linspace(-25, 25, 100_001)

    def density(mean: float, sigma: float) -> np.ndarray:
        return np.exp(-(((x - mean) / sigma) ** 2) / 2) / (sigma * np.sqrt(2 * np.pi)) + 1e-300

    flat = [np.concatenate([tree["a"], tree["b"]]) for tree in (q.mean, q.sigma, mean, sigma)]
    each = [(density(a, b), density(c, d)) for a, b, c, d in zip(*flat, strict=True)]
    expected = sum(np.trapezoid(left * np.log(left / right), x) for left, right in each)
    np.testing.assert_allclose(mean_field.divergence(q, mean, sigma), expected, rtol=1e-9)


def test_deviations_start_as_given():
    for leaf in jax.tree.leaves(mean_field.around({"a": jnp.ones(3), "b": jnp.zeros((2, 2))}, 0.07).sigma):
        np.testing.assert_allclose(leaf, 0.07, rtol=1e-12)


def test_noise_is_standard_normal_and_another_for_every_draw():
    like = {"a": jnp.zeros(2000), "b": jnp.zeros(2000)}
    batches = [pfedbred.Batch(None, None, key=jax.random.key(seed)) for seed in (0, 1)]
    rows = [leaf[k] for batch in batches for leaf in mean_field.noise(batch, like, 2).values() for k in range(2)]
    for row in rows:
        assert abs(np.mean(row)) < 0.1
        assert abs(np.std(row) - 1) < 0.1
    related = np.corrcoef(np.stack(rows)) - np.eye(len(rows))
    assert np.abs(related).max() < 0.1


@pytest.mark.parametrize("samples", [1, 4])
def test_the_expectation_is_the_mean_over_draws(samples):
    q = mean_field.around({"a": jnp.array([0.5, -0.2])}, 0.3)
    batch = pfedbred.Batch(None, None, key=jax.random.key(3))
    found = mean_field.expected(lambda params: jnp.sum(params["a"] ** 3), q, batch, samples)
    noise = np.asarray(mean_field.noise(batch, q.mean, samples)["a"])
    np.testing.assert_allclose(found, np.mean(np.sum((np.array([0.5, -0.2]) + 0.3 * noise) ** 3, axis=1)), rtol=1e-12)


# The reference against itself ------------------------------------------------------------------------------


def test_reference_gradients_are_those_of_the_divergence():
    rng = np.random.default_rng(8)
    q, w = (bayes.Gaussian(*rng.normal(size=(2, 5))) for _ in range(2))
    close = {"rtol": 0, "atol": 1e-7}

    def divergence(both: np.ndarray) -> float:
        mean_q, rho_q, mean_w, rho_w = np.split(both, 4)
        return bayes.kl(bayes.Gaussian(mean_q, rho_q), mean_w, bayes.deviation(rho_w))

    slopes = np.split(_slopes(divergence, np.concatenate([*q, *w])), 4)
    found = [*bayes.kl_gradient(q, w.mean, bayes.deviation(w.rho)), *bayes.kl_gradient_of_prior(q, w)]
    for mine, expected in zip(found, slopes, strict=True):
        np.testing.assert_allclose(mine, expected, **close)
    assert bayes.kl(q, q.mean, bayes.deviation(q.rho)) == pytest.approx(0, abs=1e-12)
