"""The models of signals and of characters against NumPy transcriptions and lax's own convolution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfedbred
from pfedbred import models
from pfedbred.errors import SettingError
from pfedbred.types import Words

KEY = jax.random.key(3)
CLASSES = 4


def as_numpy(tree):
    return jax.tree.map(np.asarray, tree)


def size(model):
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, KEY)))


# cnn1d --------------------------------------------------------------------------------------------------------------


def numpy_cnn1d(params, x):
    """conv, ReLU, pool, twice; two linear layers: a signal, a step and a filter at a time."""
    logits = []
    for signal in x.reshape(*x.shape[:2], -1):
        for layer in ("conv1", "conv2"):
            kernels, biases = params[layer]["weight"], params[layer]["bias"]
            steps = len(signal) - 8
            out = np.zeros((steps, len(kernels)))
            for t in range(steps):
                for k, kernel in enumerate(kernels):
                    out[t, k] = max(np.sum(kernel * signal[t : t + 9]) + biases[k], 0.0)
            signal = np.stack([out[2 * t : 2 * t + 2].max(0) for t in range(steps // 2)])
        vector = params["hidden"]["weight"] @ signal.reshape(-1) + params["hidden"]["bias"]
        logits.append(params["output"]["weight"] @ np.maximum(vector, 0) + params["output"]["bias"])
    return np.stack(logits)


@pytest.mark.parametrize("shape", [(28,), (31, 1), (45, 3), pytest.param((128, 9), marks=pytest.mark.full)], ids=str)
def test_cnn1d_is_its_transcription(shape):
    """Of even and odd lengths: what does not fill a pool is dropped."""
    model = models.cnn1d(shape, CLASSES, (5, 6), 7, dtype=jnp.float64)
    params, x = model.init(KEY), np.random.default_rng(0).normal(size=(3, *shape))
    assert np.allclose(jax.jit(model.apply)(params, x), numpy_cnn1d(as_numpy(params), x), rtol=0, atol=1e-10)


def test_cnn1d_has_the_gradient_of_a_convolution():
    """The same network with lax's convolution and pooling."""
    model = models.cnn1d((41, 2), CLASSES, (5, 6), 7, dtype=jnp.float64)
    params, x = model.init(KEY), np.random.default_rng(0).normal(size=(3, 41, 2))

    def by_lax(params, x):
        for layer in ("conv1", "conv2"):
            numbers = ("NWC", "OWI", "NWC")
            y = jax.lax.conv_general_dilated(x, params[layer]["weight"], (1,), "VALID", dimension_numbers=numbers)
            y = jax.nn.relu(y + params[layer]["bias"])
            x = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 1), (1, 2, 1), "VALID")
        for layer in ("hidden", "output"):
            x = x.reshape(len(x), -1) @ params[layer]["weight"].T + params[layer]["bias"]
            x = jax.nn.relu(x) if layer == "hidden" else x
        return x

    found, expected = (
        jax.jit(jax.grad(lambda w, apply=apply: jnp.sum(jnp.sin(apply(w, x)))))(params)
        for apply in (model.apply, by_lax)
    )
    same = jax.tree.map(lambda a, b: np.allclose(a, b, rtol=0, atol=1e-10), found, expected)
    assert all(jax.tree.leaves(same))


def test_cnn1d_sizes():
    linear = 26 * 64 * 128 + 128
    assert size(models.cnn1d((128, 9), 6)) == (81 * 32 + 32) + (288 * 64 + 64) + linear + (128 * 6 + 6)
    assert size(models.cnn1d((28,), 2, (2, 3), 4)) == (9 * 2 + 2) + (18 * 3 + 3) + (3 * 4 + 4) + (4 * 2 + 2)


@pytest.mark.parametrize("shape", [(27,), (9, 128), (28, 28, 1), ()], ids=str)
def test_cnn1d_needs_signals(shape):
    with pytest.raises(SettingError, match=r"cnn1d needs signals of shape .*at least 28 long, not samples of shape \("):
        models.get("cnn1d", shape, 2)


@pytest.mark.full
def test_cnn1d_learns():
    """A wave of one of three frequencies, at any phase."""
    rng = np.random.default_rng(0)

    def samples(n):
        y = rng.integers(0, 3, n).astype(np.int32)
        phase = rng.uniform(0, 6.3, n)[:, None]
        return np.sin(phase + (0.5 + 0.5 * y[:, None]) * np.arange(32)).astype(np.float32), y

    federation = pfedbred.from_clients([samples(60) for _ in range(2)], [samples(40) for _ in range(2)])
    settings = {"alpha": 0.1, "R": 20}
    result = pfedbred.run(
        federation=federation, model="cnn1d", algorithm="fedavg", rounds=8, eval_every=8, settings=settings
    )
    assert result.accuracy("personal")[-1, 0] > 0.9


# charlstm -----------------------------------------------------------------------------------------------------------

LENGTHS = (9, 1, 0, 4, 7)


def characters():
    """Ids with padding at the end, as bytes."""
    rng = np.random.default_rng(0)
    return np.stack([np.r_[rng.integers(1, 30, n), np.zeros(9 - n, int)] for n in LENGTHS]).astype(np.uint8)


def numpy_charlstm(params, x):
    """A sample at a time, its padding cut off first."""
    logits = []
    for ids in x:
        sequence = [params["embedding"][i] for i in ids if i != 0]
        for name in ("layer1", "layer2"):
            layer = params[name]
            hidden = layer["recurrent"].shape[1]
            h, c, outputs = np.zeros(hidden), np.zeros(hidden), []
            for vector in sequence:
                sums = layer["input"] @ vector + layer["input_bias"] + layer["recurrent"] @ h + layer["recurrent_bias"]
                i, f, g, o = sums.reshape(4, hidden)
                c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
                h = np.tanh(c) / (1 + np.exp(-o))
                outputs.append(h)
            sequence = outputs
        last = sequence[-1] if sequence else np.zeros(hidden)
        logits.append(params["output"]["weight"] @ last + params["output"]["bias"])
    return np.stack(logits)


def test_charlstm_is_its_transcription():
    """Sequences of many lengths, including zero."""
    model = models.charlstm((9,), CLASSES, words=Words(30), embedding=5, hidden=6, dtype=jnp.float64)
    params, x = model.init(KEY), characters()
    assert np.allclose(jax.jit(model.apply)(params, x), numpy_charlstm(as_numpy(params), x), rtol=0, atol=1e-10)


def test_charlstm_reads_forward_only():
    """The last character decides nothing of what is before it; padding is never read."""
    model = models.charlstm((9,), CLASSES, words=Words(30), embedding=5, hidden=6, dtype=jnp.float64)
    params, x = model.init(KEY), characters()
    apply = jax.jit(model.apply)
    gradient = jax.jit(jax.grad(lambda w: jnp.sum(model.apply(w, x) ** 2)))(params)["embedding"]
    read = np.zeros(30, bool)
    read[np.unique(x)] = True
    assert np.array_equal(np.any(np.asarray(gradient) != 0, 1), read & (np.arange(30) > 0))
    longer = np.concatenate([x, np.zeros((len(x), 3), np.uint8)], axis=1)
    assert np.allclose(apply(params, longer), apply(params, x), rtol=0, atol=1e-13)


def test_charlstm_sizes():
    """LEAF's: 8 numbers a character, two layers of 256. With 80 characters, padding and an unknown one."""
    layers = 4 * 256 * (8 + 256) + 8 * 256 + 4 * 256 * (256 + 256) + 8 * 256
    assert size(models.charlstm((80,), 80, words=Words(82))) == 82 * 8 + layers + (256 * 80 + 80)


def test_charlstm_rejects_other_samples():
    with pytest.raises(SettingError, match=r"charlstm needs samples of shape \(length,\), not \(28, 28\)"):
        models.get("charlstm", (28, 28), 2, Words(10))
    with pytest.raises(SettingError, match="charlstm learns its own vectors: give none, or use lstm"):
        models.get("charlstm", (28,), 2, Words(10, np.zeros((10, 3))))


@pytest.mark.full
def test_the_next_character_of_a_text(tmp_path):
    """From a federation of characters to an exported model that continues a text."""
    alphabet = "ab "
    text = pfedbred.data.text.Text(tuple(alphabet))
    ids = text.encode(["ab " * 40], 120)[0].astype(np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(ids, 11)
    pool = pfedbred.data.Pool(
        "letters",
        windows[:, :-1],
        windows[:, -1].astype(np.int32) - 2,
        3,
        owner=np.arange(len(windows)) % 2,
        owners=("a", "b"),
        labels=tuple(alphabet),
        text=text,
    )
    rows = [np.flatnonzero(pool.owner == i) for i in range(2)]
    split = pfedbred.data.pool.divide(rows, 0.25, np.random.default_rng(0))
    federation = pfedbred.data.pool.federate(pool, split, about={})
    pfedbred.data.prepared.save(federation, tmp_path / "letters.fed")

    def small(shape, classes, *, words):
        return models.charlstm(shape, classes, words=words, hidden=16)

    pfedbred.run(
        dataset=str(tmp_path / "letters.fed"),
        model=small,
        algorithm="fedavg",
        rounds=10,
        eval_every=10,
        settings={"alpha": 2.0, "R": 20},
        out=tmp_path / "run",
    )
    model = pfedbred.load_model(pfedbred.export(tmp_path / "run"), model=small)
    assert model.predict(["ab ab ab ab ab ab", "b ab ab ab ab ab "]) == [" ", "a"]
