"""Proximal steps in coordinates are the plain ones, written otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation
from hypothesis import given, settings
from hypothesis import strategies as st

import pfedbred
from pfedbred import models, priors
from pfedbred.algorithms.base import Task
from pfedbred.bregman.proximal import Problem, gradient_steps, prox, solver
from pfedbred.data.minibatches import Batch

FEATURES, CLASSES, SAMPLES = 40, 3, 6


def problem(name, seed, lam, sigma=None):
    """A random one, whose start is not its mean."""
    keys = jax.random.split(jax.random.key(seed), 4)
    task = Task(getattr(models, name)((FEATURES,), CLASSES, dtype=jnp.float64))
    x = jax.random.normal(keys[0], (SAMPLES, FEATURES), jnp.float64)
    batch = Batch(x, jax.random.randint(keys[1], (SAMPLES,), 0, CLASSES))
    start, mean = task.model.init(keys[2]), task.model.init(keys[3])
    plain = Problem(lambda v: task.loss(v, batch), mean, priors.gaussian(sigma), lam)
    return plain, plain._replace(first=task.first_layer(batch)), start


@settings(max_examples=10)
@given(
    name=st.sampled_from(["mclr", "dnn"]),
    seed=st.integers(0, 100),
    lam=st.floats(0.0, 20.0),
    steps=st.integers(2, 9),
    sigma=st.sampled_from([None, 2.5]),
)
def test_both_ways_agree(name, seed, lam, steps, sigma):
    plain, reduced, start = problem(name, seed, lam, sigma)
    assert reduced.first is not None
    solve = gradient_steps(0.03, steps)
    expected, found = prox(plain, solve, start), prox(reduced, solve, start)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, expected)


def test_by_hand():
    """Two steps on logistic regression in plain NumPy."""
    _, reduced, start = problem("mclr", 3, 7.0)
    x, y = (
        np.asarray(reduced.first.x),
        np.asarray(jax.random.randint(jax.random.split(jax.random.key(3), 4)[1], (6,), 0, 3)),
    )
    w, b = (np.asarray(start["output"][part]) for part in ("weight", "bias"))
    m, mb = (np.asarray(reduced.mean["output"][part]) for part in ("weight", "bias"))
    for _ in range(2):
        logits = x @ w.T + b
        p = np.exp(logits - logits.max(1, keepdims=True))
        delta = (p / p.sum(1, keepdims=True) - np.eye(3)[y]) / 6
        w, b = w - 0.03 * (delta.T @ x + 7.0 * (w - m)), b - 0.03 * (delta.sum(0) + 7.0 * (b - mb))
    found = prox(reduced, gradient_steps(0.03, 2), start).personal["output"]
    np.testing.assert_allclose(found["weight"], w, rtol=1e-12)
    np.testing.assert_allclose(found["bias"], b, rtol=1e-12)


def test_it_is_less_work():
    """Five plain steps read W five times and write it five times; in coordinates it is twice and once."""
    flops = []
    for each in problem("dnn", 0, 5.0)[:2]:
        program = jax.jit(lambda s, p=each: prox(p, gradient_steps(0.1, 5), s)).lower(each.mean).compile()
        flops.append(program.cost_analysis()["flops"])
    assert flops[1] < flops[0] / 2


@pytest.mark.parametrize(
    ("change", "solve"),
    [
        ({}, solver("adam", 0.01, 4)),
        ({}, gradient_steps(0.03, 50, tol=1e-3)),
        ({"family": priors.bernoulli()}, gradient_steps(0.03, 4)),
        ({"family": priors.gaussian(np.linspace(1, 2, 123))}, gradient_steps(0.03, 4)),
    ],
    ids=["adam", "tolerance", "bernoulli", "diagonal"],
)
def test_what_is_not_linear_goes_the_plain_way(change, solve):
    plain, reduced, start = problem("mclr", 1, 2.0)
    expected = prox(plain._replace(**change), solve, start)
    found = prox(reduced._replace(**change), solve, start)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("algorithm", [pytest.param("pfedme", marks=pytest.mark.slow), "mg-meta"])
def test_a_run_is_the_same_with_and_without(algorithm):
    """The engine's own models, told and not told that they begin with a linear layer."""
    federation = small_federation(features=30)
    told = models.dnn(federation.shape, federation.classes, dtype=jnp.float64)
    options = {"federation": federation, "algorithm": algorithm, "rounds": 2, "batch_size": 5, "settings": {"R": 3}}
    with_, without = (pfedbred.run(model=model, **options) for model in (told, told._replace(first=None, rest=None)))
    assert Task(told).first_layer(Batch(jnp.zeros((5, 30)), jnp.zeros(5, int))) is not None
    for client in range(4):
        one, two = with_.personal_model(client), without.personal_model(client)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), one, two)


def test_small_samples_are_not_worth_it():
    task = Task(models.mclr((20,), 3))
    assert task.first_layer(Batch(jnp.zeros((6, 20)), jnp.zeros(6, int))) is None
    assert task.first_layer(Batch(jnp.zeros((5, 20)), jnp.zeros(5, int))) is not None
    assert Task(models.cnn((28, 28), 3)).first_layer(Batch(jnp.zeros((2, 28, 28)), jnp.zeros(2, int))) is None
