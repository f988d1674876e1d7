"""The models against NumPy transcriptions, finite differences and PyTorch's documented initialisation."""

import math

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import pfedbred
from pfedbred import models
from pfedbred.algorithms import body_and_head
from pfedbred.errors import SettingError
from pfedbred.models.mobilenet import Stage
from pfedbred.models.resnet import resnet
from pfedbred.types import Words

KEY = jax.random.key(3)
CLASSES = 4


def as_numpy(tree):
    return jax.tree.map(np.asarray, tree)


def sentences(lengths, longest, count, seed=0):
    """Word ids with padding at the end."""
    rng = np.random.default_rng(seed)
    return np.stack([np.r_[rng.integers(1, count, n), np.zeros(longest - n, int)] for n in lengths])


def images(shape, n=2, seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape))


# The cnn ------------------------------------------------------------------------------------------------------------


def numpy_cnn(params, x):
    """conv, ReLU, pool, twice; three linear layers: an image, an output and a pool at a time."""
    logits = []
    for image in x.reshape(*x.shape[:3], -1):
        for layer in ("conv1", "conv2"):
            kernels, biases = params[layer]["weight"], params[layer]["bias"]
            rows, columns = image.shape[0] - 4, image.shape[1] - 4
            out = np.zeros((rows, columns, len(kernels)))
            for r in range(rows):
                for c in range(columns):
                    for k, kernel in enumerate(kernels):
                        total = np.sum(kernel * image[r : r + 5, c : c + 5]) + biases[k]
                        out[r, c, k] = max(total, 0.0)
            image = np.zeros((rows // 2, columns // 2, len(kernels)))
            for r in range(rows // 2):
                for c in range(columns // 2):
                    image[r, c] = out[2 * r : 2 * r + 2, 2 * c : 2 * c + 2].max((0, 1))
        vector = image.reshape(-1)
        for layer in ("hidden1", "hidden2"):
            vector = np.maximum(params[layer]["weight"] @ vector + params[layer]["bias"], 0)
        logits.append(params["output"]["weight"] @ vector + params["output"]["bias"])
    return np.stack(logits)


@pytest.mark.parametrize(
    "shape", [(28, 28), (16, 16, 1), (19, 22, 2), pytest.param((32, 32, 3), marks=pytest.mark.full)], ids=str
)
def test_cnn_is_its_transcription(shape, monkeypatch):
    """As it is computed on a CPU, and as on a GPU."""
    model = models.cnn(shape, CLASSES, dtype=jnp.float64)
    params, x = model.init(KEY), images(shape)
    expected = numpy_cnn(as_numpy(params), x)
    assert np.allclose(jax.jit(model.apply)(params, x), expected, rtol=0, atol=1e-10)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        on_gpu = jax.make_jaxpr(model.apply)(params, x)
    assert np.allclose(
        jax.jit(jax.extend.core.jaxpr_as_fun(on_gpu))(*jax.tree.leaves((params, x)))[0], expected, rtol=0, atol=1e-10
    )


def test_cnn_sizes():
    def size(shape, classes):
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(models.cnn(shape, classes).init, KEY)))

    linear = 120 * 84 + 84
    assert size((32, 32, 3), 10) == 62_006  # LeNet-5 on three channels
    assert size((28, 28), 62) == (25 * 6 + 6) + (150 * 16 + 16) + (4 * 4 * 16 * 120 + 120) + linear + (84 * 62 + 62)
    assert size((16, 20, 1), 2) == (25 * 6 + 6) + (150 * 16 + 16) + (1 * 2 * 16 * 120 + 120) + linear + (84 * 2 + 2)


@pytest.mark.parametrize("shape", [(64,), (15, 40, 3), (40, 15), (3, 32, 32), (2, 32, 32, 3), ()], ids=str)
def test_cnn_needs_images(shape):
    with pytest.raises(SettingError, match=r"cnn needs images of shape .*at least 16 by 16, not samples of shape \("):
        models.get("cnn", shape, 10)


# The lstm -----------------------------------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_direction(params, d, sequence):
    """The outputs of one direction for the vectors of one sample's words, in the order of reading."""
    hidden = params["recurrent"].shape[2]
    h, c, outputs = np.zeros(hidden), np.zeros(hidden), []
    for x in sequence:
        sums = params["input"][d] @ x + params["input_bias"][d] + params["recurrent"][d] @ h
        sums = sums + params["recurrent_bias"][d]
        i, f = sigmoid(sums[:hidden]), sigmoid(sums[hidden : 2 * hidden])
        g, o = np.tanh(sums[2 * hidden : 3 * hidden]), sigmoid(sums[3 * hidden :])
        c = f * c + i * g
        h = o * np.tanh(c)
        outputs.append(h)
    return outputs


def numpy_lstm(params, x, vectors):
    """A sample at a time, its padding cut off first: what PyTorch computes for packed sequences."""
    hidden = params["layer1"]["recurrent"].shape[2]
    logits = []
    for ids in x:
        sequence = [vectors[word] for word in ids if word != 0]
        states = []
        for layer in ("layer1", "layer2"):
            forward = numpy_direction(params[layer], 0, sequence)
            backward = numpy_direction(params[layer], 1, sequence[::-1])
            states += [forward[-1], backward[-1]] if sequence else [np.zeros(hidden)] * 2
            sequence = [np.concatenate(pair) for pair in zip(forward, backward[::-1], strict=True)]
        features = np.concatenate([sequence[-1] if sequence else np.zeros(2 * hidden), *states])
        activity = params["hidden"]["weight"] @ features + params["hidden"]["bias"]
        activity = np.where(activity > 0, activity, 0.1 * activity)
        logits.append(params["output"]["weight"] @ activity + params["output"]["bias"])
    return np.stack(logits)


LENGTHS = (9, 1, 0, 4, 7, 2)


@pytest.mark.parametrize("dimensions", [None, 50, 7])
def test_lstm_is_its_transcription(dimensions):
    """With learned and with given vectors; sequences of many lengths, including zero."""
    given = None if dimensions is None else np.random.default_rng(1).normal(size=(30, dimensions))
    model = models.lstm((9,), CLASSES, words=Words(30, given), hidden=6, dtype=jnp.float64)
    params, x = model.init(KEY), sentences(LENGTHS, 9, 30)
    assert ("embedding" in params) == (given is None)
    vectors = np.asarray(params["embedding"]) if given is None else given
    expected = numpy_lstm(as_numpy(params), x, vectors)
    assert np.allclose(jax.jit(model.apply)(params, x), expected, rtol=0, atol=1e-10)


def test_lstm_ignores_padding():
    """More padding changes nothing, and no gradient reaches the vector of the padding."""
    model = models.lstm((9,), 2, words=Words(30), hidden=6, dtype=jnp.float64)
    params, apply = model.init(KEY), jax.jit(model.apply)
    long = sentences(LENGTHS, 14, 30)
    short = long[:, :9]
    assert np.allclose(apply(params, short), apply(params, long), rtol=0, atol=1e-13)
    gradient = jax.grad(lambda w: jnp.sum(apply(w, short) ** 2))(params)["embedding"]
    read = np.zeros(30, bool)
    read[np.unique(short)] = True
    assert np.array_equal(np.any(np.asarray(gradient) != 0, 1), read & (np.arange(30) > 0))


@pytest.mark.full
def test_lstm_of_empty_samples_is_finite():
    model = models.lstm((5,), 2, words=Words(9), hidden=4)
    params, x = model.init(KEY), jnp.zeros((3, 5), int)
    both = jax.jit(jax.value_and_grad(lambda w: jnp.sum(model.apply(w, x))))(params)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(both))


def test_lstm_unrolled_is_the_same(monkeypatch):
    """The scan is unrolled on GPUs."""
    model = models.lstm((9,), 2, words=Words(30), hidden=6, dtype=jnp.float64)
    params, x = model.init(KEY), sentences(LENGTHS, 9, 30)
    plain = jax.jit(model.apply).lower(params, x)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    unrolled = jax.jit(lambda w, x: model.apply(w, x)).lower(params, x)
    assert "while" in plain.as_text()
    assert "while" not in unrolled.as_text()
    assert np.allclose(unrolled.compile()(params, x), plain.compile()(params, x), rtol=0, atol=1e-13)


def test_lstm_sizes():
    def size(words, hidden, classes):
        model = models.lstm((25,), classes, words=words, hidden=hidden)
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, KEY)))

    # The layers' sizes are those of torch.nn.LSTM(50, 50, num_layers=2, bidirectional=True): 101,600.
    assert size(Words(100, np.zeros((100, 50))), 50, 2) == 101_600 + (300 * 100 + 100) + (100 * 2 + 2)
    assert size(Words(1000), 50, 2) == 1000 * 50 + 101_600 + (300 * 100 + 100) + (100 * 2 + 2)
    layers = 2 * (4 * 8 * (300 + 8) + 8 * 8) + 2 * (4 * 8 * (16 + 8) + 8 * 8)
    assert size(Words(20, np.zeros((20, 300))), 8, 5) == layers + (48 * 100 + 100) + (100 * 5 + 5)


def test_lstm_rejects_other_shapes():
    with pytest.raises(SettingError, match=r"lstm needs samples of shape \(length,\), not \(28, 28\)"):
        models.get("lstm", (28, 28), 2, Words(10))
    with pytest.raises(SettingError, match=r"one vector for each of the 10 word ids, not an array of shape \(9, 50\)"):
        models.get("lstm", (25,), 2, Words(10, np.zeros((9, 50))))


# All of them --------------------------------------------------------------------------------------------------------


READ_WORDS = ("lstm", "charlstm", "transformer")
READ_IMAGES = ("cnn", "pfllib-cnn", "resnet8", "resnet18", "mobilenet", "vit")


def every(name, dtype=jnp.float64):
    """A small model of each kind and a batch for it."""
    if name == "cnn":
        return models.cnn((17, 16, 2), CLASSES, dtype=dtype), images((17, 16, 2), n=5)
    if name == "pfllib-cnn":
        return models.pfllib_cnn((17, 16, 2), CLASSES, (6, 8), 12, dtype=dtype), images((17, 16, 2), n=5)
    if name in ("resnet8", "resnet18"):
        blocks = 1 if name == "resnet8" else 2
        return resnet(name, (9, 8, 2), CLASSES, (4, 6), blocks, "group", dtype), images((9, 8, 2), n=5)
    if name == "mobilenet":
        stages = (Stage(1, 4, 1, 1), Stage(2, 6, 2, 2))
        return models.mobilenet((9, 8, 2), CLASSES, 4, stages, 8, dtype=dtype), images((9, 8, 2), n=5)
    if name == "vit":
        return models.vit((9, 8, 2), CLASSES, 8, 1, 2, dtype=dtype), images((9, 8, 2), n=5)
    if name == "transformer":
        model = models.transformer((9,), CLASSES, words=Words(30), width=8, layers=1, heads=2, dtype=dtype)
        return model, sentences(LENGTHS, 9, 30)
    if name == "cnn1d":
        return models.cnn1d((29, 2), CLASSES, (6, 8), 12, dtype=dtype), images((29, 2), n=5)
    if name in READ_WORDS:
        model = models.MODELS[name]((9,), CLASSES, words=Words(30), hidden=6, dtype=dtype)
        return model, sentences(LENGTHS, 9, 30)
    return models.MODELS[name]((2, 3), CLASSES, dtype=dtype), images((2, 3), n=5)


ALL = list(models.MODELS)
# The others' gradients and initialisation are made of the same parts.
DIFFERENT = ("mclr", "dnn", "cnn", "lstm", "resnet8", "transformer")
FIRST = [name if name in DIFFERENT else pytest.param(name, marks=pytest.mark.full) for name in ALL]


@pytest.mark.parametrize("name", FIRST)
def test_gradient_is_a_finite_difference(name):
    model, x = every(name)
    params = model.init(KEY)
    y = np.arange(len(x)) % CLASSES

    def loss(params):
        return -jnp.mean(jax.nn.log_softmax(model.apply(params, x))[jnp.arange(len(x)), y])

    leaves, structure = jax.tree.flatten(params)
    gradients = jax.tree.leaves(jax.jit(jax.grad(loss))(params))
    value, rng, step = jax.jit(loss), np.random.default_rng(0), 1e-7  # short, so that no ReLU changes sign
    for place, leaf in enumerate(leaves):
        direction = rng.normal(size=leaf.shape)

        def moved(by, place=place, direction=direction):
            return structure.unflatten([*leaves[:place], leaves[place] + by * direction, *leaves[place + 1 :]])

        slope = (value(moved(step)) - value(moved(-step))) / (2 * step)
        assert slope == pytest.approx(float(np.sum(gradients[place] * direction)), rel=1e-5, abs=1e-8)


FAN_IN = {
    "mclr": {"output": 6},
    "dnn": {"hidden": 6, "output": 100},
    "cnn": {"conv1": 25 * 2, "conv2": 25 * 6, "hidden1": 16, "hidden2": 120, "output": 84},
    "pfllib-cnn": {"conv1": 25 * 2, "conv2": 25 * 6, "hidden": 8, "output": 12},
    "cnn1d": {"conv1": 9 * 2, "conv2": 9 * 6, "hidden": 8, "output": 12},
    "lstm": {"layer1": 6, "layer2": 6, "hidden": 36, "output": 100},
    "charlstm": {"layer1": 6, "layer2": 6, "output": 6},
}


@pytest.mark.parametrize(
    "name", [name if name in DIFFERENT else pytest.param(name, marks=pytest.mark.full) for name in FAN_IN]
)
def test_initialisation_is_pytorchs(name):
    """Uniform in +-1/sqrt(fan-in), biases too; word vectors standard normal; all independent of each other."""
    model, _ = every(name)
    params = as_numpy(jax.jit(jax.vmap(model.init))(jax.random.split(KEY, 100)))
    if name in READ_WORDS:
        vectors = params.pop("embedding")
        assert scipy.stats.kstest(vectors.ravel()[:20_000], "norm").pvalue > 1e-3
    assert set(params) == set(FAN_IN[name])
    scaled = []
    for layer, fan_in in FAN_IN[name].items():
        for leaf in params[layer].values():
            values = leaf.ravel() * math.sqrt(fan_in)
            assert np.abs(values).max() <= 1
            assert scipy.stats.kstest(values[:20_000], "uniform", args=(-1, 2)).pvalue > 1e-3
            scaled.append(values)
    together = np.round(np.concatenate(scaled), 12)
    assert len(np.unique(together)) > 0.9999 * len(together)  # no random numbers are reused


def test_initialisation_of_linear_models_does_not_change():
    """Runs of earlier versions stay reproducible: layer by layer, the weight's key before the bias's."""

    def same(layer, key, inputs):
        weight, bias = jax.random.split(key)
        bound = 1 / math.sqrt(inputs)
        for part, part_key in (("weight", weight), ("bias", bias)):
            expected = jax.random.uniform(part_key, layer[part].shape, jnp.float32, -bound, bound)
            assert np.array_equal(layer[part], expected)

    same(models.mclr((2, 3), CLASSES).init(KEY)["output"], KEY, 6)
    hidden, output = jax.random.split(KEY)
    made = models.dnn((2, 3), CLASSES).init(KEY)
    same(made["hidden"], hidden, 6)
    same(made["output"], output, 100)


@pytest.mark.parametrize("executor", ["vmap", pytest.param("in turn", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in ("resnet18", "vit") else name for name in ALL]
)
@pytest.mark.few_cases(2)
def test_clients_with_different_params(name, executor):
    """Outputs and gradients equal those of each client alone."""
    model, x = every(name)
    params = jax.jit(jax.vmap(model.init))(jax.random.split(KEY, 3))
    batches = np.stack([x, x[::-1], np.roll(x, 2, 0)])

    @jax.jit
    def both(params, x):
        logits = model.apply(params, x)
        return logits, jax.grad(lambda w: jnp.sum(jnp.sin(model.apply(w, x))))(params)

    if executor == "vmap":
        found = jax.jit(jax.vmap(both))(params, batches)
    else:
        found = jax.jit(lambda *items: jax.lax.map(lambda item: both(*item), items))(params, batches)
    alone = [both(jax.tree.map(lambda leaf, i=i: leaf[i], params), batches[i]) for i in range(3)]
    alone = jax.tree.map(lambda *leaves: np.stack(leaves), *alone)
    same = jax.tree.map(lambda a, b: np.allclose(a, b, rtol=0, atol=1e-10), alone, found)
    assert all(jax.tree.leaves(same))


@pytest.mark.parametrize("name", ALL)
def test_dtype_follows_the_params(name):
    for dtype in (jnp.bfloat16, jnp.float32, jnp.float64):
        model, x = every(name, dtype)
        params = jax.eval_shape(model.init, KEY)
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(dtype)}
        logits = jax.eval_shape(model.apply, params, x)
        assert logits.dtype == dtype
        assert logits.shape == (len(x), CLASSES)
    shape = (16, 16) if name in READ_IMAGES else (28,) if name == "cnn1d" else (9,)
    default = models.get(name, shape, 3, Words(9) if name in READ_WORDS else None)
    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(default.init, KEY))} == {jnp.dtype("float32")}


@pytest.mark.parametrize("name", ALL)
def test_head_is_the_last_layer(name):
    model, x = every(name)
    params = model.init(KEY)
    parts = body_and_head.split(pfedbred.Task(model), params)
    assert list(parts.head) == ["output"]
    assert parts.head["output"]["bias"].shape == (CLASSES,)
    zero = body_and_head.join(parts.body, jax.tree.map(jnp.zeros_like, parts.head))
    assert np.all(jax.jit(model.apply)(zero, x) == 0)


def test_get():
    assert models.get(models.mclr((3,), 2), (9,), 9).init(KEY)["output"]["weight"].shape == (2, 3)
    with pytest.raises(SettingError, match="unknown model 'lstn'; did you mean 'lstm'"):
        models.get("lstn", (3,), 2)
    numbers = [name for name in ALL if name not in READ_WORDS]
    for name in numbers:
        words = f"^{name} reads numbers, but the data holds word ids: use lstm or charlstm or transformer$"
        with pytest.raises(SettingError, match=words):
            models.get(name, (25,), 2, Words(10))
    with pytest.raises(
        SettingError, match=f"^lstm reads word ids, but the data holds numbers: use {' or '.join(numbers)}$"
    ):
        models.get("lstm", (25,), 2)


def test_get_passes_words_to_models_that_take_them(monkeypatch):
    def bag_of_words(shape, classes, *, words):
        return models.Model(lambda key: jnp.zeros((words.count, classes)), lambda w, x: jnp.sum(w[x], 1))

    monkeypatch.setitem(models.MODELS, "bag", bag_of_words)
    assert models.get("bag", (25,), 2, Words(17)).init(KEY).shape == (17, 2)
    with pytest.raises(SettingError, match="bag reads word ids"):
        models.get("bag", (25,), 2)
    with pytest.raises(
        SettingError, match=r"mclr reads numbers, but .* word ids: use lstm or charlstm or transformer or bag"
    ):
        models.get("mclr", (25,), 2, Words(17))


# Training -----------------------------------------------------------------------------------------------------------

FAST = {"alpha": 0.1, "R": 20}


@pytest.mark.full
def test_cnn_learns():
    """Bright squares in one of three places, on images of 16 by 16."""
    rng = np.random.default_rng(0)

    def samples(n):
        y = rng.integers(0, 3, n).astype(np.int32)
        x = rng.normal(size=(n, 16, 16)).astype(np.float32)
        for place, row in zip(y, x, strict=True):
            row[5 * place : 5 * place + 5] += 2
        return x, y

    federation = pfedbred.from_clients([samples(40) for _ in range(2)], [samples(40) for _ in range(2)])
    result = pfedbred.run(
        federation=federation, model="cnn", algorithm="fedavg", rounds=12, eval_every=12, settings=FAST
    )
    assert result.accuracy("personal")[-1, 0] > 0.85


@pytest.mark.full
def test_lstm_learns():
    """Whether word 2 comes before word 3."""
    rng = np.random.default_rng(0)

    def samples(n):
        x, y = rng.integers(4, 8, (n, 5)), rng.integers(0, 2, n).astype(np.int32)
        x[np.arange(n), y] = 2
        x[np.arange(n), 1 - y] = 3
        x[:, 4] = 0
        return x.astype(np.int32), y

    federation = pfedbred.from_clients([samples(40) for _ in range(2)], [samples(40) for _ in range(2)])
    model = models.lstm((5,), 2, words=Words(8), hidden=8)
    result = pfedbred.run(
        federation=federation, model=model, algorithm="fedavg", rounds=12, eval_every=12, settings=FAST
    )
    assert result.accuracy("personal")[-1, 0] > 0.9
