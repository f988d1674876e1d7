"""Proximal steps in coordinates equal the plain steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred import models, priors
from pfedbred.algorithms.base import Task
from pfedbred.bregman.proximal import Problem, gradient_steps, prox, solver
from pfedbred.data.minibatches import Batch, ClientData, Inputs

FEATURES, CLASSES, SAMPLES = 40, 3, 6


def problem(name, key, lam, sigma=None):
    """A random one, whose start is not its mean; plain and with its first layer."""
    keys = jax.random.split(key, 4)
    task = Task(getattr(models, name)((FEATURES,), CLASSES, dtype=jnp.float64))
    x = jax.random.normal(keys[0], (SAMPLES, FEATURES), jnp.float64)
    batch = Batch(x, jax.random.randint(keys[1], (SAMPLES,), 0, CLASSES))
    start, mean = task.model.init(keys[2]), task.model.init(keys[3])
    plain = Problem(lambda v: task.loss(v, batch), mean, priors.gaussian(sigma), lam)
    return plain, plain._replace(first=task.first_layer(batch)), start


@pytest.mark.parametrize(
    ("name", "steps", "sigma"),
    [
        ("dnn", 7, None),  # a loop, where fewer steps are unrolled
        pytest.param("mclr", 2, 2.5, marks=pytest.mark.full),
        pytest.param("dnn", 2, 2.5, marks=pytest.mark.full),
        pytest.param("mclr", 7, None, marks=pytest.mark.full),
    ],
)
def test_both_ways_agree(name, steps, sigma):
    @jax.jit
    def both(key, lam):
        plain, reduced, start = problem(name, key, lam, sigma)
        assert reduced.first is not None
        return [prox(each, gradient_steps(0.03, steps), start) for each in (plain, reduced)]

    for seed, lam in enumerate((0.0, 0.5, 3.0, 11.0, 20.0)):
        expected, found = both(jax.random.key(seed), lam)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, expected)


def test_by_hand():
    """Two steps on logistic regression in plain NumPy."""
    _, reduced, start = problem("mclr", jax.random.key(3), 7.0)
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


def test_coordinates_take_less_work():
    """Five plain steps read W five times and write it five times; in coordinates it is twice and once."""
    flops = []
    for each in problem("dnn", jax.random.key(0), 5.0)[:2]:
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
def test_what_is_not_linear_takes_plain_steps(change, solve):
    """The very same program, whether or not the first layer is known."""
    plain, reduced, start = problem("mclr", jax.random.key(1), 2.0)
    programs = [
        str(jax.make_jaxpr(lambda s, p=each: prox(p._replace(**change), solve, s))(start)) for each in (plain, reduced)
    ]
    assert programs[0] == programs[1]
    linear = str(jax.make_jaxpr(lambda s: prox(reduced, gradient_steps(0.03, 4), s))(start))
    assert linear != str(jax.make_jaxpr(lambda s: prox(plain, gradient_steps(0.03, 4), s))(start))


@pytest.mark.broad
@pytest.mark.parametrize("algorithm", ["mg-meta", pytest.param("pfedme", marks=pytest.mark.full)])
def test_a_round_of_a_client_is_the_same_with_and_without(algorithm):
    """The library's own models, with and without the information that they begin with a linear layer."""
    known = models.dnn((30,), CLASSES, hidden=4, dtype=jnp.float64)
    x, y = small_federation(sizes=(20,), features=30).train.client(0)
    rows = np.random.default_rng(0).integers(0, 20, (6, 5))
    data = ClientData(Inputs(jnp.asarray(x)), jnp.asarray(y), jnp.asarray(rows), jnp.int32(0), jnp.int32(20))

    def train(model):
        task = Task(model)
        client = pfedbred.make(algorithm, task, {"R": 3}).client
        w = model.init(jax.random.key(1))
        return client.train(w, client.init(w), data)[:2]

    assert Task(known).first_layer(data.batch(0)) is not None
    one, other = jax.jit(lambda: (train(known), train(known._replace(first=None, rest=None))))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), one, other)


@pytest.mark.full
def test_a_run_is_the_same_with_and_without():
    federation = small_federation(features=30)
    known = models.dnn(federation.shape, federation.classes, dtype=jnp.float64)
    options = {"federation": federation, "algorithm": "mg-meta", "rounds": 2, "batch_size": 5, "settings": {"R": 3}}
    with_, without = (pfedbred.run(model=model, **options) for model in (known, known._replace(first=None, rest=None)))
    for client in range(4):
        one, two = with_.personal_model(client), without.personal_model(client)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), one, two)


def test_small_samples_are_not_reduced():
    task = Task(models.mclr((20,), 3))
    assert task.first_layer(Batch(jnp.zeros((6, 20)), jnp.zeros(6, int))) is None
    assert task.first_layer(Batch(jnp.zeros((5, 20)), jnp.zeros(5, int))) is not None
    assert Task(models.cnn((28, 28), 3)).first_layer(Batch(jnp.zeros((2, 28, 28)), jnp.zeros(2, int))) is None
