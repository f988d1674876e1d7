"""Settings are what a function's signature declares."""

import pytest

from pfedbred.errors import SettingError
from pfedbred.settings.assignments import assignment
from pfedbred.settings.signatures import (
    build_part,
    declared,
    is_whole_number,
    parameters,
    parse_call,
    resolve,
    resolve_call,
    same_settings,
)
from pfedbred.settings.values import Count, Positive


def base(task, *, lam: Positive = 15.0, R: Count = 20):
    return task, lam, R


@same_settings(base, without=("lam",))
def fixed(task, **settings):
    return base(task, lam=1.0, **settings)


@same_settings(base, without=())
def longer(task, *, R: Count = 40, **settings):
    return base(task, R=R, **settings)


def needs(task, *, alpha: Positive):
    return task, alpha


def test_declared_settings_and_those_of_a_function_that_passes_them_on():
    assert list(declared(base)) == ["lam", "R"]
    assert list(declared(fixed)) == ["R"]
    assert resolve(longer, {}) == {"lam": 15.0, "R": 40}  # its own default, in the base's place
    assert longer("task") == ("task", 15.0, 40)
    assert longer("task", **resolve(longer, {"R": 3})) == ("task", 15.0, 3)
    assert [is_whole_number(each.annotation) for each in declared(base).values()] == [False, True]
    assert is_whole_number(Count | None)


def test_settings_are_checked_and_filled_in():
    assert resolve(base, {"lam": "3"}) == {"lam": 3.0, "R": 20}
    assert fixed("task", **resolve(fixed, {"R": 2.0})) == ("task", 1.0, 2)
    for function, given, words in (
        (base, {"lamb": 1}, "unknown setting 'lamb'; did you mean 'lam'"),
        (base, {"R": 0}, "R must be a whole number >= 1"),
        (fixed, {"lam": 1}, "unknown setting 'lam'"),
        (needs, {}, "the setting 'alpha' has no default"),
    ):
        with pytest.raises(SettingError, match=words):
            resolve(function, given)


def test_values_in_parentheses():
    assert parse_call("split", " dirichlet( 0.5, 3 ) ") == ("dirichlet", ["0.5", "3"])
    assert parse_call("split", "iid") == parse_call("split", "iid()") == ("iid", [])
    assert resolve_call("base", base, ["2"]) == {"lam": 2.0, "R": 20}
    assert resolve_call("base", base, ["2"], without=["lam"]) == {"R": 2}
    with pytest.raises(SettingError, match="split must be a name, or a name with values"):
        parse_call("split", "dirichlet(0.5")
    with pytest.raises(SettingError, match=r"base\(1, 2, 3\): base takes lam, R"):
        resolve_call("base", base, ["1", "2", "3"])
    with pytest.raises(SettingError, match="base's lam must be a number > 0, not '-1'"):
        resolve_call("base", base, ["-1"])


def test_a_function_is_called_with_the_settings_it_takes():
    available = {"eta_a": 1.0, "eta": 2.0}
    assert build_part("mean", lambda eta: eta, available) == 2.0
    assert build_part("mean", lambda: 3.0, available) == 3.0
    assert build_part("mean", lambda eta_a, own=4.0: (eta_a, own), available) == (1.0, 4.0)
    with pytest.raises(SettingError, match=r"a function given as mean may take eta_a and eta: missing.*'gamma'"):
        build_part("mean", lambda gamma: gamma, available)
    with pytest.raises(SettingError, match=r"a function given as metric takes no arguments: missing.*'k'"):
        build_part("metric", lambda k: k, {})
    with pytest.raises(SettingError, match="cannot be used here: wrap it in a function"):
        parameters(max)


def test_assignments():
    assert assignment("lam = 1e-3") == ("lam", 0.001)
    assert assignment("select=[0, 1]") == ("select", [0, 1])
    assert assignment("prior=poisson") == ("prior", "poisson")
    for text in ("lam", "=3", "lam="):
        with pytest.raises(SettingError, match="a setting is given as NAME=VALUE"):
            assignment(text)
