"""The transformers for texts and for images against NumPy transcriptions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import pfedbred
from pfedbred import models
from pfedbred.algorithms import body_and_head
from pfedbred.errors import SettingError
from pfedbred.types import Words

pytestmark = pytest.mark.full  # compiling many networks takes long

KEY = jax.random.key(3)
CLASSES = 3
LENGTHS = (9, 1, 4, 7)


def sentences(lengths, longest, count, seed=0):
    """Ids with padding at the end."""
    rng = np.random.default_rng(seed)
    return np.stack([np.r_[rng.integers(1, count, n), np.zeros(longest - n, int)] for n in lengths])


def perturbed(params, seed=1):
    """Norms other than those of the start."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: np.asarray(leaf) + 0.3 * rng.normal(size=leaf.shape), params)


def size(model):
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, KEY)))


# Transcriptions: a sample, a head and a position at a time -----------------------------------------------------------


def numpy_norm(layer, x):
    return (x - np.mean(x)) / math.sqrt(np.var(x) + 1e-5) * layer["scale"] + layer["shift"]


def linear(layer, x):
    return layer["weight"] @ x + layer["bias"]


def numpy_attention(params, positions, heads):
    """From the normed vectors of one sample to what is added to them."""
    width = len(positions[0])
    part = width // heads
    three = [linear(params["query_key_value"], x) for x in positions]
    out = []
    for mine in three:
        joined = []
        for h in range(heads):
            query = mine[h * part : (h + 1) * part]
            keys = [each[width + h * part : width + (h + 1) * part] for each in three]
            values = [each[2 * width + h * part : 2 * width + (h + 1) * part] for each in three]
            weights = np.array([math.exp(query @ key / math.sqrt(part)) for key in keys])
            joined.append(sum(w * v for w, v in zip(weights / weights.sum(), values, strict=True)))
        out.append(linear(params["back"], np.concatenate(joined)))
    return out


def numpy_encoder(params, positions, layers, heads):
    """The vectors of one sample, without padding."""
    for i in range(1, layers + 1):
        layer = params[f"layer{i}"]
        normed = [numpy_norm(layer["attention"]["norm"], x) for x in positions]
        positions = [x + y for x, y in zip(positions, numpy_attention(layer["attention"], normed, heads), strict=True)]
        inner, after = layer["feedforward"], []
        for x in positions:
            wide = linear(inner["wide"], numpy_norm(inner["norm"], x))
            gelu = wide * (1 + scipy.special.erf(wide / math.sqrt(2))) / 2
            after.append(x + linear(inner["back"], gelu))
        positions = after
    return [numpy_norm(params["norm"], x) for x in positions]


def numpy_transformer(params, x, vectors, layers, heads):
    logits = []
    for ids in x:
        words = [vectors(word) + params["positions"][place] for place, word in enumerate(ids) if word != 0]
        logits.append(linear(params["output"], numpy_encoder(params["encoder"], words, layers, heads)[-1]))
    return np.stack(logits)


# Texts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [None, 5])
def test_transformer_is_its_transcription(dimensions):
    """With learned and with given vectors; padding is cut off in the transcription."""
    given = None if dimensions is None else np.random.default_rng(1).normal(size=(30, dimensions))
    words = Words(30, given)
    model = models.transformer((9,), CLASSES, words=words, width=8, layers=2, heads=2, dtype=jnp.float64)
    params, x = perturbed(model.init(KEY)), sentences(LENGTHS, 9, 30)
    assert ("embedding" in params) == (given is None)

    def vectors(word):
        return params["embedding"][word] if given is None else linear(params["input"], given[word])

    expected = numpy_transformer(params, x, vectors, 2, 2)
    assert np.allclose(jax.jit(model.apply)(params, x), expected, rtol=0, atol=1e-10)


def test_transformer_ignores_padding():
    """Less padding changes nothing; no gradient reaches the padding's vector; samples of padding alone are finite."""
    model = models.transformer((9,), 2, words=Words(30), width=8, layers=1, heads=2, dtype=jnp.float64)
    params, apply = perturbed(model.init(KEY)), jax.jit(model.apply)
    x = sentences((5, 0, 2), 9, 30)
    assert np.allclose(apply(params, x[:, :5])[::2], apply(params, x)[::2], rtol=0, atol=1e-13)
    gradient = jax.jit(jax.grad(lambda w: jnp.sum(model.apply(w, x) ** 2)))(params)
    read = np.zeros(30, bool)
    read[np.unique(x)] = True
    assert np.array_equal(np.any(np.asarray(gradient["embedding"]) != 0, 1), read & (np.arange(30) > 0))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((gradient, apply(params, x))))


def layer_size(width):
    attention = (3 * width * width + 3 * width) + (width * width + width)
    feedforward = (4 * width * width + 4 * width) + (4 * width * width + width)
    return attention + feedforward + 2 * 2 * width


def test_sizes():
    encoder = 2 * layer_size(64) + 2 * 64
    assert size(models.transformer((80,), 80, words=Words(82))) == (82 + 80) * 64 + encoder + (64 * 80 + 80)
    given = Words(100, np.zeros((100, 50)))
    assert size(models.transformer((25,), 2, words=given)) == (50 * 64 + 64) + 25 * 64 + encoder + (64 * 2 + 2)
    patches = (48 * 128 + 128) + 64 * 128
    assert size(models.vit((32, 32, 3), 10)) == patches + 4 * layer_size(128) + 2 * 128 + (128 * 10 + 10)
    assert size(models.vit((28, 28), 10, 64, 1)) == (16 * 64 + 64) + 49 * 64 + layer_size(64) + 2 * 64 + (64 * 10 + 10)


def test_transformer_rejects_other_samples():
    with pytest.raises(SettingError, match=r"transformer needs samples of shape \(length,\), not \(28, 28\)"):
        models.get("transformer", (28, 28), 2, Words(10))
    with pytest.raises(SettingError, match=r"transformer needs one vector for each of the 10 word ids, not an array"):
        models.get("transformer", (28,), 2, Words(10, np.zeros((9, 3))))
    with pytest.raises(SettingError, match="heads must divide the width 64, which 3 does not"):
        models.transformer((9,), 2, words=Words(10), heads=3)


@pytest.mark.full
def test_transformer_learns():
    """Whether word 2 comes before word 3, with personal heads."""
    rng = np.random.default_rng(0)

    def samples(n):
        x, y = rng.integers(4, 8, (n, 5)), rng.integers(0, 2, n).astype(np.int32)
        x[np.arange(n), y] = 2
        x[np.arange(n), 1 - y] = 3
        x[:, 4] = 0
        return x.astype(np.int32), y

    federation = pfedbred.from_clients([samples(40) for _ in range(2)], [samples(40) for _ in range(2)])
    model = models.transformer((5,), 2, words=Words(8), width=16, layers=1, heads=2)
    result = pfedbred.run(
        federation=federation, model=model, algorithm="fedper", rounds=10, eval_every=10, settings={"alpha": 0.1}
    )
    assert result.accuracy("personal")[-1, 0] > 0.9
    mine, other = (body_and_head.split(result.backend.task, result.personal_model(i)) for i in (0, 1))
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, mine.body, other.body)))
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, mine.head, other.head)))


# Images -------------------------------------------------------------------------------------------------------------


def numpy_vit(params, x, layers, heads):
    """Sides that 4 does not divide are read as if zeros followed."""
    logits = []
    for image in x.reshape(*x.shape[:3], -1):
        patches = []
        for r in range(0, image.shape[0], 4):
            for c in range(0, image.shape[1], 4):
                patch = np.zeros((4, 4, image.shape[2]))
                seen = image[r : r + 4, c : c + 4]
                patch[: seen.shape[0], : seen.shape[1]] = seen
                patches.append(linear(params["patches"], patch.reshape(-1)) + params["positions"][len(patches)])
        out = numpy_encoder(params["encoder"], patches, layers, heads)
        logits.append(linear(params["output"], np.mean(out, axis=0)))
    return np.stack(logits)


@pytest.mark.parametrize("shape", [(8, 13, 2), pytest.param((9, 8), marks=pytest.mark.full)], ids=str)
def test_vit_is_its_transcription(shape):
    model = models.vit(shape, CLASSES, 8, 2, 2, dtype=jnp.float64)
    params, x = perturbed(model.init(KEY)), np.random.default_rng(0).normal(size=(2, *shape))
    assert np.allclose(jax.jit(model.apply)(params, x), numpy_vit(params, x, 2, 2), rtol=0, atol=1e-10)
