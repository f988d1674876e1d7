"""Flax and Equinox modules as models."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation
from flax import linen as nn
from flax import nnx

import pfedbred
from pfedbred import models
from pfedbred.algorithms import body_and_head
from pfedbred.errors import SettingError

KEY = jax.random.key(3)
X = np.random.default_rng(0).normal(size=(4, 6))


def linen_net(dropout=None, **norm):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(16, name="body")(x)
            if norm:
                x = nn.BatchNorm(**norm)(x)
            x = nn.LayerNorm()(nn.tanh(x))
            if dropout is not None:
                x = nn.Dropout(0.5, deterministic=dropout)(x)
            return nn.Dense(3, name="last")(x)

    return Net()


def nnx_net(dropout=None, norm=False, keys=True, rate=0.5):
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(6, 16, rngs=rngs), nnx.Linear(16, 16, rngs=rngs)])
            self.norm = nnx.BatchNorm(16, rngs=rngs) if norm else nnx.LayerNorm(16, rngs=rngs)
            self.last = nnx.Linear(16, 3, rngs=rngs)
            if dropout is None:
                self.dropout = None
            else:
                self.dropout = nnx.Dropout(rate, deterministic=dropout, rngs=rngs if keys else None)

        def __call__(self, x):
            for layer in self.layers:
                x = nnx.tanh(layer(x))
            x = self.norm(x)
            return self.last(x if self.dropout is None else self.dropout(x))

    return Net


def equinox_net(dropout=None, norm=None, p=0.5):
    class Net(eqx.Module):
        layers: list
        norm: eqx.Module
        dropout: eqx.Module
        steps: jax.Array

        def __init__(self, key):
            keys = jax.random.split(key, 3)
            sizes = ((6, 16), (16, 16), (16, 3))
            self.layers = [eqx.nn.Linear(*size, key=each) for size, each in zip(sizes, keys, strict=True)]
            self.norm = eqx.nn.LayerNorm(16) if norm is None else norm()
            self.dropout = eqx.nn.Identity() if dropout is None else eqx.nn.Dropout(p, inference=dropout)
            self.steps = jnp.arange(3)  # not trained

        def __call__(self, x):
            x = jnp.tanh(self.layers[0](x))
            x = self.dropout(self.norm(jnp.tanh(self.layers[1](x))))
            return self.layers[2](x) + 0 * self.steps

    return Net


ADAPTED = {
    "linen": lambda **head: models.from_flax(linen_net(), (6,), **head),
    "nnx": lambda **head: models.from_flax(nnx_net(), (6,), **head),
    "equinox": lambda **head: models.from_equinox(equinox_net(), **head),
}
HEADS = {"linen": ("last",), "nnx": ("last",), "equinox": ("layers.2",)}


@pytest.fixture(scope="module")
def larger_federation():
    return small_federation(sizes=(40, 30, 20, 50), seed=4)


STEPS = {"alpha": 0.05, "alpha_m": 0.05, "eta_a": 0.05, "lam": 5.0, "R": 10}


def train(federation, model, algorithm, **options):
    """The run, and the accuracy of P on the training samples before it."""
    rounds = options.pop("rounds", 6)
    result = pfedbred.run(
        federation=federation, model=model, algorithm=algorithm, rounds=rounds, eval_every=rounds, settings=options
    )
    start = result.backend.evaluate(result.backend.init([0]))
    return result, float(start.personal.train.accuracy[0])


@pytest.mark.full
@pytest.mark.parametrize("name", ADAPTED)
@pytest.mark.few_cases
def test_adapted_modules_learn(name, larger_federation):
    result, before = train(larger_federation, ADAPTED[name](), "mg-meta", **STEPS)
    assert before < 0.7
    for kind in ("personal", "global"):
        assert result.accuracy(kind, "train")[-1, 0] > 0.85
    assert result.accuracy("personal")[-1, 0] > 0.85


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "nnx" else [pytest.mark.full]) for name in ADAPTED]
)
@pytest.mark.full
def test_adapted_modules_have_heads(name, larger_federation):
    """FedPer: bodies are the same for all clients, heads are not."""
    result, before = train(larger_federation, ADAPTED[name](head=HEADS[name]), "fedper", alpha=0.1, R=10)
    assert before < 0.7
    assert result.accuracy("personal", "train")[-1, 0] > 0.85
    task = result.backend.task
    mine, other = (body_and_head.split(task, result.personal_model(i)) for i in (0, 1))
    for a, b in zip(jax.tree.leaves(mine.body), jax.tree.leaves(other.body), strict=True):
        assert np.array_equal(a, b)
    assert {leaf.shape for leaf in jax.tree.leaves(mine.head)} in ({(3,), (16, 3)}, {(3,), (3, 16)})
    for a, b in zip(jax.tree.leaves(mine.head), jax.tree.leaves(other.head), strict=True):
        assert not np.array_equal(a, b)


def test_linen_module_unchanged():
    net = linen_net()
    model = models.from_flax(net, (6,))
    params, x = model.init(KEY), X.astype(np.float32)
    assert set(params) == {"body", "LayerNorm_0", "last"}
    variables = net.init(KEY, x)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, params, variables["params"])))
    assert np.array_equal(model.apply(params, x), net.apply(variables, x))


@pytest.mark.full
def test_nnx_module_unchanged():
    model = models.from_flax(nnx_net(), (6,))
    params, x = model.init(KEY), X.astype(np.float32)
    net = nnx_net()(nnx.Rngs(KEY))
    assert set(params) == {"layers", "norm", "last"}
    assert np.array_equal(params["layers"]["1"]["kernel"], net.layers[1].kernel[...])
    assert np.allclose(model.apply(params, x), net(x), atol=1e-6)
    moved = jax.tree.map(lambda leaf: leaf + 1, params)
    assert not np.allclose(model.apply(moved, x), net(x), atol=1e-2)


@pytest.mark.full
def test_equinox_module_unchanged():
    model = models.from_equinox(equinox_net())
    params, x = model.init(KEY), X.astype(np.float32)
    net = equinox_net()(KEY)
    layers = {f"layers.{i}.{part}" for i in range(3) for part in ("weight", "bias")}
    assert set(params) == layers | {"norm.weight", "norm.bias"}
    assert np.array_equal(params["layers.1.weight"], net.layers[1].weight)
    assert np.allclose(model.apply(params, x), jnp.stack([net(row) for row in x]), atol=1e-6)


@pytest.mark.parametrize("name", ADAPTED)
def test_adapted_modules_run_for_all_clients_at_once(name):
    model = ADAPTED[name]()
    keys, x = jax.random.split(KEY, 3), jnp.asarray(X)
    params = jax.jit(jax.vmap(model.init))(keys)
    logits = jax.jit(jax.vmap(model.apply, (0, None)))(params, x)
    alone = jax.jit(lambda key: model.apply(model.init(key), x))
    for i, key in enumerate(keys):
        assert np.allclose(logits[i], alone(key), atol=1e-6)


@pytest.mark.full
def test_word_ids_reach_a_module_as_integers():
    x = jnp.asarray([[3, 8, 1, 0], [2, 2, 0, 0]], jnp.uint8)
    types = []

    def noted(x):
        types.append(x.dtype)
        return x

    class Bag(eqx.Module):
        vectors: eqx.nn.Embedding

        def __call__(self, x):
            return jax.vmap(self.vectors)(noted(x)).mean(0)

    linen_bag = nn.Sequential([noted, nn.Embed(9, 5), lambda x: x.mean(1)])
    for model in (
        models.from_flax(linen_bag, (4,), dtype=jnp.int32),
        models.from_flax(
            lambda rngs: nnx.Sequential(noted, nnx.Embed(9, 5, rngs=rngs), lambda x: x.mean(1)), (4,), dtype=int
        ),
        models.from_equinox(lambda key: Bag(eqx.nn.Embedding(9, 5, key=key)), dtype=jnp.int32),
    ):
        params = model.init(KEY)
        types.clear()
        (vectors,) = jax.tree.leaves(params)
        assert np.allclose(model.apply(params, x), vectors[np.asarray(x, int)].mean(1), atol=1e-6)
        assert types in ([jnp.dtype(jnp.int32)], [jnp.dtype(int)])


@pytest.mark.full
def test_inactive_dropout_is_accepted():
    """So is a rate of zero."""
    plain = {
        "linen": models.from_flax(linen_net(dropout=True), (6,)),
        "nnx": models.from_flax(nnx_net(dropout=True), (6,)),
        "nnx without keys": models.from_flax(nnx_net(dropout=True, keys=False), (6,)),
        "nnx, nothing dropped": models.from_flax(nnx_net(dropout=False, rate=0.0), (6,)),
        "equinox": models.from_equinox(equinox_net(dropout=True)),
        "equinox, nothing dropped": models.from_equinox(equinox_net(dropout=False, p=0.0)),
    }
    x = jnp.asarray(X)
    for name, model in plain.items():
        logits = jax.jit(lambda keys, model=model: jax.vmap(lambda key: model.apply(model.init(key), x))(keys))(
            jax.random.split(KEY, 2)
        )
        without = ADAPTED[name.split()[0].strip(",")]()
        if name.startswith("linen"):  # in the others the dropout layer consumes keys
            assert np.allclose(logits[0], without.apply(without.init(jax.random.split(KEY, 2)[0]), x), atol=1e-6)
        assert np.all(np.isfinite(logits))


def test_other_state_is_rejected():
    class Counting(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.variable("calls", "count", lambda: jnp.zeros(()))
            return nn.Dense(3)(x)

    with pytest.raises(SettingError, match=r"^the module keeps state \(calls\) besides its params"):
        models.from_flax(Counting(), (6,))

    class Remembering(nnx.Linear):
        def __init__(self, rngs):
            super().__init__(6, 3, rngs=rngs)
            self.seen = nnx.Cache(jnp.zeros(3))

    with pytest.raises(SettingError, match=r"^the module keeps state \(Cache\) besides its params"):
        models.from_flax(Remembering, (6,))

    class Spectral(eqx.Module):
        layer: eqx.nn.SpectralNorm

        def __init__(self, key):
            self.layer = eqx.nn.SpectralNorm(eqx.nn.Linear(6, 3, key=key), "weight", key=key)

    with pytest.raises(SettingError, match=r"^the module keeps state \(eqx.nn.State\) besides its params"):
        models.from_equinox(Spectral)
    with pytest.raises(SettingError, match=r"^the module keeps state \(eqx.nn.State\) besides its params"):
        models.from_equinox(eqx.nn.make_with_state(equinox_net()))


def test_modules_that_cannot_be_used():
    with pytest.raises(SettingError, match=r"not a Linear$"):
        models.from_flax(nnx.Linear(6, 3, rngs=nnx.Rngs(0)), (6,))
    with pytest.raises(SettingError, match="this one made a Dense"):
        models.from_flax(lambda rngs: nn.Dense(3), (6,))
    with pytest.raises(SettingError, match=r"this one made a tuple$"):
        models.from_equinox(lambda key: (1, 2))
    with pytest.raises(SettingError, match=r"one row of logits for each sample, not shape \(1, 2, 3\) for one"):
        models.from_flax(nn.Dense(3), (2, 6))
    with pytest.raises(SettingError, match="one row of logits for each sample, not a tuple"):
        models.from_flax(nn.Sequential([nn.Dense(3), lambda x: (x, x)]), (6,))
    with pytest.raises(SettingError, match=r"cannot be applied to samples of shape \(7,\): .*") as problem:
        models.from_flax(nnx_net(), (7,))
    assert "\n" not in str(problem.value)
    assert problem.value.__cause__ is not None


@pytest.mark.parametrize("name", ADAPTED)
def test_a_head_must_name_parameters(name):
    with pytest.raises(SettingError, match=r"^head is lost, but the params are called .*(last|layers.2)"):
        ADAPTED[name](head=("lost",))


def test_head_names_stand_for_whole_paths():
    params = {name: jnp.zeros(2) for name in ("layers.1.weight", "layers.1.bias", "layers.10.weight", "layers")}

    def split(*head):
        task = pfedbred.Task(models.Model(lambda key: params, lambda w, x: x, head=head))
        return body_and_head.split(task, params)

    assert set(split("layers.1").head) == {"layers.1.weight", "layers.1.bias"}
    assert set(split("layers.1").body) == {"layers.10.weight", "layers"}
    assert set(split("layers.10.weight", "layers.1").body) == {"layers"}
    assert set(split("layers").body) == set()
    for missing in (("layers.2",), ("layers.1", "layer"), ()):
        with pytest.raises(SettingError, match="names its head"):
            split(*missing)


def test_libraries_are_needed_only_when_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "equinox", None)
    monkeypatch.setitem(sys.modules, "flax.linen", None)
    with pytest.raises(SettingError, match=r"^this needs equinox: pip install equinox$"):
        models.from_equinox(lambda key: None)
    with pytest.raises(SettingError, match=r"^this needs flax: pip install flax$"):
        models.from_flax(None, (6,))


def test_an_equinox_module_needs_no_shape():
    with pytest.raises(pfedbred.SettingError, match=r"from_equinox takes no sample shape, unlike from_flax"):
        models.from_equinox(equinox_net(), (6,))
    with pytest.raises(pfedbred.SettingError, match=r"takes no sample shape"):
        models.from_equinox(equinox_net(), shape=(6,))
