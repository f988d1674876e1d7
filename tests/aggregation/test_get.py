"""Aggregation rules by name, with settings in parentheses, as functions that build them, and as rules."""

import jax
import numpy as np
import pytest

from pfedbred import aggregation
from pfedbred.aggregation import RULES, Gathered
from pfedbred.aggregation.krum import krum
from pfedbred.aggregation.trimmed import trimmed
from pfedbred.errors import SettingError

VALUES = np.arange(10.0) ** 2


def result(rule):
    """Of ten numbers with equal weights."""
    return float(jax.jit(rule)(Gathered(VALUES, np.full(10, 0.1), np.ones(10, bool), None, jax.random.key(0))))


def trimmed_mean(outliers):
    f = int(10 * outliers + 1e-9)
    return pytest.approx(VALUES[f : 10 - f].mean())


@pytest.mark.parametrize("name", RULES)
def test_every_rule_of_equal_uploads_is_that_upload(name):
    same = Gathered(np.full(10, 3.0), np.full(10, 0.1), np.ones(10, bool), np.float64(1.0), jax.random.key(0))
    assert float(aggregation.get(name)(same)) == pytest.approx(3.0)


def test_the_mean_is_the_weighted_one():
    assert aggregation.get("mean") is aggregation.weighted_mean


def test_settings_in_parentheses_come_before_the_defaults_given():
    assert result(aggregation.get("trimmed")) == trimmed_mean(0.2)
    assert result(aggregation.get("trimmed", outliers=0.4)) == trimmed_mean(0.4)
    assert result(aggregation.get("trimmed(0.3)", outliers=0.4)) == trimmed_mean(0.3)
    assert result(aggregation.get(" trimmed ( 0.3 ) ")) == trimmed_mean(0.3)
    assert result(aggregation.get("median", outliers=0.4)) == np.median(VALUES)  # has no such setting


def test_a_rule_is_returned_as_it_is():
    def first(gathered):
        return gathered.uploads[0]

    built = trimmed(outliers=0.1)
    assert aggregation.get(first) is first
    assert aggregation.get(built, outliers=0.4) is built


def test_a_function_that_builds_a_rule_is_called_with_the_settings_it_has():
    def scaled(*, factor=2.0):
        return lambda gathered: factor * gathered.uploads[1]

    assert result(aggregation.get(scaled)) == 2.0
    assert result(aggregation.get(scaled, factor=3.0, outliers=0.4)) == 3.0
    assert result(aggregation.get(trimmed, outliers=0.4)) == trimmed_mean(0.4)
    assert result(aggregation.get(lambda: krum(outliers=0.0))) == pytest.approx(VALUES.mean())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("meadian", "unknown aggregation rule 'meadian'; did you mean 'median'"),
        ("", "aggregate must be a name, or a name with values"),
        ("trimmed(", "aggregate must be a name, or a name with values"),
        ("trimmed(0.5)", "trimmed's outliers must be a number >= 0 and below 0.5, not '?0.5"),
        ("trimmed(much)", "trimmed's outliers must be a number"),
        ("trimmed(0.1, 0.2)", r"trimmed\(0.1, 0.2\): trimmed takes outliers"),
        ("median(0.1)", r"median\(0.1\): median takes no values"),
        (3, "aggregate must be the name of a rule or a function, not 3; choose one of: mean, median"),
        (None, "aggregate must be the name of a rule or a function, not None"),
    ],
)
def test_what_is_no_rule_is_rejected_in_one_line(given, message):
    with pytest.raises(SettingError, match=message) as raised:
        aggregation.get(given)
    assert "\n" not in str(raised.value)
