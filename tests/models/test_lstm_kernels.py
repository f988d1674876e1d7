"""The LSTM's GPU kernels, run by Pallas' interpreter, against the scan and the transcription."""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_models import KEY, LENGTHS, as_numpy, numpy_lstm, sentences

from pfedbred import models
from pfedbred.models import lstm_kernels, lstm_on_gpu
from pfedbred.models.lstm import _layer_init, scanned
from pfedbred.types import Words


@pytest.fixture
def by_kernels(monkeypatch):
    """Makes models use the kernels."""
    monkeypatch.setattr(sys.modules["pfedbred.models.lstm"], "_by_kernels", lambda params: True)


def a_layer(hidden, inputs, batch, time=5, clients=3):
    """The params, inputs and lengths of a layer, for each client."""
    keys = jax.random.split(KEY, 3)
    start = jax.vmap(lambda key: _layer_init(key, inputs, hidden, jnp.float64))
    params = start(jax.random.split(keys[0], clients))
    x = jax.random.normal(keys[1], (clients, time, batch, inputs), jnp.float64)
    return params, x, jax.random.randint(keys[2], (clients, batch), 0, time + 1)


def kernels(params, x, length):
    return lstm_on_gpu.layer(params, x, length, jnp.max(jnp.abs(x)))


def gradients(layer, params, x, length):
    """The gradients of a function of all outputs."""

    def loss(params, x):
        out = layer(params, x, length)
        return jnp.sum(jnp.sin(out + jnp.arange(out.size).reshape(out.shape)))

    return jax.grad(loss, (0, 1))(params, x)


def assert_close(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11)


@pytest.mark.full
@pytest.mark.usefixtures("by_kernels")
def test_the_lstm_by_kernels_is_its_transcription():
    model = models.lstm((9,), 4, words=Words(30), hidden=6, dtype=jnp.float64)
    params, x = model.init(KEY), sentences(LENGTHS, 9, 30)
    expected = numpy_lstm(as_numpy(params), x, np.asarray(params["embedding"]))
    assert np.allclose(jax.jit(model.apply)(params, x), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("hidden", "inputs", "batch"), [(20, 7, 37), pytest.param(16, 16, 1, marks=pytest.mark.full)])
def test_outputs_and_gradients_are_those_of_the_scan(hidden, inputs, batch):
    """For several clients side by side; more samples than one program takes, and fewer."""

    def both(layer, *arguments):
        return layer(*arguments), gradients(layer, *arguments)

    given = a_layer(hidden, inputs, batch)
    assert_close(*(jax.jit(jax.vmap(partial(both, layer)))(*given) for layer in (kernels, scanned)))


def single(tree):
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf, tree)


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("default", 2e-3), pytest.param("highest", 2e-6, marks=pytest.mark.full)]
)
@pytest.mark.parametrize(
    ("of_x", "of_outputs"), [(1.0, 1.0), (1e6, 1e-12), pytest.param(1e-9, 1e9, marks=pytest.mark.full)]
)
def test_rounding_leaves_three_digits_whatever_the_scale(precision, tolerance, of_x, of_outputs):
    """Products in half precision, which can hold none of these numbers unless they are scaled."""
    params, x, length = jax.tree.map(lambda leaf: leaf[0], a_layer(10, 7, 18, clients=1))
    params["input"], x = params["input"] / of_x, x * of_x

    def found(layer, params, x):
        def loss(params, x):
            out = layer(params, x, length)
            return of_outputs * jnp.sum(jnp.sin(out + jnp.arange(out.size, dtype=out.dtype).reshape(out.shape) % 7))

        return layer(params, x, length), jax.grad(loss, (0, 1))(params, x)

    with jax.default_matmul_precision(precision):
        rounded = jax.jit(partial(found, kernels))(*single((params, x)))
    exact = jax.jit(partial(found, scanned))(params, x)
    for a, b in zip(jax.tree.leaves(rounded), jax.tree.leaves(exact), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.max(np.abs(b)))


@pytest.mark.parametrize("longest", [0, 3])
@pytest.mark.full
def test_a_program_ends_with_its_longest_sample(longest):
    """What it did not get to is zero, or not read: the interpreter fills new arrays with NaN."""
    params, x, length = jax.tree.map(lambda leaf: leaf[0], a_layer(4, 3, 34, clients=1))
    length = jnp.sort(length % (longest + 1))
    assert max(length) == longest

    def both(layer, *arguments):
        return layer(*arguments), gradients(layer, *arguments)

    assert_close(*(jax.jit(partial(both, layer))(params, x, length) for layer in (kernels, scanned)))


@pytest.mark.full
def test_the_models_gradient_by_kernels_is_that_of_the_scan(monkeypatch):
    """The model sorts samples by length for the kernels, and its outputs back."""
    model = models.lstm((9,), 4, words=Words(30), hidden=6, dtype=jnp.float64)
    params, x = model.init(KEY), jnp.asarray(sentences(LENGTHS, 9, 30))
    assert list(LENGTHS) != sorted(LENGTHS)

    def gradient():
        return jax.jit(jax.grad(lambda params: jnp.sum(jnp.sin(model.apply(params, x) + jnp.arange(len(x))[:, None]))))

    by_scan = gradient()(params)
    monkeypatch.setattr(sys.modules["pfedbred.models.lstm"], "_by_kernels", lambda params: True)
    assert_close(gradient()(params), by_scan)


@pytest.mark.full
def test_curvature_is_that_of_the_scan():
    """Per-FedAvg's exact order differentiates gradients along a direction."""
    params, x, length = jax.tree.map(lambda leaf: leaf[0], a_layer(5, 4, 3, clients=1))
    along = jax.tree.map(jnp.cos, (params, x))

    @partial(jax.jit, static_argnums=0)
    def derivative(layer, inputs, along):
        return jax.jvp(lambda *inputs: gradients(layer, *inputs, length), inputs, along)

    assert_close(*(derivative(layer, (params, x), along) for layer in (kernels, scanned)))


@pytest.mark.skipif(jax.__version_info__ >= (0, 12), reason="from 0.12 on, JAX compiles for GPUs only where one is")
def test_they_are_lowered_for_gpus(monkeypatch):
    """To Triton, which is stricter than the interpreter; with clients and seeds side by side."""
    params, x, length = jax.tree.map(
        lambda leaf: jnp.stack([leaf, leaf]).astype(jnp.float32 if leaf.dtype == jnp.float64 else leaf.dtype),
        a_layer(50, 50, 40),
    )
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    every = jax.vmap(jax.vmap(lambda *arguments: gradients(kernels, *arguments)))
    lowered = jax.jit(every).trace(params, x, length).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count("xla.gpu.triton(") == 2


def test_where_they_are_used(monkeypatch):
    """On the kind of GPU they were tested on, in float32, if h is not too wide; elsewhere the scan."""

    class Device:
        compute_capability = "9.0"

    params = {"recurrent": jnp.zeros((2, 200, 50), jnp.float32)}
    assert not lstm_on_gpu.usable(params)  # not a GPU
    monkeypatch.setattr(jax, "devices", lambda: [Device])
    assert lstm_on_gpu.usable(params)
    assert not lstm_on_gpu.usable({"recurrent": jnp.zeros((2, 200, 50), jnp.float64)})
    assert not lstm_on_gpu.usable({"recurrent": jnp.zeros((2, 260, 65), jnp.float32)})
    Device.compute_capability = "8.6"
    assert not lstm_on_gpu.usable(params)
    Device.compute_capability = "9.0"
    monkeypatch.setattr(lstm_kernels, "_IN_JAX", False)
    assert not lstm_on_gpu.usable(params)
