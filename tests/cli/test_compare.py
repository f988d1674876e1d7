"""``pfedbred compare`` with validation samples, a baseline and several splits."""

import json
import re

import numpy as np
import pytest
import yaml

from pfedbred.algorithms import ALGORITHMS
from pfedbred.cli import run
from pfedbred.experiment import configuration
from pfedbred.experiment.callbacks import trackers

SMALL = ("--clients", "8", "--rounds", "3", "--set", "R=1", "--aggregated", "3")
OWN = "support.custom:local_sgd"


def figures(folder):
    return json.loads((folder / "comparison.json").read_text())


@pytest.mark.full
def test_several_splits_are_compared_pair_by_pair_and_resumed(call, tmp_path):
    line = ("compare", "--algorithms", "fedavg,pfedme", "--split-seeds", "2", "--validation", "0.2", *SMALL)
    code, out, err = call(*line, "--baseline", "fedavg", "--out", "here")
    assert code == 0, err
    compared = figures(tmp_path / "here")
    assert (compared["splits"], compared["baseline"]) == ([0, 1], "fedavg")
    summaries = {
        (split, name): json.loads((tmp_path / "here" / f"split-{split}" / name / "summary.json").read_text())
        for split in (0, 1)
        for name in ("fedavg", "pfedme")
    }
    assert [summaries[split, "fedavg"]["experiment"]["split_seed"] for split in (0, 1)] == [0, 1]
    by_hand = [
        summaries[split, "pfedme"]["personal"]["chosen_accuracy"]["mean"]
        - summaries[split, "fedavg"]["personal"]["chosen_accuracy"]["mean"]
        for split in (0, 1)
    ]
    found = compared["methods"][1]["personal"]["accuracy"]["chosen"]["difference"]
    assert found["mean"] == pytest.approx(np.mean(by_hand))
    assert found["half_width"] == pytest.approx(12.7062 * np.std(by_hand, ddof=1) / np.sqrt(2), rel=1e-5)
    assert "paired differences to fedavg over 2 splits" in out
    assert (tmp_path / "here" / "curves.png").stat().st_size > 10_000

    again = call("compare", "--resume", "--out", "here")
    assert again[0] == 0, again[2]
    assert again[1].count("already finished") == 4
    assert figures(tmp_path / "here")["baseline"] is None
    code, _, err = call("compare", "--resume", "--out", "here", "--split-seeds", "3")
    assert (code, err) == (2, "pfedbred: here was run with other settings: split_seeds 2, now 3\n")
    assert call("report", "here")[0] == 0
    code, _, err = call("export", "here")
    assert code == 2
    assert "here is a comparison, choose one of the runs in it" in err
    code, out, err = call("compare", "--algorithms", "local", *SMALL, "--out", "here", "--overwrite")
    assert code == 0, err
    assert sorted(each.name for each in (tmp_path / "here").iterdir()) == [
        *("comparison.json", "config.yaml", "curves.png", "local", "table.json")
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--baseline", "fedprox"), "the baseline 'fedprox' is not compared; choose one of: fedavg, pfedme, mg-meta"),
        (("--dataset", "small.fed", "--split-seeds", "2"), "small.fed is already split: split_seed cannot be changed"),
        (("--algorithms", "fedavg,no_such:one"), "algorithm: cannot import no_such:one: No module named 'no_such'"),
        (("--algorithms", f"{OWN},{OWN}"), "an algorithm is named twice"),
        (("--validation", "2"), "validation must be a number from 0 to 1, not '2'"),
    ],
)
def test_what_cannot_be_compared_is_one_line(call, prepared, tmp_path, options, words):
    (tmp_path / "small.fed").write_bytes(prepared[1].read_bytes())
    code, _, err = call("compare", *options, "--rounds", "1")
    assert code == 2
    assert err.startswith("pfedbred: ")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.full
def test_a_comparison_of_a_method_with_settings_is_reported(call, tmp_path):
    name = "fedavg+server(yogi)"
    assert call("compare", "--algorithms", f"fedavg,{name}", *SMALL, "--out", "here")[0] == 0
    assert (tmp_path / "here" / name).is_dir()
    code, _, err = call("report", "here")
    assert (code, err) == (0, "")
    assert name in (tmp_path / "here" / "report.html").read_text()


def test_a_method_of_ones_own_is_compared_reported_resumed_and_replaced(call, tmp_path):
    line = ("compare", "--algorithms", f"fedavg,{OWN}", *SMALL, "--baseline", OWN, "--seeds", "2", "--out", "here")
    code, out, err = call(*line)
    assert code == 0, err
    assert (tmp_path / "here" / "support.custom-local_sgd" / "summary.json").exists()
    assert f"| {OWN} | G" in out
    assert f"paired differences to {OWN} over 2 seeds" in out
    methods = figures(tmp_path / "here")["methods"]
    assert [each["algorithm"] for each in methods] == ["fedavg", OWN]
    one, other = (each["personal"]["accuracy"]["last"]["mean"] for each in methods)
    assert one == other  # it is FedAvg, with the shared setting R
    code, out, err = call("compare", "--resume", "--out", "here")
    assert (code, out.count("already finished")) == (0, 2), err
    assert call("report", "here")[::2] == (0, "")
    assert OWN in (tmp_path / "here" / "report.html").read_text()
    assert call("compare", "--algorithms", "local", *SMALL, "--out", "here", "--overwrite")[0] == 0
    assert not (tmp_path / "here" / "support.custom-local_sgd").exists()


@pytest.mark.full
def test_a_method_of_ones_own_is_compared_and_reported_on_several_splits(call, tmp_path):
    code, _, err = call("compare", "--algorithms", f"fedavg,{OWN}", *SMALL, "--split-seeds", "2", "--out", "here")
    assert code == 0, err
    table = json.loads((tmp_path / "here" / "split-1" / "table.json").read_text())
    assert [each["algorithm"] for each in table] == ["fedavg", OWN]
    assert call("report", "here")[::2] == (0, "")


@pytest.mark.full
def test_a_run_with_validation_shows_three_figures_and_exports_the_chosen_one(call, tmp_path):
    code, out, err = call(
        "run", "--algorithm", "pfedme", "--validation", "0.2", "--seeds", "2", *SMALL, "--out", "here"
    )
    assert code == 0, err
    assert re.search(
        r"digits: 8 clients \(3 averaged in a round\), [\d,]+ training, [\d,]+ validation and 450 test samples", out
    )
    assert re.search(r"\| algorithm \| model \| +chosen round \| +last round \| +best on test \|", out)
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    chosen = summary["personal"]["chosen_round"][1]
    code, out, _ = call("export", "here", "--client", "2", "--seed", "1")
    assert f"client 2 (2), seed 1, after round {chosen}, chosen on validation samples" in out
    np.save("x.npy", np.zeros((2, 64)))
    code, _, err = call("predict", "here/client-2.safetensors", "x.npy")
    assert code == 0
    assert f"personal model of client 2, pfedme, after round {chosen}, chosen on validation samples" in err


@pytest.mark.full
@pytest.mark.parametrize(("model", "there"), [("mclr", False), ("support.normalised:linen_network", True)])
@pytest.mark.few_cases
def test_all_has_fedbn_where_the_model_has_norms(call, prepared, model, there):
    line = ("compare", "--algorithms", "all", "--dataset", prepared[1], "--model", model, "--rounds", 1, "--dry-run")
    code, out, err = call(*line)
    assert code == 0, err
    names = [each["algorithm"] for each in yaml.safe_load(out)]
    assert names == [name for name in ALGORITHMS if there or name != "fedbn"]


@pytest.mark.full
def test_a_baseline_with_one_seed_is_noted(call, prepared):
    line = ("compare", "--algorithms", "fedavg,local", "--dataset", prepared[1], "--rounds", 1, "--set", "R=1")
    code, out, err = call(*line, "--baseline", "local", "--out", "one")
    assert code == 0, err
    assert "paired differences" not in out
    assert err == (
        "pfedbred: note: --baseline compares methods over seeds or splits, and there is one: "
        "add --seeds or --split-seeds\n"
    )
    code, out, err = call(*line, "--baseline", "local", "--seeds", 2, "--out", "two")
    assert (code, err) == (0, "")
    assert "paired differences to local over 2 seeds" in out


@pytest.fixture
def resolved(monkeypatch):
    """What was resolved, a name for each time: settings, time limits and names of trackers."""
    calls = []

    def counted(owner, name):
        real = getattr(owner, name)

        def noted(*arguments):
            calls.append(name)
            return real(*arguments)

        monkeypatch.setattr(owner, name, noted)

    counted(configuration.Experiment, "_settings")
    counted(run, "parse_seconds")
    counted(trackers, "parse")
    return calls


ONCE = ["_settings", "parse", "parse_seconds"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (("run", "--algorithm", "fedavg"), ONCE),
        (("compare", "--algorithms", "fedavg,fedprox", "--split-seeds", "2"), ["_settings", *ONCE]),
        (("sweep", "--algorithm", "fedavg", "--grid", "alpha=0.01,0.1"), ONCE),
    ],
    ids=lambda each: each[0],
)
def test_each_option_is_resolved_once(line, expected, call, resolved):
    code, _, err = call(*line, "--time-limit", "1h", *SMALL, "--out", "here")
    assert code == 0, err
    assert sorted(resolved) == expected
