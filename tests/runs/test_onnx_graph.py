"""JAX programs as ONNX graphs: what a runtime computes is what JAX computes, for any number of samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pfedbred
from pfedbred import models
from pfedbred.models.convolution import with_fast_convolutions
from pfedbred.runs.onnx_graph import Graph

pytest.importorskip("onnx", reason="onnx is not installed: pip install 'pfedbred[onnx]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime, which runs the graphs, is not installed")

W = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
CUBE = np.random.default_rng(1).normal(size=(3, 4, 2)).astype(np.float32)
KERNEL = np.random.default_rng(2).normal(size=(3, 2, 2, 4)).astype(np.float32)  # height, width, inputs, outputs
LAYOUT = ("NHWC", "HWIO", "NHWC")


def convolved(x, **options):
    given = {"window_strides": (1, 1), "padding": "VALID", "dimension_numbers": LAYOUT, **options}
    return lax.conv_general_dilated(x, jnp.asarray(KERNEL), **given)


def pooled(x, start, combine, window=(1, 2, 3, 1), strides=(1, 2, 1, 1), padding=((0, 0), (1, 0), (0, 1), (0, 0))):
    return lax.reduce_window(x, start, combine, window, strides, padding)


def cumulated(x):
    return lax.cumsum(x, 1) - lax.cumsum(x, 1, reverse=True)


def looped(x):
    """A loop whose body has a constant, what is carried, an input and an output; once more backwards."""

    def step(total, each):
        return total * 0.5 + jnp.tanh(each @ W), (total, 1.0)

    over = jnp.stack([x, 2 * x, -x])
    start = jnp.zeros((x.shape[0], 3), x.dtype)
    forward, (seen, ones) = lax.scan(step, start, over)
    back, (before, _) = lax.scan(step, start, over, reverse=True)
    return jnp.concatenate([forward, back, seen[2], before[0], jnp.broadcast_to(ones.sum(), (x.shape[0], 1))], 1)


def recomputed(x):
    return jax.checkpoint(lambda x: jax.jit(jnp.sin)(x) * 2)(x)


PROGRAMS = {
    "arithmetic": ((4,), lambda x: (x + 1) * x - x / 3 + (-x) ** 3 + jnp.abs(x) ** 1.5 + lax.integer_pow(x, -2)),
    "functions": ((4,), lambda x: jnp.exp(x) + jnp.log(x * x + 1) + jnp.sin(x) + jnp.cos(x) + jnp.tanh(x)),
    "roots": ((4,), lambda x: jnp.sqrt(jnp.abs(x)) + lax.rsqrt(jnp.square(x) + 1)),
    "rounding": ((4,), lambda x: jnp.floor(x) + 2 * jnp.ceil(x) + 3 * jnp.sign(x)),
    "relu6, gelu": ((4,), lambda x: jax.nn.relu6(3 * x) + jax.nn.gelu(x, approximate=False) + jax.nn.gelu(x)),
    "elu, softplus": ((4,), lambda x: jax.nn.elu(x) + jax.nn.softplus(x) + jax.nn.silu(x) + lax.erf(x)),
    "softmax": ((4,), lambda x: jax.nn.softmax(x) + jax.nn.log_softmax(x) + jax.nn.logsumexp(x, 1, keepdims=True)),
    "comparisons": (
        (4,),
        lambda x: jnp.where((x > 0) & ~(x >= 1) | (x < -1) ^ (x <= -0.5), x, 7) + (x != x.round()) + (x == 0),
    ),
    "gaps": ((4,), lambda x: jnp.where(jnp.isnan(x / 0 * 0), 1, x) + jnp.isfinite(1 / (x - x))),
    "types": ((4,), lambda x: (4 * x).astype(jnp.int32) // 1 + (x > 0).astype(jnp.int32)),
    "bits": ((4,), lambda x: (x * 9).astype(jnp.int32) & 3),
    "half precision": ((4,), lambda x: (x.astype(jnp.bfloat16) @ W.astype(jnp.bfloat16)).astype(jnp.float32)),
    "sums": ((3, 4), lambda x: x.sum(1) + x.max(1) - x.min(1) + x.prod(1) + x.mean((1, 2))[:, None]),
    "any, all": ((3, 4), lambda x: jnp.any(x > 1, axis=1) + 2 * jnp.all(x < 1, axis=1)),
    "argmax, argmin": ((4,), lambda x: jnp.argmax(x, 1) + 10 * jnp.argmin(x, 1)),
    "cumulative sums": ((4,), cumulated),
    "reshapes": ((3, 4), lambda x: x.reshape(-1, 4).T.reshape(4, -1, 3).transpose(1, 0, 2)[..., None].squeeze(3)),
    "repeated": ((3, 4), lambda x: jnp.concatenate([x, jnp.broadcast_to(x[:, :1], x.shape)], 1).reshape(-1, 24)),
    "repeated constants": ((4,), lambda x: jnp.concatenate([jnp.broadcast_to(W[0], (x.shape[0], 3)), x], 1)),
    "slices": ((5, 4), lambda x: x[:, 1:4:2, ::-1] + x[:, -2:, 0][..., None]),
    "slices at a place": ((5, 4), lambda x: lax.dynamic_slice_in_dim(x, 9, 2, 1)),
    "splits": ((6,), lambda x: sum(part.sum(1) * i for i, part in enumerate(jnp.split(x, [1, 3], axis=1), 1))),
    "padding": ((3, 4), lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 1)), constant_values=5)),
    "cut by padding": ((3, 4), lambda x: lax.pad(x, np.float32(0), ((0, 0, 0), (-1, 1, 0), (0, 0, 0)))),
    "places": ((4,), lambda x: x * jnp.arange(4) + jnp.arange(x.shape[0])[:, None]),
    "products": ((4,), lambda x: x @ W + jnp.einsum("nd,kd->nk", x, W.T)),
    "products with both sides unknown": ((3, 4), lambda x: jnp.einsum("npd,nqd->npq", x, x)),
    "products of many": ((2, 3, 4), lambda x: x @ x.swapaxes(2, 3)),
    "general products": (
        (3, 4),
        lambda x: jnp.einsum("npd,pdk->nk", x, CUBE) + jnp.einsum("npd,pek->ndk", x, CUBE)[:, 0],
    ),
    "transposed products": ((3, 4), lambda x: jnp.einsum("npd,ndq->qnp", x, x.swapaxes(1, 2))[0]),
    "convolutions": ((5, 6, 2), convolved),
    "strides": ((5, 6, 2), lambda x: convolved(x, window_strides=(2, 1), padding=((1, 2), (0, 1)))),
    "dilation": ((5, 6, 2), lambda x: convolved(x, rhs_dilation=(2, 3))),
    "groups": ((5, 6, 4), lambda x: convolved(x, feature_group_count=2)),
    "own convolutions": ((5, 6, 2), lambda x: with_fast_convolutions(convolved)(x)),
    "max pooling": ((5, 6, 2), lambda x: pooled(x, -np.inf, lax.max)),
    "mean pooling": ((5, 6, 2), lambda x: pooled(x, 0.0, lax.add) / 6),
    "rows by number": ((4,), lambda x: jnp.asarray(W)[(x > 0).astype(jnp.int32) * 2]),
    "columns by number": ((4,), lambda x: jnp.asarray(W)[:, (x[:, 0] > 0).astype(jnp.int32)].T),
    "entries by number": ((4,), lambda x: jnp.asarray(W)[(x[:, 0] > 0).astype(int) * 3, (x[:, 1] > 0).astype(int)]),
    "an entry of each sample": ((4,), lambda x: x[jnp.arange(x.shape[0]), jnp.argmin(x, 1)]),
    "batch sizes": ((4,), lambda x: x / x.shape[0]),
    "clipped numbers": ((4,), lambda x: jnp.asarray(W).at[(x * 50).astype(jnp.int32)].get(mode="clip")),
    "loops": ((4,), looped),
    "programs in programs": ((4,), recomputed),
    "a constant": ((4,), lambda x: jnp.asarray(W)),
}
"""By name: the shape of a sample, and a program."""


def converted(shape, function):
    """A graph of the program, to be run on samples."""
    graph = Graph()
    x = graph.input("x", np.float32, shape)
    (found,) = graph.apply(lambda _, x: [function(x)], {}, x)
    graph.output("y", found)
    return onnxruntime.InferenceSession(graph.model("test").SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_runtime_computes_what_jax_computes(name):
    shape, function = PROGRAMS[name]
    session = converted(shape, function)
    for count in (1, 5):
        x = np.random.default_rng(count).normal(size=(count, *shape)).astype(np.float32)
        (found,), expected = session.run(None, {"x": x}), np.asarray(function(jnp.asarray(x)))
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        rounding = 2e-2 if name == "half precision" else 1e-5
        np.testing.assert_allclose(found, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: jnp.sort(x, axis=1), "this model computes 'sort', for which there is no conversion"),
        (lambda x: x[1:], "a part of the samples is not supported"),
        (lambda x: x[:, :2].reshape(-1, 4), "the network must take any number of samples, n: "),
        (lambda x: x.reshape(len(x), -1), r"any number of samples, n: use x\.shape\[0\] in place of len\(x\)"),
        (lambda x: x / float(x.shape[0]), r"any number of samples, n: use x\.shape\[0\]"),
        (lambda x: lax.dynamic_slice_in_dim(jnp.asarray(W), jnp.argmin(x[0]), 2), "a slice whose place depends on the"),
        (lambda x: jnp.stack([x, x])[(x[:, 0] > 0).astype(int), jnp.arange(x.shape[0])], "samples by number"),
        (lambda x: lax.switch(jnp.int32(x.sum() > 0), [jnp.sin, jnp.cos, jnp.tan], x), "computes 'cond'"),
        (lambda x: lax.pad(x, np.float32(0), ((0, 0, 0), (0, 0, 1))), "padding between the entries"),
    ],
)
def test_what_has_no_conversion_is_named(function, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        converted((4,), function)


def test_params_are_named_and_unused_ones_left_out():
    graph = Graph()
    x = graph.input("x", np.float32, (4,))
    params = {"layer": {"weight": W, "unused": np.zeros(99, np.float32)}}
    (found,) = graph.apply(lambda params, x: [x @ params["layer"]["weight"]], params, x)
    graph.output("y", found)
    model = graph.model("named", {"labels": "[]"})
    assert [each.name for each in model.graph.initializer] == ["params.layer.weight"]
    assert [(each.key, each.value) for each in model.metadata_props] == [("labels", "[]")]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"


def test_two_things_of_one_name_are_refused():
    graph = Graph()
    graph.input("x", np.float32, ())
    with pytest.raises(pfedbred.SettingError, match="two things are called 'x'"):
        graph.input("x", np.float32, ())


# Modules of other libraries -----------------------------------------------------------------------------------------


def linen_module():
    linen = pytest.importorskip("flax.linen", reason="Flax is not installed")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x, train: bool):
            x = linen.max_pool(linen.relu(linen.Conv(4, (3, 3), strides=2)(x)), (2, 2), (2, 2), padding="SAME")
            x = linen.avg_pool(linen.BatchNorm(use_running_average=not train)(x), (2, 1))
            x = linen.LayerNorm()(x.reshape(x.shape[0], -1, 4))
            x = linen.MultiHeadDotProductAttention(num_heads=2)(x, x)
            return linen.Dense(3)(linen.Dropout(0.5, deterministic=not train)(linen.gelu(x)).mean(1))

    return models.from_flax(Net(), (9, 8, 2))


def nnx_module():
    nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed")

    def make(rngs):
        return nnx.Sequential(
            nnx.Conv(2, 4, (3, 3), rngs=rngs),
            nnx.BatchNorm(4, rngs=rngs),
            nnx.swish,
            lambda x: x.reshape(x.shape[0], -1),
            nnx.Linear(9 * 8 * 4, 3, rngs=rngs),
        )

    return models.from_flax(make, (9, 8, 2))


def equinox_module():
    eqx = pytest.importorskip("equinox", reason="Equinox is not installed")

    def make(key):
        keys = jax.random.split(key, 2)
        return eqx.nn.Sequential(
            [
                eqx.nn.Lambda(lambda x: x.transpose(2, 0, 1)),
                eqx.nn.Conv2d(2, 4, 3, dtype=jnp.float32, key=keys[0]),
                eqx.nn.BatchNorm(4, axis_name="batch", mode="batch", dtype=jnp.float32),
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.Lambda(jnp.ravel),
                eqx.nn.Linear(7 * 6 * 4, 3, dtype=jnp.float32, key=keys[1]),
            ]
        )

    return models.from_equinox(make)


@pytest.mark.parametrize("batch_norm", ["local", "group"])
@pytest.mark.parametrize("make", [linen_module, nnx_module, equinox_module], ids=lambda make: make.__name__)
def test_modules_of_other_libraries(make, batch_norm):
    """As in a run: their convolutions are this library's."""
    network = models.get(make(), (9, 8, 2), 3, batch_norm=batch_norm)
    params = network.starting(network.init(jax.random.key(0)))
    graph = Graph()
    x = graph.input("x", np.float32, (9, 8, 2))
    (found,) = graph.apply(lambda params, x: [network.apply(params, x)], jax.device_get(params), x)
    graph.output("y", found)
    whole = graph.model("module").SerializeToString()
    session = onnxruntime.InferenceSession(whole, providers=["CPUExecutionProvider"])
    for count in (1, 4):
        samples = np.random.default_rng(count).normal(size=(count, 9, 8, 2)).astype(np.float32)
        expected = jax.jit(network.apply)(params, samples)
        assert np.std(expected) > 0.05
        np.testing.assert_allclose(session.run(None, {"x": samples})[0], expected, rtol=1e-4, atol=1e-5)
