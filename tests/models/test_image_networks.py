"""Networks for images against NumPy transcriptions, known sizes and PyTorch's documented batch normalisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pfedbred
from pfedbred import models
from pfedbred.algorithms import body_and_head
from pfedbred.errors import SettingError
from pfedbred.models import normalisation
from pfedbred.models.base import WithStatistics
from pfedbred.models.mobilenet import Stage
from pfedbred.models.resnet import resnet

pytestmark = pytest.mark.full  # compiling many networks takes long

KEY = jax.random.key(3)
CLASSES = 3


def images(shape, n=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape))


def perturbed(params, seed=1):
    """Scales and shifts other than one and zero."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: np.asarray(leaf) + 0.3 * rng.normal(size=leaf.shape), params)


def size(model):
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, KEY)))


# Transcriptions: an output at a time ---------------------------------------------------------------------------------


def numpy_conv(x, kernels, stride, padding):
    """Groups follow from the channels: the outputs of group g read the channels of group g."""
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    outputs, side, _, channels = kernels.shape
    groups = x.shape[3] // channels
    rows, columns = ((length - side) // stride + 1 for length in x.shape[1:3])
    y = np.zeros((len(x), rows, columns, outputs))
    for r in range(rows):
        for c in range(columns):
            window = x[:, stride * r : stride * r + side, stride * c : stride * c + side]
            for o, kernel in enumerate(kernels):
                group = o // (outputs // groups)
                part = window[..., group * channels : (group + 1) * channels]
                y[:, r, c, o] = np.sum(part * kernel, axis=(1, 2, 3))
    return y


def numpy_group_norm(_, layer, x):
    y, half = np.zeros_like(x), x.shape[3] // 2
    for n, sample in enumerate(x):
        for group in (slice(None, half), slice(half, None)):
            values = sample[:, :, group]
            y[n, :, :, group] = (values - np.mean(values)) / np.sqrt(np.var(values) + 1e-5)
    return y * layer["scale"] + layer["shift"]


def numpy_batch_norm(_, layer, x):
    y = np.zeros_like(x)
    for c in range(x.shape[3]):
        values = x[..., c]
        y[..., c] = (values - np.mean(values)) / np.sqrt(np.var(values) + 1e-5) * layer["scale"][c] + layer["shift"][c]
    return y


def relu(x):
    return np.maximum(x, 0)


def relu6(x):
    return np.minimum(relu(x), 6)


def head(params, x):
    return x.mean((1, 2)) @ params["output"]["weight"].T + params["output"]["bias"]


def numpy_resnet(params, x, norm, stages, blocks):
    def unit(part, name, x, stride):
        kernels = part["weight"]
        return norm(name, part["norm"], numpy_conv(x, kernels, stride, (kernels.shape[1] - 1) // 2))

    x = relu(unit(params["stem"], "stem", x.reshape(*x.shape[:3], -1), 1))
    for s in range(1, stages + 1):
        for b in range(1, blocks + 1):
            block, name = params[f"stage{s}"][f"block{b}"], f"stage{s}.block{b}"
            stride = 2 if s > 1 and b == 1 else 1
            y = relu(unit(block["unit1"], f"{name}.unit1", x, stride))
            y = unit(block["unit2"], f"{name}.unit2", y, 1)
            if s > 1 and b == 1:
                x = unit(block["skip"], f"{name}.skip", x, stride)
            x = relu(x + y)
    return head(params, x)


def numpy_mobilenet(params, x, norm, strides):
    def unit(part, name, x, stride=1):
        kernels = part["weight"]
        return norm(name, part["norm"], numpy_conv(x, kernels, stride, (kernels.shape[1] - 1) // 2))

    x = relu6(unit(params["stem"], "stem", x.reshape(*x.shape[:3], -1)))
    for number, stride in enumerate(strides, 1):
        name = f"block{number}"
        block, y = params[name], x
        if "expand" in block:
            y = relu6(unit(block["expand"], f"{name}.expand", y))
        y = relu6(unit(block["depthwise"], f"{name}.depthwise", y, stride))
        y = unit(block["project"], f"{name}.project", y)
        x = x + y if x.shape == y.shape else y
    return head(params, relu6(unit(params["last"], "last", x)))


# What they compute --------------------------------------------------------------------------------------------------


def numpy_pfllib_cnn(params, x):
    """conv, ReLU, pool, twice; two linear layers."""
    x = x.reshape(*x.shape[:3], -1)
    for layer in ("conv1", "conv2"):
        y = relu(numpy_conv(x, params[layer]["weight"], 1, 0) + params[layer]["bias"])
        rows, columns = y.shape[1] // 2, y.shape[2] // 2
        x = np.zeros((len(y), rows, columns, y.shape[3]))
        for r in range(rows):
            for c in range(columns):
                x[:, r, c] = y[:, 2 * r : 2 * r + 2, 2 * c : 2 * c + 2].max((1, 2))
    hidden = relu(x.reshape(len(x), -1) @ params["hidden"]["weight"].T + params["hidden"]["bias"])
    return hidden @ params["output"]["weight"].T + params["output"]["bias"]


@pytest.mark.parametrize("shape", [(17, 20, 2), (16, 16)], ids=str)
def test_pfllib_cnn_is_its_transcription(shape):
    model = models.pfllib_cnn(shape, CLASSES, (3, 4), 5, dtype=jnp.float64)
    params, x = perturbed(model.init(KEY)), images(shape)
    assert np.allclose(jax.jit(model.apply)(params, x), numpy_pfllib_cnn(params, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", [(9, 8, 2), pytest.param((8, 11), marks=pytest.mark.full)], ids=str)
def test_resnet_is_its_transcription(shape):
    """Of even and odd sides, with and without channels."""
    model = resnet("resnet", shape, CLASSES, (4, 6), 2, "group", jnp.float64)
    params, x = perturbed(model.init(KEY)), images(shape)
    expected = numpy_resnet(params, x, numpy_group_norm, 2, 2)
    assert np.allclose(jax.jit(model.apply)(params, x), expected, rtol=0, atol=1e-10)
    assert model.train is None
    assert model.statistics is None


STAGES, STRIDES = (Stage(1, 4, 1, 1), Stage(2, 6, 2, 2)), (1, 2, 1)


def test_mobilenet_is_its_transcription():
    model = models.mobilenet((9, 8, 2), CLASSES, 4, STAGES, 8, dtype=jnp.float64)
    params, x = perturbed(model.init(KEY)), images((9, 8, 2))
    expected = numpy_mobilenet(params, x, numpy_group_norm, STRIDES)
    assert np.allclose(jax.jit(model.apply)(params, x), expected, rtol=0, atol=1e-10)


def test_sizes():
    """As published: PFLlib's CNN, torchvision's MobileNetV2, and ResNet-18 with a 3x3 stem, for ten classes."""
    assert size(models.pfllib_cnn((28, 28), 10)) == 582_026
    assert size(models.pfllib_cnn((32, 32, 3), 10)) == 878_538
    assert size(models.mobilenet((32, 32, 3), 10)) == 2_236_682
    for norm in ("group", "batch"):
        assert size(models.resnet18((32, 32, 3), 10, norm=norm)) == 11_173_962
    units = (27 * 16 + 2 * 16) + 2 * (9 * 16 * 16 + 2 * 16)
    for a, b in ((16, 32), (32, 64)):
        units += (9 * a * b + 2 * b) + (9 * b * b + 2 * b) + (a * b + 2 * b)
    assert size(models.resnet8((32, 32, 3), 10)) == units + 64 * 10 + 10


SMALLEST = {"pfllib-cnn": 16, "resnet8": 8, "resnet18": 8, "mobilenet": 8, "vit": 8}


@pytest.mark.parametrize("name", SMALLEST)
def test_images_are_needed(name):
    side = SMALLEST[name]
    for shape in [(64,), (side - 1, 40, 3), (40, side - 1), (3, 32, 32), (2, 32, 32, 3), ()]:
        with pytest.raises(
            SettingError, match=rf"^{name} needs images of shape .*at least {side} by {side}, not sampl"
        ):
            models.get(name, shape, 10)
    for shape in [(side, side), (side + 1, 2 * side + 3, 4)]:
        model = models.get(name, shape, 10)
        x = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
        outputs = jax.eval_shape(lambda x, model=model: model.apply(model.starting(model.init(KEY)), x), x)
        assert outputs.shape == (2, 10)


@pytest.mark.parametrize("name", ["resnet8", pytest.param("mobilenet", marks=pytest.mark.full)])
def test_kernels_have_variance_two_over_fan_out(name):
    params = jax.jit(models.get(name, (8, 8, 3), 10).init)(KEY)
    found = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        keys = [part.key for part in path]
        if leaf.ndim == 4:
            outputs, groups = leaf.shape[0], leaf.shape[0] if "depthwise" in keys else 1
            values = np.asarray(leaf).ravel() / np.sqrt(2 / (outputs // groups * leaf.shape[1] ** 2))
            assert abs(values.mean()) < 5 / np.sqrt(values.size)
            assert abs(values.std() - 1) < 5 / np.sqrt(2 * values.size)
            found += 1
        elif "norm" in keys:
            assert np.all(np.asarray(leaf) == (keys[-1] == "scale"))
    assert found > 8


# Batch normalisation ------------------------------------------------------------------------------------------------


def test_norms_of_shifted_values():
    """Mean 100 and deviation 0.01 in float32: a variance as E x^2 - (E x)^2 would be lost."""
    x = 100 + 0.01 * images((4, 4, 2), n=16)
    layer = jax.tree.map(np.asarray, normalisation.norm_init(2, jnp.float32))
    got = x.astype(np.float32)
    exact = numpy_batch_norm("", layer, got.astype(np.float64))
    assert np.allclose(normalisation.batch_norm(layer, got), exact, atol=2e-2)
    assert np.allclose(normalisation.group_norm(layer, got), numpy_group_norm("", layer, got.astype(float)), atol=2e-2)


def test_norms_in_half_precision_do_not_round_sums():
    x = jnp.asarray(5 + images((8, 8, 4), n=8), jnp.bfloat16)
    layer = normalisation.norm_init(4, jnp.bfloat16)
    for norm, exact in ((normalisation.batch_norm, numpy_batch_norm), (normalisation.group_norm, numpy_group_norm)):
        y = norm(layer, x)
        assert y.dtype == jnp.bfloat16
        as_float = jax.tree.map(lambda leaf: np.asarray(leaf, float), layer)
        assert np.allclose(np.asarray(y, float), exact("", as_float, np.asarray(x, float)), rtol=2**-7, atol=1e-3)


def test_statistics_have_the_unbiased_variance():
    """That of a single number, which has none, counts as zero."""
    found = normalisation.observed(jnp.array([[[[1.0]]], [[[4.0]]]]))
    assert (float(found["mean"][0]), float(found["variance"][0])) == (2.5, 4.5)
    alone = normalisation.observed(jnp.full((1, 1, 1, 1), 4.0))
    assert (float(alone["mean"][0]), float(alone["variance"][0])) == (4.0, 0.0)


def batch_norm_network(name):
    shape = (9, 8, 2)
    if name == "resnet":
        model = resnet("resnet", shape, CLASSES, (4, 6), 1, "batch", jnp.float64)
        return model, lambda params, x, norm: numpy_resnet(params, x, norm, 2, 1)
    model = models.mobilenet(shape, CLASSES, 4, STAGES, 8, norm="batch", dtype=jnp.float64)
    return model, lambda params, x, norm: numpy_mobilenet(params, x, norm, STRIDES)


@pytest.mark.parametrize("name", ["resnet", pytest.param("mobilenet", marks=pytest.mark.full)])
def test_batch_normalisation(name):
    """Training by the minibatch, statistics of every layer, and outputs by the kept ones: each a transcription."""
    model, transcription = batch_norm_network(name)
    params, x = perturbed(model.init(KEY)), images((9, 8, 2))
    expected = transcription(params, x, numpy_batch_norm)
    assert np.allclose(jax.jit(model.train)(params, x, KEY), expected, rtol=0, atol=1e-10)

    statistics, observed = model.statistics.init(), {}
    assert all(np.all(each["mean"] == 0) and np.all(each["variance"] == 1) for each in statistics.values())

    def recording(name, layer, x):
        flat = x.reshape(-1, x.shape[3])
        observed[name] = {"mean": flat.mean(0), "variance": flat.var(0, ddof=1)}
        return numpy_batch_norm(name, layer, x)

    transcription(params, x, recording)
    statistics = jax.jit(model.statistics.of)(params, x)
    assert set(statistics) == set(observed)
    for layer, each in observed.items():
        for part, values in each.items():
            assert np.allclose(statistics[layer][part], values, rtol=0, atol=1e-10), (layer, part)

    def kept(name, layer, x):
        y = (x - observed[name]["mean"]) / np.sqrt(observed[name]["variance"] + 1e-5)
        return y * layer["scale"] + layer["shift"]

    logits = jax.jit(model.apply)(WithStatistics(params, statistics), x)
    assert np.allclose(logits, transcription(params, x, kept), rtol=0, atol=1e-10)


def test_batch_normalisation_of_clients():
    """Each client's outputs and statistics are those of its own params and samples."""
    model, _ = batch_norm_network("resnet")
    params = jax.jit(jax.vmap(model.init))(jax.random.split(KEY, 2))
    x = images((2, 9, 8, 2), n=2)

    @jax.jit
    def both(params, x):
        statistics = model.statistics.of(params, x)
        return statistics, model.apply(WithStatistics(params, statistics), x), model.train(params, x, KEY)

    found = jax.jit(jax.vmap(both))(params, x)
    alone = [both(jax.tree.map(lambda leaf, i=i: leaf[i], params), x[i]) for i in range(2)]
    alone = jax.tree.map(lambda *leaves: np.stack(leaves), *alone)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: np.allclose(a, b, rtol=0, atol=1e-10), alone, found)))


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_convolutions_are_fast_with_params_per_client(norm):
    """Gradients under vmap, as they are traced, have none of lax's convolutions."""
    model = resnet("resnet", (8, 8, 2), CLASSES, (4, 6), 1, norm, jnp.float32)
    train = (lambda params, x: model.train(params, x, KEY)) if norm == "batch" else model.apply
    params = jax.eval_shape(jax.vmap(model.init), jax.random.split(KEY, 3))
    x = jax.ShapeDtypeStruct((3, 2, 8, 8, 2), jnp.float32)
    program = str(jax.make_jaxpr(jax.vmap(jax.grad(lambda params, x: train(params, x).sum())))(params, x))
    assert "dot_general" in program
    assert "conv_general_dilated" not in program
    if norm == "batch":
        statistics = jax.eval_shape(model.statistics.init)
        of = jax.vmap(model.statistics.of)
        assert "conv_general_dilated" not in str(jax.make_jaxpr(of)(params, x))
        apply = jax.vmap(lambda *args: model.apply(WithStatistics(*args[:2]), args[2]), (0, None, 0))
        assert "conv_general_dilated" not in str(jax.make_jaxpr(apply)(params, statistics, x))


def test_norms_are_named():
    """Every array of a norm, and no other, is under a key that ``norms`` has."""
    for model in (models.resnet8((8, 8), 2), models.mobilenet((8, 8), 2, norm="batch"), models.vit((8, 8), 2)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(jax.eval_shape(model.init, KEY)):
            keys = [part.key for part in path]
            named = any(key in model.norms for key in keys)
            assert named == (keys[-1] in ("scale", "shift")), keys
            assert leaf.ndim == 1 or not named


def test_norm_is_group_or_batch():
    with pytest.raises(SettingError, match="unknown normalisation 'bach'; did you mean 'batch'"):
        models.resnet8((8, 8), 2, norm="bach")


# Training -----------------------------------------------------------------------------------------------------------


def bright_rows(rng, n):
    """Whether the upper or the lower half of an image is brighter."""
    y = rng.integers(0, 2, n).astype(np.int32)
    x = rng.normal(size=(n, 8, 8)).astype(np.float32)
    for place, image in zip(y, x, strict=True):
        image[4 * place : 4 * place + 4] += 2
    return x, y


SMALL = {
    "resnet": lambda: resnet("resnet", (8, 8), 2, (4, 6), 1, "group", jnp.float32),
    "mobilenet": lambda: models.mobilenet((8, 8), 2, 4, STAGES, 8),
    "vit": lambda: models.vit((8, 8), 2, 16, 1, 2),
}


@pytest.mark.parametrize(
    "name", ["resnet", *(pytest.param(name, marks=pytest.mark.full) for name in ("mobilenet", "vit"))]
)
@pytest.mark.few_cases
def test_fedper_splits_them(name):
    """Bodies are the same for all clients, heads are not; and they learn."""
    rng = np.random.default_rng(0)
    federation = pfedbred.from_clients(
        [bright_rows(rng, 40) for _ in range(2)], [bright_rows(rng, 40) for _ in range(2)]
    )
    result = pfedbred.run(
        federation=federation, model=SMALL[name](), algorithm="fedper", rounds=8, eval_every=8, settings={"alpha": 0.1}
    )
    assert result.accuracy("personal")[-1, 0] > 0.85
    task = result.backend.task
    mine, other = (body_and_head.split(task, result.personal_model(i)) for i in (0, 1))
    assert list(mine.head) == ["output"]
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, mine.body, other.body)))
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, mine.head, other.head)))
