"""Temperatures against known scales and a grid, thresholds against counting, coverage against binomial limits."""

import math

import jax
import numpy as np
import pytest
import scipy.stats

from pfedbred.engine import calibration
from pfedbred.engine.metrics import METRICS, Predictions
from pfedbred.engine.reliability import measure

RNG = np.random.default_rng(0)


def drawn(count, labels=4, scale=2.0, rng=RNG):
    """Logits, and labels drawn from their very softmax: perfectly calibrated."""
    logits = scale * rng.normal(size=(count, labels))
    return logits, (logits + rng.gumbel(size=logits.shape)).argmax(-1)


def likelihood(logits, labels, temperature):
    scaled = logits / temperature
    return float(np.mean(scipy.special.logsumexp(scaled, -1) - scaled[np.arange(len(labels)), labels]))


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_the_temperature_undoes_a_scale(scale):
    """Logits of calibrated probabilities times a number: the temperature is that number, but for chance."""
    logits, labels = drawn(40_000)
    as_they_are = calibration.fitted_temperature(logits, labels)
    assert as_they_are == pytest.approx(1, abs=0.03)
    assert calibration.fitted_temperature(scale * logits, labels) == pytest.approx(scale * as_they_are, rel=1e-8)


@pytest.mark.parametrize("labels", [2, 5])
def test_no_other_temperature_is_more_likely(labels):
    logits, y = drawn(60, labels)
    logits = 3 * logits + RNG.normal(size=logits.shape)
    found = calibration.fitted_temperature(logits, y)
    grid = np.exp(np.linspace(math.log(calibration.COLDEST), math.log(calibration.HOTTEST), 2_001))
    best = min(grid, key=lambda each: likelihood(logits, y, each))
    assert found == pytest.approx(best, rel=0.004)
    assert likelihood(logits, y, found) <= likelihood(logits, y, best)


def test_temperatures_stay_within_their_limits():
    """Labels that can all be told have no best temperature, nor have logits that say the opposite or nothing."""
    logits, _ = drawn(50)
    best, worst = logits.argmax(-1), logits.argmin(-1)
    assert calibration.fitted_temperature(logits, best) == calibration.COLDEST
    assert calibration.fitted_temperature(100 * logits, best) == calibration.COLDEST
    assert calibration.fitted_temperature(1e12 * logits, best) == 1  # every probability is 0 or 1 at any of them
    assert calibration.fitted_temperature(logits, worst) == calibration.HOTTEST
    assert calibration.fitted_temperature(np.zeros((5, 3)), np.zeros(5, int)) == 1
    assert calibration.fitted_temperature(np.zeros((0, 3)), np.zeros(0, int)) == 1


def test_samples_without_finite_logits_do_not_count():
    logits, labels = drawn(60)
    broken = np.concatenate([logits, [[np.nan, 0, 0, 0], [np.inf, 0, 0, 0]]])
    found = calibration.fitted_temperature(broken, np.append(labels, [0, 1]))
    assert found == calibration.fitted_temperature(logits, labels)


@pytest.mark.parametrize(("level", "least", "own"), [(0.9, 9, 19), (0.95, 19, 39), (0.8, 4, 9), (0.99, 99, 199)])
def test_numbers_of_samples(level, least, own):
    """By trying: the first number of samples with a threshold, and the first at most half of 1 - level above it."""
    assert calibration.least_samples(level) == least
    assert calibration.own_samples(level) == own
    for count in range(1, 2 * own):
        finite = math.isfinite(calibration.conformal_threshold(np.arange(count), level))
        assert finite == (count >= least)
    assert 1 / (own + 1) <= (1 - level) / 2 + 1e-12 < 1 / own


def test_the_threshold_is_the_smallest_with_enough_scores_below():
    scores = RNG.normal(size=37)
    for level in (0.5, 0.8, 0.9):
        enough = [each for each in scores if np.sum(scores <= each) >= (len(scores) + 1) * level - 1e-9]
        assert calibration.conformal_threshold(scores, level) == min(enough)
    assert calibration.conformal_threshold(np.arange(1, 10.0), 0.9) == 9  # ten times 0.9 is nine
    assert calibration.conformal_threshold(np.append(np.arange(18.0), [np.nan] * 2), 0.9) == np.inf


@pytest.mark.parametrize("count", [9, 19, 50])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_new_samples_are_covered_as_often_as_promised(kind, count):
    """Over many draws of validation samples and one new one: ceil((n + 1) level) / (n + 1), within binomial limits."""
    draws, level, rng = 4_000, 0.9, np.random.default_rng(count)
    if kind == "classes":
        logits, labels = drawn(draws * (count + 1), rng=rng)
        scores = calibration.conformal_scores(logits, labels)
    else:
        labels = rng.standard_cauchy(draws * (count + 1))
        scores = calibration.conformal_scores(np.zeros_like(labels), labels)
    covered = sum(
        each[-1] <= calibration.conformal_threshold(each[:-1], level) for each in scores.reshape(draws, count + 1)
    )
    expected = math.ceil(round((count + 1) * level, 9)) / (count + 1)
    low, high = scipy.stats.binom.interval(0.9999, draws, expected)
    assert level <= expected < level + 1 / (count + 1)
    assert low <= covered <= high


def test_a_label_is_in_the_set_if_its_score_is_allowed():
    likely = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    np.testing.assert_allclose(calibration.conformal_scores(np.log(likely), np.array([1, 2])), [0.7, 0.3])
    np.testing.assert_allclose(calibration.conformal_scores(np.array([1.0, 5.0]), np.array([3.0, 4.5])), [2.0, 0.5])
    logits, _ = drawn(50)
    for label in range(4):
        scores = calibration.conformal_scores(logits, np.full(50, label))
        allowed = (scores <= 0.8) | (logits.argmax(-1) == label)
        np.testing.assert_array_equal(calibration.label_sets(logits, 0.8)[:, label], allowed)


def test_a_set_has_the_likely_labels_and_is_never_empty():
    logits = np.log([[0.5, 0.3, 0.2], [0.98, 0.01, 0.01], [0.4, 0.4, 0.2]])
    sets = calibration.label_sets(logits, 0.71)
    assert sets.tolist() == [[True, True, False], [True, False, False], [True, True, False]]
    assert calibration.label_sets(logits, 0.01).tolist() == [
        [True, False, False],
        [True, False, False],
        [True, True, False],
    ]
    assert calibration.label_sets(logits, np.array([1.0, 0.0, 0.0])).sum(-1).tolist() == [3, 1, 2]
    assert not calibration.label_sets(np.array([[np.nan, 1.0]]), 1.0).any()


def test_clients_with_few_samples_have_the_pooled_calibration():
    """19 samples are enough at 90 %, 18 are not; a temperature at its limit is the pooled one too."""
    sizes = np.array([19, 18, 0, 40, 30])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    logits, labels = drawn(sizes.sum())
    easy = slice(offsets[3], offsets[4])
    labels[easy] = logits[easy].argmax(-1)
    found = calibration.calibrate(logits, labels, offsets, 0.9)
    scores = calibration.conformal_scores(logits, labels)
    pooled = calibration.fitted_temperature(logits, labels), calibration.conformal_threshold(scores, 0.9)
    for i in range(5):
        rows = slice(offsets[i], offsets[i + 1])
        own = sizes[i] >= 19
        assert found.threshold[i] == (calibration.conformal_threshold(scores[rows], 0.9) if own else pooled[1])
        alone = own and i != 3
        assert found.temperature[i] == (
            calibration.fitted_temperature(logits[rows], labels[rows]) if alone else pooled[0]
        )
    assert (found.temperature[-1], found.threshold[-1]) == pooled
    assert len(set(found.temperature.tolist())) == 3  # else this test could not fail
    assert np.isnan(calibration.calibrate(logits[:, 0], logits[:, 1], offsets, 0.9).temperature).all()


def test_figures_by_client_are_those_of_the_metrics():
    sizes = np.array([30, 0, 25])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    logits, labels = drawn(sizes.sum())
    fitted = calibration.Calibration(np.array([0.5, 1.0, 3.0, 1.0]), np.array([0.2, 0.5, 0.9, 0.5]))
    found = measure(logits, labels, offsets, fitted)
    for i in (0, 2):
        rows = slice(offsets[i], offsets[i + 1])
        for suffix, temperature in (("_before", 1.0), ("", fitted.temperature[i])):
            given = Predictions(logits[rows] / temperature, labels[rows], np.zeros(sizes[i]), np.ones(sizes[i], bool))
            for name in ("nll", "brier", "ece"):
                metric = METRICS[name]
                sums = jax.device_get((metric.condense or (lambda each: each))(metric.sums(given)))
                assert found.figures[name + suffix][i] == pytest.approx(float(metric.value(sums)), rel=1e-9)
        sets = calibration.label_sets(logits[rows], fitted.threshold[i])
        held = [row[label] for row, label in zip(sets, labels[rows], strict=True)]
        assert found.figures["coverage"][i] == pytest.approx(np.mean(held))
        assert found.figures["size"][i] == pytest.approx(sets.sum() / sizes[i])
    assert all(np.isnan(values[1]) for values in found.figures.values())
    for bins in (found.before, found.after):
        assert bins.samples.sum() == sizes.sum()
        assert bins.correct.sum() == np.sum(logits.argmax(-1) == labels)
    assert found.before.confidence.sum() != found.after.confidence.sum()


def test_bins_are_of_confidence():
    """Bin b holds confidences in ((b - 1) / 15, b / 15]."""
    likely = np.array([[0.5, 0.4, 0.1], [0.99, 0.005, 0.005], [0.45, 0.35, 0.2], [0.1, 0.55, 0.35]])
    fitted = calibration.Calibration(np.array([1.0, 1.0]), np.array([0.5, 0.5]))
    bins = measure(np.log(likely), np.array([0, 1, 0, 1]), np.array([0, 4]), fitted).before
    assert {i: count for i, count in enumerate(bins.samples.tolist(), 1) if count} == {7: 1, 8: 1, 9: 1, 15: 1}
    assert bins.correct.tolist() == [1.0 if i in (7, 8, 9) else 0.0 for i in range(1, 16)]
    np.testing.assert_allclose(bins.confidence[[6, 7, 8, 14]], [0.45, 0.5, 0.55, 0.99])


def test_intervals_by_client_are_counted():
    fitted = calibration.Calibration(np.full(3, np.nan), np.array([1.0, 0.5, 0.7]))
    outputs, labels = np.zeros(5), np.array([0.9, -1.0, 1.1, 0.6, -0.5])
    found = measure(outputs, labels, np.array([0, 3, 5]), fitted).figures
    np.testing.assert_allclose(found["coverage"], [2 / 3, 1 / 2])
    np.testing.assert_allclose(found["width"], [2.0, 1.0])


def test_predictions_that_are_not_finite_cover_nothing_and_show():
    fitted = calibration.Calibration(np.ones(2), np.ones(2))
    found = measure(np.array([[np.nan, 1.0], [2.0, 0.0]]), np.array([0, 0]), np.array([0, 2]), fitted).figures
    assert found["coverage"][0] == 0.5
    assert all(np.isnan(found[name][0]) for name in ("nll", "brier", "ece", "nll_before", "ece_before"))
