"""The fair comparison: ranks by hand, what the page says, and a small one from trials to the picture."""

import json

import numpy as np
import pytest

import pfedbred
from pfedbred import paper
from pfedbred.engine import metrics
from pfedbred.errors import SettingError
from pfedbred.experiment.space import Range
from pfedbred.paper import eta, fair, fair_report
from pfedbred.paper.columns import Federations
from pfedbred.paper.fair import Arena, Contender
from pfedbred.paper.records import Request
from pfedbred.runs.statistics import estimate


def test_ranks_and_their_critical_difference_by_hand():
    """Three methods on four data sets, with a tie; q for three methods at 5 % is 2.343 (Demsar 2006, Table 5)."""
    values = {
        "one": {"a": 0.9, "b": 0.8, "c": 0.7},
        "two": {"a": 0.5, "b": 0.6, "c": 0.4},
        "three": {"a": 0.3, "b": 0.3, "c": 0.1},
        "four": {"a": 0.9, "b": 0.2, "c": 0.95},
        "incomplete": {"a": 0.9},
    }
    found = fair_report.ranks(values)
    assert found.names == ["a", "b", "c"]
    np.testing.assert_allclose(found.average, [(1 + 2 + 1.5 + 2) / 4, (2 + 1 + 1.5 + 3) / 4, (3 + 3 + 3 + 1) / 4])
    assert found.critical == pytest.approx(2.343 * np.sqrt(3 * 4 / (6 * 4)), abs=2e-3)
    assert found.sets == 4
    assert fair_report.ranks({"one": values["one"]}) is None


def test_groups_are_those_that_cannot_be_told_apart():
    assert fair_report._groups(np.array([1.0, 1.8, 2.5, 4.0]), 1.0) == [(0, 1), (1, 2)]
    assert fair_report._groups(np.array([1.0, 3.0]), 1.0) == []


def test_a_prepared_federation_is_used_where_it_exists(tmp_path, monkeypatch):
    """So that a machine without the packages that split data can run the comparison."""
    options = {"split": "iid", "clients": 3}
    monkeypatch.setitem(fair.ARENAS, "small", Arena("small", "digits", "mclr", 2, options=options))
    wanted = pfedbred.load("digits", seed=1, **options)
    pfedbred.data.prepared.save(wanted, tmp_path / "fair-small-split1.fed")
    request = Request(tmp_path, Federations(None, tmp_path))
    loaded = fair._load("small", 1, request)
    np.testing.assert_array_equal(loaded.train.y, wanted.train.y)
    monkeypatch.setattr(fair.data, "load", lambda name, **options: name)
    assert fair._load("small", 1, request) == str(tmp_path / "fair-small-split1.fed")
    assert fair._load("small", 2, request) == "digits"


def record(P, **more):
    values = {"P": P, "G": P, "worst": P, "loss": [0.5, 0.5], "coverage": [0.9, 0.92], "size": [1.2, 1.2]}
    return {**values, "nll": None, "new": None, **more}


def test_the_best_is_bold_and_what_cannot_be_told_apart_is_marked(tmp_path):
    arena = Arena("data", "digits", "mclr", 2)
    records = {
        "good": {0: record([0.90, 0.91]), 1: record([0.92, 0.93]), 2: record([0.91, 0.92])},
        "near": {0: record([0.89, 0.92]), 1: record([0.93, 0.92]), 2: record([0.90, 0.91])},
        "bad": {0: record([0.50, 0.51]), 1: record([0.52, 0.53]), 2: record([0.51, 0.52])},
        "lost": {split: record([None, 0.9]) for split in range(3)},
    }
    said = []
    fair_report.write_report(tmp_path, {"data": (arena, records)}, 3, said.append)
    rows = [line for line in (tmp_path / "fair.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert [row.split("|")[1].strip() for row in rows] == ["good", "near", "bad", "lost"]
    assert "**91.50 ± " in rows[0]
    assert "≈" in rows[1]
    assert "-40.00 ± 0.00 |" in rows[2]
    assert "≈" not in rows[2]
    assert rows[3].split("|")[2].strip() == "-"
    assert not (tmp_path / "fair.png").exists()  # one data set has no ranks
    assert set(json.loads((tmp_path / "fair.json").read_text())["data"]) == {"good", "near", "bad", "lost"}


def test_lower_errors_are_better(tmp_path):
    arena = Arena("numbers", "school", "mclr", 2, "rmse")
    records = {"far": {0: record([3.0, 3.0])}, "close": {0: record([2.0, 2.0])}}
    fair_report.write_report(tmp_path, {"numbers": (arena, records)}, 1, lambda text: None)
    text = (tmp_path / "fair.md").read_text()
    assert text.index("| close | **2.000") < text.index("| far | 3.000")


def test_an_incomplete_data_set_has_no_best_method_and_no_rank(tmp_path):
    """However far it is from complete: one method without one of its splits, or without any."""
    arena = Arena("data", "digits", "mclr", 2)
    both = {split: record([0.9, 0.91]) for split in range(2)}
    whole = {"one": both, "two": both}
    found = dict.fromkeys(("a", "b", "c"), (arena, whole))
    for records in ({"one": both, "two": {1: record([0.8, 0.8])}}, {"one": both, "two": {}}):
        fair_report.write_report(tmp_path, found | {"d": (arena, records)}, 2, lambda text: None)
        text = (tmp_path / "fair.md").read_text()
        assert "Over 3 data sets." in text
        last = text.split("## data")[4].split("## Average ranks")[0]
        gone = 2 - len(records["two"])
        assert f"Incomplete: {4 - gone} of 4 records" in last
        assert f"Splits that are missing: two ({gone})." in last
        assert "**" not in last
        assert "Incomplete" not in text.split("## data")[1]


def test_nothing_recorded_is_one_clear_line(tmp_path):
    with pytest.raises(SettingError, match="has no records of the fair comparison"):
        paper.ARTIFACTS["fair"].make(paper.Request(tmp_path, paper.Federations(), run=False))


def test_every_arena_and_contender_can_be_asked_for():
    for arena in fair.ARENAS.values():
        assert arena.metric in metrics.METRICS
    for contender in fair.CONTENDERS.values():
        assert all(each.low < each.high for each in contender.space.values() if isinstance(each, Range))


@pytest.mark.full
def test_a_small_comparison_from_trials_to_the_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(fair, "_TRIALS", 2)
    monkeypatch.setattr(fair, "SPLITS", (0, 1))
    small = {"split": "dirichlet(0.5)", "clients": 4}
    arenas = {name: Arena(name, "digits", "mclr", 3, options=small) for name in ("one", "two", "three")}
    monkeypatch.setattr(fair, "ARENAS", arenas)
    step = Range(0.01, 0.1, log=True)
    contenders = {"local": Contender("local", {"alpha": step}), "mr-mtl": Contender("mr-mtl", {"alpha": step})}
    monkeypatch.setattr(fair, "CONTENDERS", contenders)
    said = []
    request = paper.Request(tmp_path, paper.Federations(), seeds=2, say=said.append)
    fair.run_fair(request)
    assert (tmp_path / "fair.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((tmp_path / "cells" / "fair" / "two" / "mr-mtl-1.json").read_text())
    assert 0.01 <= kept["settings"]["alpha"] <= 0.1
    assert len(kept["P"]) == len(kept["coverage"]) == len(kept["chosen_round"]) == 2
    assert len(kept["trial_scores"]) == 2
    monkeypatch.setattr(fair, "sweep", None)  # nothing is run again
    fair.run_fair(request)
    assert sum("already done" in line for line in said) == 12


@pytest.mark.full
def test_the_memorys_weight_is_compared_with_the_printed_one(tmp_path, monkeypatch):
    monkeypatch.setattr(fair, "_TRIALS", 2)
    arena = Arena("data", "digits", "mclr", 2, options={"split": "dirichlet(0.5)", "clients": 4})
    for module in (fair, eta):
        monkeypatch.setattr(module, "ARENAS", {"data": arena})
        monkeypatch.setattr(module, "SPLITS", (0, 1))
    said = []
    eta.run_eta(paper.Request(tmp_path, paper.Federations(), seeds=2, columns=["data"], say=said.append))
    kept = {
        row: json.loads((tmp_path / "cells" / table / "data" / f"{name}-0.json").read_text())
        for row, (table, name, _) in eta.ROWS.items()
    }
    assert "eta" not in kept["0.05"]["settings"]
    assert kept["off"]["settings"]["eta"] == 0
    assert 0.005 <= kept["chosen"]["settings"]["eta"] <= 1
    rows = [line.split("|") for line in (tmp_path / "eta.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert [row[1].strip() for row in rows] == ["0.05", "off", "chosen"]
    assert f"{kept['chosen']['settings']['eta']:.3g}, " in rows[2][6]
    two = json.loads((tmp_path / "eta.json").read_text())["data"]
    less = np.mean([np.subtract(two["off"][s]["P"], two["0.05"][s]["P"]) for s in "01"])
    assert float(rows[1][3].split("±")[0]) == pytest.approx(100 * less, abs=0.006)


def test_a_mean_of_models_that_diverged_is_short():
    assert fair_report.shown(estimate([5.6e7, 5.8e7]), 1, interval=False) == "5.7e+07"
    assert fair_report.shown(estimate([2.94, 2.96]), 1, interval=False) == "2.950"
    assert fair_report.shown(estimate([0.5, 0.75]), 100, interval=False) == "62.50"
