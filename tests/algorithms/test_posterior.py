"""Posteriors of personal models: covariances against Hessians, predictions against integrals by sampling."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation
from jax.flatten_util import ravel_pytree

import pfedbred
from pfedbred.algorithms import posterior
from pfedbred.algorithms.posterior import WithPosterior, WithSamples, with_posterior
from pfedbred.data.minibatches import Batch, ClientData, Inputs
from pfedbred.tasks import BINARY, per_sample

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(70, 3)), RNG.integers(0, 3, 70)
DATA = ClientData(Inputs(jnp.asarray(X)), jnp.asarray(Y), None, jnp.int32(0), jnp.int32(70))


def hessian(task, params, x, y):
    """Of the loss of all samples, by finite differences of its gradient."""
    vector, unravel = ravel_pytree(params)
    gradient = jax.jit(jax.grad(lambda v: len(x) * task.loss(unravel(v), Batch(jnp.asarray(x), jnp.asarray(y)))))
    steps = 1e-5 * np.eye(len(vector))
    return np.stack([(gradient(vector + step) - gradient(vector - step)) / 2e-5 for step in steps])


def posterior_of(algorithm, task, params, state):
    made = with_posterior(algorithm, task, "laplace")
    return made, made.client.model(params, state, DATA)


def test_the_covariance_is_the_inverse_of_the_posteriors_hessian():
    """pFedMe's prior has the precision n lam around w."""
    task = pfedbred.Task(pfedbred.models.mclr((3,), 3, dtype=jnp.float64))
    algorithm = pfedbred.make("pfedme", task, {"lam": 0.3})
    params = task.model.init(jax.random.key(3))
    _, found = posterior_of(algorithm, task, params, algorithm.client.init(params))
    expected = np.linalg.inv(hessian(task, params, X, Y) + 70 * 0.3 * np.eye(12))
    np.testing.assert_allclose(found.covariance, expected, atol=1e-8)


@pytest.mark.parametrize(
    ("method", "precision"),
    [
        ("mr-mtl", lambda x: np.ones_like(x)),
        ("mg-meta(huber(c=0.1))", lambda x: np.minimum(1, 0.1 / np.abs(x))),
        ("mg-meta(exponential)", lambda x: np.exp(x)),
    ],
)
@pytest.mark.broad
def test_the_prior_of_a_posterior_holds_p_around_g(method, precision):
    """A network far from G: n lam times the second derivative or, of a long-tailed prior, the weight, by hand."""
    task = pfedbred.Task(pfedbred.models.mclr((3,), 3, dtype=jnp.float64))
    name, _, prior = method.partition("(")
    algorithm = pfedbred.make(name, task, {"lam": 0.3, **({"prior": prior[:-1]} if prior else {})})
    personal, server = (task.model.init(jax.random.key(seed)) for seed in (3, 4))
    state = algorithm.client.init(personal)
    made = with_posterior(algorithm, task, "laplace")
    away = np.asarray(ravel_pytree(personal)[0] - ravel_pytree(server)[0])
    away = np.where(away == 0, 1e-9, away)  # the biases
    found = made.client.model(server, state, DATA)
    expected = np.linalg.inv(hessian(task, personal, X, Y) + np.diag(70 * 0.3 * precision(away)))
    np.testing.assert_allclose(found.covariance, expected, atol=1e-7)


def test_a_prior_that_holds_nothing_has_a_finite_posterior():
    task = pfedbred.Task(pfedbred.models.mclr((3,), 3, dtype=jnp.float64))
    algorithm = pfedbred.make("ditto", task, {"lam": 0.0})
    params = task.model.init(jax.random.key(3))
    _, found = posterior_of(algorithm, task, params, params)
    assert np.all(np.isfinite(found.covariance))


def test_without_a_prior_its_precision_maximises_the_evidence():
    """tau = gamma / ||h||^2 with gamma = tr(H (H + tau I)^-1), solved by NumPy."""
    task = pfedbred.Task(pfedbred.models.mclr((3,), 3, dtype=jnp.float64))
    algorithm = pfedbred.make("fedavg", task)
    params = jax.tree.map(lambda leaf: 3 * leaf, task.model.init(jax.random.key(3)))
    _, found = posterior_of(algorithm, task, params, algorithm.client.init(params))
    curved, tau = hessian(task, params, X, Y), 1.0
    head = np.asarray(ravel_pytree(params)[0])
    for _ in range(10):
        inverse = np.linalg.inv(curved + tau * np.eye(12))
        tau = np.trace(curved @ inverse) / (head @ head)
    np.testing.assert_allclose(found.covariance, np.linalg.inv(curved + tau * np.eye(12)), rtol=1e-5, atol=1e-8)


def test_only_the_diagonal_of_a_large_last_layer_is_kept():
    task = pfedbred.Task(pfedbred.models.mclr((400,), 3, dtype=jnp.float64))
    x = RNG.normal(size=(70, 400))
    data = DATA._replace(x=Inputs(jnp.asarray(x)))
    algorithm = pfedbred.make("ditto", task, {"lam": 0.5})
    params = task.model.init(jax.random.key(1))
    found = with_posterior(algorithm, task, "laplace").client.model(params, params, data)
    p = np.asarray(jax.nn.softmax(task.model.apply(params, jnp.asarray(x))))
    weight = np.einsum("bc,bd->cd", p * (1 - p), x**2)  # the diagonal of softmax regression's Hessian
    expected = 1 / (np.concatenate([(p * (1 - p)).sum(0), weight.ravel()]) + 70 * 0.5)
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-8)


@pytest.mark.parametrize(("model", "shape"), [("mclr", (64,)), ("dnn", (64,)), ("cnn", (28, 28))])
def test_last_layers_of_ten_labels_have_a_matrix(model, shape):
    """That of `mclr` on the digits, and of networks at their default size; both kinds of posterior use it."""
    task = pfedbred.Task(pfedbred.models.get(model, shape, 10))
    algorithm = pfedbred.make("ditto", task)
    params = jax.eval_shape(task.model.init, jax.random.key(0))
    x = jnp.zeros((70, *shape))
    data = DATA._replace(x=Inputs(x), y=jnp.zeros(70, jnp.int32), rows=jnp.zeros((1000, 5), jnp.int32))
    size = sum(leaf.size for leaf in jax.tree.leaves(params["output"]))
    assert 512 < size <= 1100

    def fitted(kind):
        return jax.eval_shape(with_posterior(algorithm, task, kind).client.model, params, params, data)

    assert fitted("laplace").covariance.shape == (size, size)
    assert fitted("sgld").heads.shape == (20, size)


def test_langevin_dynamics_need_a_matrix():
    task = pfedbred.Task(pfedbred.models.mclr((400,), 3))
    made = with_posterior(pfedbred.make("ditto", task), task, "sgld")
    params = task.model.init(jax.random.key(0))
    with pytest.raises(pfedbred.SettingError, match="needs a last layer of at most 1,100 params, not 1,203"):
        jax.eval_shape(made.client.model, params, params, DATA._replace(x=Inputs(jnp.zeros((70, 400)))))


@pytest.mark.broad
def test_predictions_are_those_of_sampled_last_layers():
    """A binary model: the probability integrated over the posterior, with 200,000 samples."""
    y = (X[:, 0] + 0.5 * RNG.normal(size=70) > 0).astype(int)
    model = pfedbred.models.mclr((3,), 1, dtype=jnp.float64)
    task = pfedbred.Task(model, per_sample(BINARY), BINARY)
    algorithm = pfedbred.make("pfedme", task, {"lam": 0.01})
    params = {"output": {"weight": jnp.asarray([[2.0, 0.3, -0.2]]), "bias": jnp.asarray([0.1])}}
    made = with_posterior(algorithm, task, "laplace")
    found = made.client.model(params, algorithm.client.init(params), DATA._replace(y=jnp.asarray(y)))
    points = jnp.asarray([[0.3, 0.0, 0.0], [1.0, -1.0, 2.0], [-6.0, 8.0, 5.0], [20.0, 3.0, -9.0]])
    flat, unravel = ravel_pytree(params)
    heads = RNG.multivariate_normal(np.asarray(flat), np.asarray(found.covariance), 200_000)
    sampled = jax.vmap(lambda head: jax.nn.sigmoid(model.apply(unravel(head), points)[:, 0]))(jnp.asarray(heads))
    integrated = jax.nn.sigmoid(made.predict(found, points)[:, 0])
    np.testing.assert_allclose(integrated, sampled.mean(axis=0), atol=0.02)
    plain = jax.nn.sigmoid(made.predict(params, points)[:, 0])  # G has no posterior
    assert np.all(np.abs(integrated - 0.5) < np.abs(plain - 0.5))
    assert abs(float(plain[2] - integrated[2])) > 0.02  # far from all samples it is less certain


@pytest.mark.broad
def test_langevin_dynamics_draw_from_the_posterior():
    """A binary model with one input and no bias to speak of: the posterior by quadrature, with its skewness."""
    x = np.abs(RNG.normal(size=(12, 1))) + 0.5
    model = pfedbred.models.mclr((1,), 1, dtype=jnp.float64)
    task = pfedbred.Task(model, per_sample(BINARY), BINARY)
    data = ClientData(Inputs(jnp.asarray(x)), jnp.ones(12, jnp.int32), None, jnp.int32(0), jnp.int32(12))
    data = data._replace(rows=jnp.tile(jnp.arange(12), (posterior._WARMUP + 20_000 * posterior._THINNING, 1)))
    precision = jnp.asarray([1e6, 0.5])  # of bias and weight

    def cost(weight):
        return np.sum(np.log1p(np.exp(-x[:, 0] * weight))) + 0.25 * weight**2

    grid = np.linspace(-2, 12, 4001)
    density = np.exp(-np.array([cost(each) for each in grid]))
    density /= density.sum()
    mode = grid[np.argmax(density)]
    curved = np.sum(x[:, 0] ** 2 / (2 + 2 * np.cosh(x[:, 0] * mode)))
    covariance = jnp.diag(jnp.asarray([1e-6, 1 / (curved + 0.5)]))
    params = {"output": {"weight": jnp.asarray([[mode]]), "bias": jnp.zeros(1)}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posterior, "_SAMPLES", 20_000)
        heads = np.asarray(posterior._langevin(task, params, covariance, precision, data, 0))[:, 1]
    mean = np.sum(grid * density)
    deviation = np.sqrt(np.sum((grid - mean) ** 2 * density))
    assert mean > mode + 0.1  # skewed: Laplace's approximation has its mean at the mode
    np.testing.assert_allclose(heads.mean(), mean, atol=0.08)
    np.testing.assert_allclose(heads.std(), deviation, rtol=0.06)


def test_drawn_last_layers_predict_their_mean_probability():
    task = pfedbred.Task(pfedbred.models.mclr((3,), 3, dtype=jnp.float64))
    made = with_posterior(pfedbred.make("fedavg", task), task, "sgld")
    params = task.model.init(jax.random.key(0))
    heads = jnp.asarray(RNG.normal(size=(4, 12)))
    _, unravel = ravel_pytree(params)
    x = jnp.asarray(RNG.normal(size=(5, 3)))
    expected = np.mean([jax.nn.softmax(task.model.apply(unravel(head), x)) for head in heads], axis=0)
    np.testing.assert_allclose(jax.nn.softmax(made.predict(WithSamples(params, heads), x)), expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("learned-prior", "laplace"),
        ("fedavg+ft", "sgld"),
        pytest.param("fedper", "laplace", marks=pytest.mark.full),
        pytest.param("ditto", "sgld", marks=pytest.mark.full),
    ],
)
@pytest.mark.few_cases
@pytest.mark.full
def test_a_posterior_goes_into_files_and_out_again(method, kind, tmp_path):
    federation = small_federation()
    options = {"federation": federation, "algorithm": method, "posterior": kind, "settings": {"R": 2}}
    plain = pfedbred.run(**options | {"posterior": None}, rounds=2)
    run = pfedbred.run(**options, rounds=2, out=tmp_path / "run")
    assert isinstance(run.personal_model(1), WithPosterior if kind == "laplace" else WithSamples)
    jax.tree.map(np.testing.assert_array_equal, run.global_model(), plain.global_model())  # training is the same
    jax.tree.map(np.testing.assert_array_equal, run.personal_model(1).model, plain.personal_model(1))
    loaded = pfedbred.load_model(pfedbred.export(tmp_path / "run", client=1, out=tmp_path / "model.safetensors"))
    x = federation.test.x[:5]
    expected = run.backend.algorithm.predict(run.personal_model(1), jnp.asarray(x))
    np.testing.assert_allclose(loaded.logits(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "fedem"}, "a mixture of several"),
        ({"posterior": "mcmc"}, "posterior must be one of laplace, sgld, ensemble, not 'mcmc'"),
        ({"settings": {"sigma": np.eye(21)}, "algorithm": "pfedbred"}, "a sum over params"),
    ],
)
def test_what_has_no_posterior_is_said(options, words):
    with pytest.raises(pfedbred.SettingError) as refused:
        pfedbred.run(**{"federation": small_federation(), "rounds": 1, "posterior": "laplace", **options})
    assert words in str(refused.value)


@pytest.mark.full
def test_a_posterior_knows_the_prior_of_clients_that_keep_their_optimizers():
    given = {"federation": small_federation(), "algorithm": "pfedme", "settings": {"R": 2, "K": 1}, "batch_size": 4}
    given |= {"posterior": "laplace", "local_optimizer": "sgd(momentum=0.0)", "rounds": 1}
    one, other = (pfedbred.run(**given, keep_optimizer=keep) for keep in (False, True))
    for a, b in zip(*map(jax.tree.leaves, (one.personal_model(1), other.personal_model(1))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
