"""Every setting of every method is described, and advice is about settings that exist."""

import pytest
from conftest import command_line

from pfedbred import algorithms, settings
from pfedbred.algorithms.guidance import GUIDANCE, guidance
from pfedbred.algorithms.wrappers import WRAPPERS

FUNCTIONS = {**algorithms.ALGORITHMS, **WRAPPERS}


def test_every_setting_is_described():
    missing = {
        f"{name}: {key}"
        for name, each in FUNCTIONS.items()
        for key, text in settings.described(each).items()
        if not text
    }
    assert not missing


def test_a_description_goes_on_over_lines_and_loses_its_markup():
    def method(task, *, lam=1.0, other=2):
        """What it does.

        Args:
          task: unused.
          lam: the strength, see
            :mod:`pfedbred.algorithms.strength` and :func:`~a.b.c`.

        References: none.
        """

    assert settings.described(method) == {"lam": "the strength, see pfedbred.algorithms.strength and c.", "other": ""}


def test_settings_that_are_passed_on_are_described_where_they_are_used():
    own, base = (settings.described(algorithms.ALGORITHMS[name]) for name in ("mg-meta", "pfedbred"))
    assert own["alpha_m"] == base["alpha_m"] == "step size of the main problem."


def test_advice_is_about_settings_that_exist():
    known = {(name, key) for name, each in FUNCTIONS.items() for key in settings.declared(each)}
    for entry in GUIDANCE:
        method, dot, key = entry.rpartition(".")
        assert (method, key) in known if dot else key in {key for _, key in known}, entry
    assert guidance("ditto", "lam") != guidance("pfedme", "lam")
    assert guidance("mg-meta", "prior") == ""


@pytest.mark.parametrize("name", ["mg-meta+am", "fedavg+server(yogi)"])
def test_settings_of_a_wrapped_method_are_described(name):
    build = algorithms.builder(name)
    assert list(settings.described(build)) == list(settings.declared(build))
    assert all(settings.described(build).values())


@pytest.mark.parametrize("name", ["mg-meta", "ditto+ft", "fedadam+am"])
def test_the_command_describes_a_method(name, capsys, monkeypatch):
    code, out, _ = command_line("list", name, capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0
    for key, parameter in settings.declared(algorithms.builder(name)).items():
        assert f"  {key} = {parameter.default}\n" in out
    assert "References" not in out
    assert "Args" not in out


def test_an_unknown_method_is_one_line(capsys, monkeypatch):
    code, _, problem = command_line("list", "mg-mta", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, problem) == (2, "pfedbred: cannot list 'mg-mta'; did you mean 'mg-meta'?\n")


def test_a_method_of_ones_own_is_described(capsys, monkeypatch):
    code, out, _ = command_line("list", "support.custom:choosy", capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0
    assert out == (
        "support.custom:choosy: The value of alpha decides how the program is built, and its type does not say so.\n\n"
        "settings, as in --set alpha=0.05:\n  alpha = 0.01\n      [a number > 0]\n"
    )
    code, _, problem = command_line("list", "support.custom:built", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, "is an Algorithm object, which is built" in problem, problem.count("\n")) == (2, True, 1)
