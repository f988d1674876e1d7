"""Intervals and paired differences, against closed forms and numerical integration."""

import math

import numpy as np
import pytest

from pfedbred.runs.statistics import Estimate, estimate, half_width, paired_difference, t_quantile


def student_density(x, freedom):
    constant = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    return constant * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)


@pytest.mark.parametrize("freedom", [1, 2, 4, 9, 30])
def test_t_holds_95_percent_of_students_distribution(freedom):
    """By Gauss-Legendre quadrature of the density from 0 to t."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    t = t_quantile(freedom)
    mass = t / 2 * np.sum(weights * student_density(t / 2 * (nodes + 1), freedom))
    assert 2 * mass == pytest.approx(0.95, abs=1e-9)


def test_t_in_closed_form():
    """One degree of freedom is Cauchy's distribution; for two, F(t) = 1/2 + t / (2 sqrt(2 + t^2))."""
    assert t_quantile(1) == pytest.approx(math.tan(0.475 * math.pi))
    assert t_quantile(2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)))


def test_an_interval_by_hand():
    """1, 2, 3, 4, 5: mean 3, standard deviation sqrt(10 / 4), and t(4) = 2.776 in every table."""
    found = estimate(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert found.mean == 3
    assert found.half_width == pytest.approx(2.776 * math.sqrt(2.5) / math.sqrt(5), rel=3e-4)
    assert found.half_width == pytest.approx(half_width(math.sqrt(2.5), 5))


def test_a_single_run_has_no_interval_and_a_diverged_one_no_mean():
    assert estimate(np.array([0.5])) == Estimate(0.5, None)
    assert estimate(np.array([0.5])).excludes_zero is None
    assert estimate(np.array([0.5, np.nan])) == Estimate(None, None)
    assert estimate(np.array([])) == Estimate(None, None)


def test_pairs_cancel_what_both_share():
    """Seeds differ by whole units, the methods by 0.1, 0.2 and 0.3: t(2) = 4.303, s = 0.1."""
    one, other = np.array([1.1, 5.2, 9.3]), np.array([1.0, 5.0, 9.0])
    found = paired_difference(one, other)
    assert found.mean == pytest.approx(0.2)
    assert found.half_width == pytest.approx(4.303 * 0.1 / math.sqrt(3), rel=1e-3)
    assert found.excludes_zero is False  # 0.2 ± 0.25
    assert paired_difference(one + 0.1, other).excludes_zero
    assert paired_difference(one, one).excludes_zero is False


def test_seeds_of_one_split_are_not_independent():
    """Two seeds on each of three splits: the three means count, with two degrees of freedom."""
    values = np.array([[1.0, 3.0], [2.0, 2.0], [4.0, 8.0]])
    found = estimate(values)
    assert found.mean == pytest.approx(10 / 3)
    means = [2.0, 2.0, 6.0]  # their standard deviation is sqrt(16 / 3)
    assert found.half_width == pytest.approx(t_quantile(2) * math.sqrt(16 / 3) / math.sqrt(3))
    assert found == estimate(np.array([means]))
    assert estimate(values[:1]) == estimate(values[0])


@pytest.mark.full
def test_intervals_cover_the_truth_as_often_as_they_say():
    """Splits shift all of their seeds: 95 % of the intervals hold the mean, within four standard errors."""
    rng = np.random.default_rng(0)
    hits, trials = 0, 4000
    for _ in range(trials):
        values = 1 + rng.normal(size=(5, 1)) + 0.3 * rng.normal(size=(5, 4))
        found = estimate(values)
        hits += abs(found.mean - 1) <= found.half_width
    assert hits / trials == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / trials))
