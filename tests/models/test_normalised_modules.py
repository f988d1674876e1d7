"""Modules of a user's own with batch norm and dropout, against NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from support import normalised
from support.normalised import EPSILON

from pfedbred import models
from pfedbred.errors import SettingError
from pfedbred.models import WithStatistics

pytestmark = pytest.mark.full  # compiling many networks takes long

KEY = jax.random.key(5)
X = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)


def ema_network(shape, classes, rate=0.5):
    return normalised.equinox_network(shape, classes, rate, mode="ema")


NETWORKS = {
    "linen": normalised.linen_network,
    "nnx": normalised.nnx_network,
    "equinox": normalised.equinox_network,
    "equinox, ema": ema_network,
}


class Numpy:
    """The same network in NumPy, from a model's params; its scale and shift are not one and zero."""

    def __init__(self, model):
        self.params = jax.tree.map(
            lambda leaf: leaf + 0.1 * jnp.arange(leaf.size).reshape(leaf.shape) % 0.7, model.init(KEY)
        )
        flat = {
            jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf, np.float64)
            for path, leaf in jax.tree_util.tree_leaves_with_path(self.params)
        }

        def of(part, *names):
            (found,) = [leaf for path, leaf in flat.items() if path.startswith(part) and path.endswith(names)]
            return found

        kernels = [
            flat[f"{layer}.kernel"] if f"{layer}.kernel" in flat else flat[f"{layer}.weight"].T
            for layer in ("body", "last")
        ]
        self.body, self.last = (
            (kernel, flat[f"{layer}.bias"]) for kernel, layer in zip(kernels, ("body", "last"), strict=True)
        )
        self.scale, self.shift = of("norm", "scale", "weight"), of("norm", "bias")
        self.h = X @ self.body[0] + self.body[1]

    def logits(self, mean, var, h=None):
        h = self.h if h is None else h
        kernel, bias = self.last
        return np.tanh((h - mean) / np.sqrt(var + EPSILON) * self.scale + self.shift) @ kernel + bias


def arrays(statistics):
    """Means and variances."""
    leaves = jax.tree_util.tree_leaves_with_path(statistics)
    return {jax.tree_util.keystr(path[-1:], simple=True): np.asarray(leaf) for path, leaf in leaves}


@pytest.mark.parametrize("name", NETWORKS)
def test_training_and_statistics_are_those_of_the_minibatch(name):
    model = NETWORKS[name]((5,), 3, rate=0.0)
    plain = Numpy(model)
    mean, var = plain.h.mean(0), plain.h.var(0)
    found = arrays(model.statistics.of(plain.params, X))
    np.testing.assert_allclose(found["mean"], mean, atol=1e-5)
    np.testing.assert_allclose(found["var"], var, rtol=1e-4)
    np.testing.assert_allclose(model.train(plain.params, X, KEY), plain.logits(mean, var), atol=1e-4)
    # In evaluation by kept ones, of which each sample's logits are independent of the others.
    kept = jax.tree.map(lambda leaf: 2 * leaf + 1, model.statistics.of(plain.params, X))
    expected = plain.logits(2 * mean + 1, 2 * var + 1)
    np.testing.assert_allclose(model.apply(WithStatistics(plain.params, kept), X), expected, atol=1e-4)
    start = arrays(model.statistics.init())
    assert np.all(start["mean"] == 0)
    assert np.all(start["var"] == 1)


@pytest.mark.parametrize("name", NETWORKS)
def test_half_precision_leaves_statistics_in_float32(name):
    """Close to NumPy's in double precision, in training and in evaluation."""
    model = NETWORKS[name]((5,), 3, rate=0.0)
    plain, model = Numpy(model), models.with_precision(model, "bfloat16")
    mean, var = plain.h.mean(0), plain.h.var(0)
    statistics = model.statistics.of(plain.params, X)
    found = arrays(statistics)
    assert {each.dtype for each in found.values()} == {np.dtype("float32")}
    np.testing.assert_allclose(found["mean"], mean, atol=0.02)
    np.testing.assert_allclose(found["var"], var, rtol=0.05)
    expected = plain.logits(mean, var)
    np.testing.assert_allclose(model.train(plain.params, X, KEY), expected, atol=0.05)
    np.testing.assert_allclose(model.apply(WithStatistics(plain.params, statistics), X), expected, atol=0.05)


@pytest.mark.parametrize("name", list(NETWORKS)[:3])
def test_dropout_follows_the_key_and_is_off_in_evaluation(name):
    model = NETWORKS[name]((5,), 3)
    plain, train = Numpy(model), jax.jit(model.train)
    one, again, other = (train(plain.params, X, jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)
    mean, var = plain.h.mean(0), plain.h.var(0)
    found = model.statistics.of(plain.params, X)  # without dropout
    np.testing.assert_allclose(model.apply(WithStatistics(plain.params, found), X), plain.logits(mean, var), atol=1e-4)
    kernel, bias = plain.last
    hidden = np.tanh((plain.h - mean) / np.sqrt(var + EPSILON) * plain.scale + plain.shift)
    masks = np.stack([np.asarray(list(np.ndindex(*[2] * 8)), float)] * len(X))  # of 8 units; each is dropped or doubled
    for row, got in enumerate(np.asarray(one)):
        possible = 2 * hidden[row] * masks[row] @ kernel + bias
        assert np.min(np.abs(possible - got).max(-1)) < 1e-4


@pytest.mark.parametrize("name", list(NETWORKS)[:3])
def test_group_norm_in_place_of_batch_norm(name):
    """The same params, no statistics; each half of the eight channels of a sample by its own mean and variance."""
    model = NETWORKS[name]((5,), 3, rate=0.0)
    grouped = models.get(model, (5,), 3, batch_norm="group")
    assert grouped.statistics is None
    assert grouped.train is None
    assert (grouped.norms, grouped.head) == (model.norms, model.head)
    plain = Numpy(model)
    jax.tree.map(np.testing.assert_array_equal, grouped.init(KEY), model.init(KEY))
    halves = plain.h.reshape(-1, 2, 4)
    mean, var = (np.repeat(f(halves, axis=-1), 4, axis=-1) for f in (np.mean, np.var))
    np.testing.assert_allclose(grouped.apply(plain.params, X), plain.logits(mean, var), atol=1e-4)


@pytest.mark.parametrize("axis", [-1, 1])
def test_group_norm_of_images_along_any_axis(axis):
    net = nn.Sequential(
        [nn.BatchNorm(use_running_average=False, axis=axis, epsilon=EPSILON), lambda x: x.reshape(len(x), -1)]
    )
    x = np.random.default_rng(1).normal(size=(3, 6, 6, 6))
    grouped = models.from_flax(net, (6, 6, 6), dtype=jnp.float64).grouped()
    last = np.moveaxis(x, axis, -1).reshape(3, 36, 2, 3)
    expected = (last - last.mean((1, 3), keepdims=True)) / np.sqrt(last.var((1, 3), keepdims=True) + EPSILON)
    expected = np.moveaxis(expected.reshape(3, 6, 6, 6), -1, axis).reshape(3, -1)
    np.testing.assert_allclose(grouped.apply(grouped.init(KEY), x), expected, atol=1e-5)


def test_norms_are_named():
    assert normalised.linen_network((5,), 3).norms == ("norm",)
    assert normalised.nnx_network((5,), 3).norms == ("norms.0",)
    model = normalised.equinox_network((5,), 3)
    assert model.norms == ("norm",)
    assert [name for name in model.init(KEY) if model.is_norm(name)] == ["norm.weight", "norm.bias"]
    assert models.from_flax(nn.Sequential([nn.LayerNorm(), nn.Dense(2)]), (5,)).norms == ("layers_0",)
    nested = normalised.tiny((5,), 3)._replace(norms=("norm", "last.first"))
    found = {
        path: nested.is_norm(path) for path in ("a.norm.scale", "normal.scale", "last.first", "last.second", "norm")
    }
    assert found == {
        "a.norm.scale": True,
        "normal.scale": False,
        "last.first": True,
        "last.second": False,
        "norm": True,
    }


def test_a_function_learns_which_norm_is_wanted():
    def build(shape, classes, *, norm):
        return normalised.tiny(shape, classes)._replace(norms=(norm,), statistics=None)

    for mode, norm in (("local", "batch"), ("average", "batch"), ("group", "group")):
        assert models.get(build, (5,), 3, batch_norm=mode).norms == (norm,)
    with pytest.raises(SettingError, match=r"^batch_norm group needs a model that can replace its batch norm"):
        models.get(normalised.tiny, (5,), 3, batch_norm="group")


def test_a_batch_norm_of_the_users_own_stays():
    class Doubled(eqx.nn.BatchNorm):
        def __call__(self, x, state, *, key=None, inference=None):
            out, state = super().__call__(x, state)
            return 2 * out, state

    def make(doubled, key):
        net = normalised.EquinoxNet(5, 3, rate=0.0, key=key)
        norm = Doubled(8, axis_name="batch", eps=EPSILON, mode="batch", dtype=jnp.float32)
        return eqx.tree_at(lambda net: net.norm, net, norm) if doubled else net

    plain, doubled = (models.from_equinox(lambda key, each=each: make(each, key)) for each in (False, True))
    params = plain.init(KEY)
    twice = {name: 2 * leaf if name.startswith("norm") else leaf for name, leaf in params.items()}
    np.testing.assert_allclose(doubled.train(params, X, KEY), plain.train(twice, X, KEY), atol=1e-5)


def test_what_has_no_place_is_named():
    class Noisy(nn.Module):
        stream: str = "noise"
        always: bool = False

        @nn.compact
        def __call__(self, x, train):
            if train or self.always:
                x = x + jax.random.normal(self.make_rng(self.stream), x.shape)
            return nn.Dense(3)(x)

    with pytest.raises(SettingError, match=r"^the module draws random numbers from other streams"):
        models.from_flax(Noisy(), (5,))
    with pytest.raises(SettingError, match=r"^the module draws random numbers in evaluation"):
        models.from_flax(Noisy("dropout", always=True), (5,))
    assert models.from_flax(Noisy("dropout"), (5,)).train is not None

    class Spectral(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.SpectralNorm(nn.Dense(3))(x, update_stats=train)

    with pytest.raises(SettingError, match=r"^the module keeps state \(batch_stats of SpectralNorm_0\)"):
        models.from_flax(Spectral(), (5,))

    class Always(nnx.Module):
        def __init__(self, rngs):
            self.last, self.rngs = nnx.Linear(5, 3, rngs=rngs), rngs

        def __call__(self, x):
            return self.last(x) + jax.random.normal(self.rngs.noise(), (len(x), 3))

    with pytest.raises(SettingError, match=r"^the module draws random numbers in evaluation"):
        models.from_flax(Always, (5,))

    class WithoutState(normalised.EquinoxNet):
        def __call__(self, x, key=None):
            return self.last(x)

    class WithoutKey(normalised.EquinoxNet):
        def __call__(self, x, state):
            return self.last(x), state

    with pytest.raises(SettingError, match="this one takes no state"):
        models.from_equinox(lambda key: WithoutState(5, 3, key=key))
    with pytest.raises(SettingError, match=r"^a module with dropout has __call__\(self, x, key=None\)"):
        models.from_equinox(lambda key: WithoutKey(5, 3, key=key))
    made = models.from_equinox(lambda key: eqx.nn.inference_mode(WithoutKey(5, 3, key=key)))  # dropout stays off
    assert made.statistics is not None
