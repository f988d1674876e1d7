"""Half precision against NumPy with explicit rounding, and what stays in float32."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred import models
from pfedbred.algorithms.base import Task
from pfedbred.data.minibatches import Batch
from pfedbred.experiment.resume import check_unchanged
from pfedbred.models.base import Model, Statistics, WithStatistics
from pfedbred.types import Words

KEY = jax.random.key(5)


def rounded(array):
    return np.asarray(array, np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def numpy_mclr(params, x, y):
    """Loss and gradient: factors and results of products rounded to bfloat16, everything else in double precision."""
    weight, bias, x = rounded(params["output"]["weight"]), rounded(params["output"]["bias"]), rounded(x)
    logits = rounded(rounded(x @ weight.T) + bias)
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    loss = -np.mean(np.log(shares[np.arange(len(y)), y]))
    delta = rounded((shares - np.eye(shares.shape[1])[y]) / len(y))
    return loss, {"weight": rounded(delta.T @ x), "bias": delta.sum(0)}


def test_mclr_is_numpys_with_factors_rounded_to_bfloat16():
    rng = np.random.default_rng(1)
    model = models.with_precision(models.mclr((30,), 4), "bfloat16")
    params, x, y = model.init(KEY), rng.normal(size=(12, 30)).astype(np.float32), rng.integers(0, 4, 12)
    task, batch = Task(model), Batch(jnp.asarray(x), jnp.asarray(y))
    loss, gradient = jax.jit(jax.value_and_grad(task.loss))(params, batch)
    expected, numpy_gradient = numpy_mclr(jax.tree.map(np.asarray, params), x, y)
    assert loss.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves((params, gradient))} == {jnp.dtype("float32")}
    # Sums are accumulated in another order, which may round a result to the neighbouring bfloat16: 2^-8 apart.
    assert np.isclose(loss, expected, rtol=2e-3)
    for name, array in numpy_gradient.items():
        found = np.asarray(gradient["output"][name])
        assert np.max(np.abs(found - array)) <= 2**-7 * np.max(np.abs(array)), name
    exact = jax.grad(Task(models.mclr((30,), 4)).loss)(params, batch)["output"]["weight"]
    difference = np.abs(np.asarray(gradient["output"]["weight"]) - np.asarray(exact)).max()
    assert 0 < difference < 0.02 * np.abs(exact).max()  # it is rounded indeed, and no more than that


def drawn(name):
    rng, words = np.random.default_rng(0), Words(20, None)
    if name in ("lstm", "charlstm"):
        build = {"lstm": models.lstm, "charlstm": models.charlstm}[name]
        return build((9,), 3, words=words, hidden=8), rng.integers(0, 20, (6, 9)).astype(np.int32)
    shape = {"dnn": (30,), "cnn": (16, 16, 1), "cnn1d": (28,)}[name]
    return models.MODELS[name](shape, 3), rng.normal(size=(6, *shape)).astype(np.float32)


@pytest.mark.parametrize(
    "name", ["dnn", *(pytest.param(each, marks=pytest.mark.full) for each in ("cnn", "cnn1d", "lstm", "charlstm"))]
)
@pytest.mark.few_cases
def test_models_compute_in_bfloat16_and_learn_in_float32(name):
    """Close to float32; every product has factors in bfloat16, those of the gradient too, whose values are rounded."""
    plain, x = drawn(name)
    model, y = models.with_precision(plain, "bfloat16"), jnp.asarray([0, 1, 2, 0, 1, 2])
    params, batch = plain.init(KEY), Batch(jnp.asarray(x), y)
    found = jax.grad(Task(model).loss)(params, batch)
    exact = jax.grad(Task(plain).loss)(params, batch)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}
    one, other = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(each)]) for each in (found, exact))
    assert 0 < np.linalg.norm(one - other) < 0.1 * np.linalg.norm(other)
    np.testing.assert_array_equal(one, rounded(one))  # of the type float32, with the values of bfloat16
    products = list(factors(jax.make_jaxpr(jax.grad(Task(model).loss))(params, batch).jaxpr))
    assert products
    assert set(products) == {jnp.dtype("bfloat16")}


def factors(program):
    """The types of the factors of all matrix products in a jaxpr, inner programs included."""
    for equation in program.eqns:
        if equation.primitive.name == "dot_general":
            yield from (variable.aval.dtype for variable in equation.invars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from factors(inner)


def test_an_lstms_state_is_in_float32():
    """A thousand small additions to c, which bfloat16 would lose once c is 0.25, half of its last value."""
    model = models.charlstm((1000,), 2, words=Words(2, None), hidden=1, embedding=1)
    params = jax.tree.map(jnp.zeros_like, model.init(KEY))
    # sigma(f) = 1, sigma(i) = 0.5, tanh(g) = tanh(0.001): c grows by 0.0005 at every character.
    params["layer1"]["input_bias"] = jnp.float32([0.0, 30.0, 0.001, 30.0])
    params["layer2"]["input"] = jnp.float32([[0.0], [0.0], [1.0], [0.0]])
    params["layer2"]["input_bias"] = jnp.float32([30.0, -30.0, 0.0, 30.0])  # h2 = tanh(tanh(h1))
    params["output"]["weight"] = jnp.float32([[1.0], [0.0]])
    seen = []
    for precision in ("float32", "bfloat16"):
        made = models.with_precision(model, precision)
        seen.append(float(made.apply(params, jnp.ones((1, 1000), jnp.int32))[0, 0]))
    assert np.isclose(seen[0], np.tanh(np.tanh(np.tanh(1000 * 0.5 * np.tanh(0.001)))), rtol=1e-3)
    assert np.isclose(seen[1], seen[0], rtol=0.02)


def test_training_and_statistics_are_rounded_as_well_and_statistics_stay_float32():
    def of(params, x):
        assert params["w"].dtype == x.dtype == jnp.bfloat16
        return {"mean": jnp.mean(x * params["w"]).astype(jnp.bfloat16)}

    def apply(given, x):
        assert given.params["w"].dtype == x.dtype == jnp.bfloat16
        assert given.statistics["mean"].dtype == jnp.float32
        return x * given.params["w"]

    def train(params, x, key):
        assert params["w"].dtype == x.dtype == jnp.bfloat16
        return x * params["w"]

    plain = Model(lambda key: {"w": jnp.float32(1.5)}, apply, train=train, statistics=Statistics(dict, of))
    model, x = models.with_precision(plain, "bfloat16"), jnp.ones((2, 3), jnp.float32)
    params, statistics = model.init(KEY), {"mean": jnp.float32(0)}
    assert model.apply(WithStatistics(params, statistics), x).dtype == jnp.float32
    assert model.train(params, x, KEY).dtype == jnp.float32
    assert model.statistics.of(params, x)["mean"].dtype == jnp.float32


@pytest.mark.parametrize("library", ["flax", "equinox"])
def test_a_users_module_multiplies_in_bfloat16(library):
    if library == "flax":
        linen = pytest.importorskip("flax.linen")
        plain = models.from_flax(linen.Dense(3), (5,))
    else:
        eqx = pytest.importorskip("equinox")
        plain = models.from_equinox(lambda key: eqx.nn.Linear(5, 3, key=key))
    model, x = models.with_precision(plain, "bfloat16"), jnp.ones((4, 5), jnp.float32)
    program = jax.make_jaxpr(model.apply)(model.init(KEY), x)
    assert set(factors(program.jaxpr)) == {jnp.dtype("bfloat16")}


@pytest.mark.full
def test_a_run_in_bfloat16_keeps_float32_and_says_what_it_was(tmp_path):
    """Personal models and what is uploaded are float32; an exported model predicts as it was trained."""
    federation, options = small_federation(), {"rounds": 2, "settings": {"R": 2}, "model": "dnn"}
    out = tmp_path / "run"
    half = pfedbred.run(federation=federation, precision="bfloat16", out=out, **options)
    full = pfedbred.run(federation=federation, **options)
    for model in (half.global_model(), half.personal_model(1)):
        assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("float32")}
    one, other = (jax.tree.leaves(each.personal_model(1)) for each in (half, full))
    assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(one, other, strict=True))
    assert all(np.allclose(a, b, atol=0.03) for a, b in zip(one, other, strict=True))
    assert half.record().summary["experiment"]["precision"] == "bfloat16"
    trained = pfedbred.load_model(pfedbred.export(out, client=1))
    x = np.asarray(federation.test.x[:4], np.float32)
    inputs = federation.inputs(federation.test).take(jnp.arange(4))
    expected = half.backend.algorithm.predict(half.personal_model(1), inputs)
    assert np.array_equal(trained.logits(x), expected)
    assert not np.array_equal(trained.logits(x), full.backend.algorithm.predict(half.personal_model(1), inputs))
    with pytest.raises(pfedbred.SettingError, match="precision 'bfloat16', now 'float32'"):
        check_unchanged(out, full.experiment.plain())
    with pytest.raises(pfedbred.SettingError, match="precision must be"):
        pfedbred.run(federation=federation, precision="float16", **options)
