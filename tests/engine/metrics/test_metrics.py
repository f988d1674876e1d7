"""Evaluation metrics against scikit-learn and NumPy, and the promise that their statistics add up."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, logsumexp, softmax

from pfedbred.engine import metrics
from pfedbred.engine.metrics import METRICS, Predictions
from pfedbred.engine.metrics.auroc import bins, count_of_bins
from pfedbred.errors import SettingError

BLOCKS, WIDTH, CLIENTS = 6, 8, 3
CLASSIFICATION = [name for name, each in METRICS.items() if each.task in ("any", "classification")]
REGRESSION = [name for name, each in METRICS.items() if each.task == "regression"]
SETS = [name for name, each in METRICS.items() if each.task == "multi-label"]


def _ece(logits, labels):
    probabilities = softmax(logits, -1)
    confidence, right = probabilities.max(-1), probabilities.argmax(-1) == labels
    total = 0.0
    for i in range(15):
        inside = (confidence > i / 15) & (confidence <= (i + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


def _linear_log2(x):
    """log2 at powers of 2, and linear between them, to the digits that a float32 of the number's bits has."""
    mantissa, exponent = np.frexp(np.float32(x))
    return np.float32((exponent + 2.0 * mantissa + 125) * 2**23).astype(float) / 2**23 - 127


def _linear_exp2(x):
    """Its inverse."""
    whole = np.floor(x)
    return 2**whole * (1 + x - whole)


def _binned_log_odds(logits):
    classes = logits.shape[1]
    rest = [logsumexp(np.delete(logits, c, 1), axis=1) for c in range(classes)]
    s = _linear_log2((classes - 1) * np.exp(logits - np.stack(rest, -1)))
    octaves = _linear_log2(np.abs(s) + 1 / 16) + 4  # from 1/16 on: 11 up to 128
    half = {2: 384, 3: 256, 5: 152, 10: 72}[classes] / 2
    return np.floor(half * (1 + np.sign(s) * octaves / 11))


def _one_against_rest(scores, labels):
    """Of the classes that have positives and negatives."""
    areas = [
        sklearn.metrics.roc_auc_score(labels == c, scores[:, c])
        for c in range(scores.shape[1])
        if 0 < np.sum(labels == c) < len(labels)
    ]
    return np.mean(areas) if areas else np.nan


REFERENCE = {
    "accuracy": lambda z, y: sklearn.metrics.accuracy_score(y, z.argmax(-1)),
    # scikit-learn's log_loss clips probabilities, and so every loss above 36.
    "loss": lambda z, y: np.mean(logsumexp(z, axis=1) - z[np.arange(len(y)), y]),
    "f1": lambda z, y: sklearn.metrics.f1_score(y, z.argmax(-1), average="macro"),
    "auroc": lambda z, y: _one_against_rest(_binned_log_odds(z), y),
    "ece": _ece,
    "brier": lambda z, y: np.mean(np.sum((softmax(z, -1) - np.eye(z.shape[1])[y]) ** 2, -1)),
    "nll": lambda z, y: np.mean(logsumexp(z, -1) - z[np.arange(len(y)), y]),
    "rmse": lambda z, y: sklearn.metrics.root_mean_squared_error(y, z[:, 0]),
    "mae": lambda z, y: sklearn.metrics.mean_absolute_error(y, z[:, 0]),
    "r2": lambda z, y: sklearn.metrics.r2_score(y, z[:, 0]) if np.ptp(y) else np.nan,
    "micro_f1": lambda z, y: sklearn.metrics.f1_score(y, z > 0, average="micro", zero_division=np.nan),
    "label_accuracy": lambda z, y: 1 - sklearn.metrics.hamming_loss(y, z > 0),
    "exact_match": lambda z, y: sklearn.metrics.accuracy_score(y, z > 0),
}


@functools.cache
def _program(name):
    return jax.jit(jax.vmap(METRICS[name].sums))


def _sums(name, outputs, labels, mask):
    """The statistics of blocks of samples: all arguments begin with the blocks."""
    losses = np.zeros(mask.shape)
    if METRICS[name].task in ("any", "classification"):
        losses = -np.take_along_axis(log_softmax(outputs, -1), labels[..., None], -1)[..., 0]
    return jax.device_get(_program(name)(Predictions(outputs, labels, losses, mask)))


def value_of(metric, sums):
    """As the evaluation does: condensed if they are large, then the value."""
    return metric.value(sums if metric.condense is None else jax.device_get(metric.condense(sums)))


def _value(name, outputs, labels):
    """The metric of samples that are all in one block."""
    outputs, labels = np.asarray(outputs), np.asarray(labels)
    return value_of(METRICS[name], _sums(name, outputs[None], labels[None], np.ones((1, len(labels)), bool)))[0]


def _samples(rng, name, shape, classes=3):
    if name in REGRESSION:
        return rng.normal(size=(*shape, 1)), rng.normal(1.0, 2.0, size=shape)
    if name in SETS:
        return rng.normal(size=(*shape, classes)), rng.integers(0, 2, (*shape, classes))
    labels = rng.integers(0, rng.integers(1, classes + 1), shape)  # the last labels may be absent
    return rng.normal(size=(*shape, classes)) * rng.choice([0.1, 1, 8]) + np.eye(classes)[labels], labels


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), classes=st.sampled_from([2, 3, 5]), real=st.floats(0, 1))
def test_blocks_and_clients_add_up_to_the_value_of_all_samples(name, seed, classes, real):
    rng = np.random.default_rng(seed)
    outputs, labels = _samples(rng, name, (BLOCKS, WIDTH), classes)
    mask = rng.random((BLOCKS, WIDTH)) < real
    if seed % 2:  # the padding is real samples of somebody else, or nothing at all
        outputs[~mask] = np.nan
    of_block = rng.integers(0, CLIENTS, BLOCKS)
    blocks = _sums(name, outputs, labels, mask)

    clients = jax.tree.map(lambda leaf: np.stack([leaf[of_block == i].sum(0) for i in range(CLIENTS)]), blocks)
    pooled = jax.tree.map(lambda leaf: leaf.sum(0), clients)

    def expected(chosen):
        return REFERENCE[name](outputs[chosen], labels[chosen]) if chosen.sum() > (name == "r2") else np.nan

    value = functools.partial(value_of, METRICS[name])
    np.testing.assert_allclose(value(pooled), expected(mask), rtol=1e-9, atol=1e-12)
    each = [expected(mask & (of_block == i)[:, None]) for i in range(CLIENTS)]
    np.testing.assert_allclose(value(clients), each, rtol=1e-9, atol=1e-12)
    seeds = value(jax.tree.map(lambda leaf: np.stack([leaf, leaf]), clients))
    np.testing.assert_array_equal(seeds, [value(clients)] * 2)
    assert value(pooled).dtype == seeds.dtype == np.float64


@pytest.mark.parametrize("name", METRICS)
def test_no_samples_have_no_value(name):
    outputs, labels = _samples(np.random.default_rng(0), name, (2, WIDTH))
    sums = _sums(name, np.full_like(outputs, np.nan), labels, np.zeros((2, WIDTH), bool))
    assert np.isnan(value_of(METRICS[name], sums)).all()


@pytest.mark.parametrize("name", METRICS)
def test_statistics_of_half_precision_predictions_are_wider(name):
    outputs, labels = _samples(np.random.default_rng(0), name, (WIDTH,))
    half = outputs.astype(jnp.bfloat16)
    labels = labels.astype(jnp.bfloat16 if name in REGRESSION else np.int32)
    sums = METRICS[name].sums(Predictions(half, labels, half[:, 0], np.ones(WIDTH, bool)))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(sums)} <= {"int32", "float32"}


@pytest.mark.parametrize("name", ["accuracy", "f1"])
def test_counts_are_integers(name):
    outputs, labels = _samples(np.random.default_rng(0), name, (1, WIDTH))
    assert {leaf.dtype.name for leaf in _sums(name, outputs, labels, np.ones((1, WIDTH), bool))} == {"int32"}


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_sample_whose_logits_are_not_finite_has_no_prediction(broken):
    logits, labels = np.array([[5.0, 0, 0], [0, 5.0, 0], [5.0, 0, 0]]), np.array([0, 1, 0])
    logits[2, 1] = broken
    with np.errstate(invalid="ignore"):
        assert _value("accuracy", logits, labels) == pytest.approx(2 / 3)
        assert _value("f1", logits, labels) == pytest.approx((2 / 3 + 1) / 2)
        for name in ("auroc", "ece", "brier", "nll"):
            assert np.isnan(_value(name, logits, labels)), name


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["loss", *REGRESSION])
def test_one_loss_or_error_that_is_not_finite_shows(name, broken):
    outputs, labels = np.ones((1, 4, 1)), np.arange(4.0)[None]
    outputs[0, 2] = broken
    sums = jax.device_get(_program(name)(Predictions(outputs, labels, outputs[..., 0], np.ones((1, 4), bool))))
    assert not np.isfinite(value_of(METRICS[name], sums)).any()


@pytest.mark.parametrize(("scale", "within"), [(0.05, 0.01), (0.1, 0.002), (1, 0.002), (10, 0.002), (40, 0.01)])
@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_auroc_is_close_to_that_of_exact_ranks(scale, within, classes, dtype):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, 2000)
    logits = (scale * (rng.normal(size=(2000, classes)) + np.eye(classes)[labels])).astype(dtype)
    if classes == 2:
        exact = sklearn.metrics.roc_auc_score(labels, logits[:, 1] - logits[:, 0])
    else:
        probabilities = softmax(logits.astype(float), -1)
        exact = sklearn.metrics.roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert _value("auroc", logits, labels) == pytest.approx(exact, abs=within)


@pytest.mark.parametrize(("positive", "spread", "within"), [(0.06, 0.3, 0.005), (0.06, 1, 0.001), (0.2, 0.3, 0.001)])
def test_auroc_of_rare_positives_is_close_to_that_of_exact_ranks(positive, spread, within):
    rng = np.random.default_rng(0)
    labels = (rng.random(4000) < positive).astype(int)
    score = np.log(positive / (1 - positive)) + spread * (rng.normal(size=4000) + labels)
    exact = sklearn.metrics.roc_auc_score(labels, score)
    assert _value("auroc", np.stack([np.zeros(4000), score], -1), labels) == pytest.approx(exact, abs=within)


def test_auroc_has_more_bins_for_fewer_classes():
    assert {classes: count_of_bins(classes) for classes in (2, 3, 5, 10, 62)} == {
        2: 384,
        3: 256,
        5: 152,
        10: 72,
        62: 48,
    }


def test_auroc_is_exact_if_all_scores_are_in_different_bins():
    count = count_of_bins(2)
    place = (np.arange(0, count, 4) + 0.5) / (count / 2) - 1  # the middle of every fourth bin
    score = np.sign(place) * (_linear_exp2(11 * np.abs(place) - 4) - 1 / 16)
    labels = np.random.default_rng(0).integers(0, 2, len(score))
    logits = np.stack([np.zeros(len(score)), np.log(_linear_exp2(score))], -1)
    each = np.asarray(bins(jnp.asarray(logits)))
    assert len(set(each[0])) == len(score)
    assert sorted(each[1]) == list(range(0, count, 4))
    assert _value("auroc", logits, labels) == pytest.approx(sklearn.metrics.roc_auc_score(labels, score), abs=1e-12)


def test_auroc_tells_apart_probabilities_that_round_to_1():
    logits = np.zeros((4, 3), np.float32)
    logits[:, 0] = [20, 30, 40, 60]  # all four are 1 in single precision
    assert _value("auroc", logits, [1, 0, 0, 0]) == 1
    assert 1 - float(jax.nn.softmax(logits[0])[0]) < 1e-8


def test_ece_puts_a_sure_prediction_in_the_last_bin():
    logits = np.array([[200.0, 0], [200.0, 0]])
    assert _value("ece", logits, [0, 1]) == pytest.approx(0.5)


def test_equal_labels_have_no_r2_even_where_their_squares_round():
    labels = np.full((40, 200), 0.1, np.float32)
    sums = _sums("r2", np.zeros((40, 200, 1), np.float32), labels, np.ones((40, 200), bool))
    assert np.isnan(value_of(METRICS["r2"], jax.tree.map(lambda leaf: leaf.sum(0), sums)))


def test_r2_in_single_precision_is_as_accurate_as_documented():
    rng = np.random.default_rng(0)
    for far in (1, 10, 100):
        labels = rng.normal(far, 1, (40, 200)).astype(np.float32)
        outputs = labels + rng.normal(0, 0.5, labels.shape).astype(np.float32)
        sums = _sums("r2", outputs[..., None], labels, np.ones(labels.shape, bool))
        measured = 1 - value_of(METRICS["r2"], jax.tree.map(lambda leaf: leaf.sum(0), sums))
        exact = 1 - sklearn.metrics.r2_score(labels.ravel().astype(float), outputs.ravel().astype(float))
        assert measured == pytest.approx(exact, rel=1e-6 * (1 + far**2))


@pytest.mark.parametrize("name", REGRESSION)
def test_predicted_numbers_may_have_a_trailing_axis(name):
    outputs, labels = _samples(np.random.default_rng(0), name, (WIDTH,))
    mask = np.ones(WIDTH, bool)
    column, flat = (METRICS[name].sums(Predictions(each, labels, labels, mask)) for each in (outputs, outputs[:, 0]))
    assert value_of(METRICS[name], column) == value_of(METRICS[name], flat)


def test_names_and_objects_are_resolved_with_accuracy_and_loss_first():
    custom = METRICS["brier"]._replace(name="custom")
    assert [each.name for each in metrics.resolve("ece, loss,f1")] == ["accuracy", "loss", "ece", "f1"]
    assert metrics.resolve(["f1", custom])[2:] == (METRICS["f1"], custom)
    assert metrics.resolve("") == metrics.resolve([]) == (METRICS["accuracy"], METRICS["loss"])
    assert [each.name for each in metrics.resolve("mae", "regression")] == ["rmse", "loss", "mae"]
    assert [each.name for each in metrics.resolve(None, "binary")] == ["accuracy", "loss", "auroc"]
    assert all(each.name == name for name, each in METRICS.items())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("acuracy", "unknown metric 'acuracy'; did you mean 'accuracy'"),
        ("f1,", "unknown metric ''; choose one of: accuracy, loss, f1, auroc"),
        ([3], "unknown metric 3"),
        ([["f1"]], r"unknown metric \['f1'\]"),
        ("f1,ece,f1", "the metric 'f1' is given 2 times"),
        ("rmse", "rmse is for regression, and this task is classification; choose from: accuracy, loss, f1"),
        ([METRICS["f1"]._replace(name="loss")], "'loss' is already the name of another metric"),
        ([METRICS["f1"]._replace(name="my metric")], "a metric's name must be a plain word"),
    ],
)
def test_metrics_that_cannot_be_resolved_are_refused_in_one_line(given, message):
    with pytest.raises(SettingError, match=message):
        metrics.resolve(given)


def test_a_classification_metric_does_not_fit_regression():
    with pytest.raises(SettingError, match="f1 is for classification, and this task is regression; choose from: loss,"):
        metrics.check_task([METRICS["f1"]], "regression")


@pytest.mark.parametrize("name", ["std", "worst_decile", "client_f1"])
def test_names_that_records_use_are_rejected(name):
    with pytest.raises(SettingError, match="cannot be a metric's name"):
        metrics.get(METRICS["f1"]._replace(name=name))
