"""Models that start from given params, and those of which only some parts are trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pfedbred import models
from pfedbred.algorithms.base import Task
from pfedbred.data.minibatches import Batch
from pfedbred.errors import SettingError
from pfedbred.io import tensors
from pfedbred.models.base import Model, Statistics, WithStatistics

KEY = jax.random.key(2)
DNN = models.dnn((6,), 3, hidden=5)
X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)), jnp.float32)


def arrays(model, seed=0):
    return {name: np.asarray(leaf) for name, leaf in tensors.named(model.init(jax.random.key(seed))).items()}


def test_a_model_starts_from_what_is_given_whatever_the_key():
    given = arrays(DNN)
    model = models.starting_from(DNN, given)
    for seed in (1, 2):
        found = tensors.named(model.init(jax.random.key(seed)))
        assert all(np.array_equal(found[name], array) for name, array in given.items())


def test_some_parts_are_taken_and_the_others_drawn():
    given, other = arrays(DNN), models.dnn((6,), 8, hidden=5)  # as many labels as it likes: its head is not taken
    params = models.starting_from(other, given, ["hidden"]).init(KEY)
    assert np.array_equal(params["hidden"]["weight"], given["hidden.weight"])
    assert np.array_equal(params["output"]["weight"], other.init(KEY)["output"]["weight"])


@pytest.mark.parametrize(
    ("change", "parts", "says"),
    [
        (lambda given: given.pop("output.bias"), None, "output.bias is missing"),
        (lambda given: given.update({"output.bias": np.zeros(4)}), None, r"output.bias has shape \(4,\), not \(3,\)"),
        (lambda given: given.update({"extra.bias": np.zeros(4)}), None, "extra.bias is not in the model"),
        (lambda given: given.update({"output.bias": np.full(3, np.nan)}), None, "output.bias has numbers that are not"),
        (lambda given: given.pop("hidden.bias"), ["hidden"], "hidden.bias is missing"),
        (lambda given: None, ["hiden"], "no part 'hiden'.*it has hidden, output"),
        (lambda given: given.clear(), None, "; and 1 more"),
    ],
)
def test_what_does_not_fit_is_named(change, parts, says):
    given = arrays(DNN)
    change(given)
    with pytest.raises(SettingError, match=says):
        models.starting_from(DNN, given, parts, "file")


@pytest.mark.parametrize(("trained", "first"), [("output", None), ("hidden", "hidden")])
@pytest.mark.full
def test_the_trained_parts_have_the_whole_networks_outputs_and_gradients(trained, first):
    given, params = arrays(DNN), DNN.init(jax.random.key(0))
    model = models.training_only(models.starting_from(DNN, given), [trained], given)
    own = model.init(KEY)
    assert list(own) == [trained]
    assert model.first == first
    assert np.array_equal(model.apply(own, X), DNN.apply(params, X))
    batch = Batch(X, jnp.asarray([0, 1, 2, 0]))
    whole, part = (jax.grad(Task(each).loss)(held, batch) for each, held in ((DNN, params), (model, own)))
    for one, other in zip(jax.tree.leaves(part), jax.tree.leaves(whole[trained]), strict=True):
        assert np.allclose(one, other, atol=1e-6)
    assert sorted(model.whole(own)) == ["hidden", "output"]
    assert np.array_equal(model.whole(own)["hidden"]["weight"], given["hidden.weight"])
    if first:
        z = X @ own["hidden"]["weight"].T + own["hidden"]["bias"]
        assert np.allclose(model.rest(own, z), DNN.apply(params, X), atol=1e-6)


def test_heads_and_norms_are_those_that_are_trained():
    params = {f"{name}.weight": jnp.ones(2) for name in ("conv", "norm1", "norm2", "output")}
    model = Model(lambda key: params, lambda params, x: x, head=("output",), norms=("norm1", "norm2"))
    found = models.training_only(model, ["norm2", "output"], params)
    assert found.norms == ("norm2",)
    assert found.head == ("output",)
    assert found.head_keys(found.init(KEY)) == ["output.weight"]
    assert models.training_only(model, ["conv"], params).head == ()


def test_training_and_statistics_see_the_whole_network():
    def total(params):
        return params["body"] + 10 * params["output"]

    plain = Model(
        lambda key: {"body": jnp.float32(1), "output": jnp.float32(2)},
        lambda given, x: x * total(given.params) + given.statistics,
        train=lambda params, x, key: x * total(params),
        statistics=Statistics(lambda: jnp.float32(0), lambda params, x: x + total(params)),
    )
    model = models.training_only(plain, ["output"], {"body": np.float32(5)})
    own = {"output": jnp.float32(3)}
    assert model.apply(WithStatistics(own, jnp.float32(7)), 2) == 2 * 35 + 7
    assert model.train(own, 2, KEY) == 2 * 35
    assert model.statistics.of(own, 2) == 37


@pytest.mark.parametrize(
    ("names", "says"),
    [(["hidden", "output"], "names all parts"), (["head"], "train_only: the model has no part 'head'")],
)
def test_parts_that_cannot_be_trained_alone_are_refused(names, says):
    with pytest.raises(SettingError, match=says):
        models.training_only(DNN, names, arrays(DNN))
