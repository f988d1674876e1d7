"""comparison.json: intervals and paired differences of methods on the same splits and seeds, by hand."""

import json
import math
import re

import numpy as np
import pytest
from support.page_folders import write_json, write_run

from pfedbred.errors import SettingError
from pfedbred.report import page
from pfedbred.report.outcomes import show_differences, show_figures
from pfedbred.runs.comparison import comparison, pooled
from pfedbred.runs.layout import split_name
from pfedbred.runs.record import RunRecord
from pfedbred.runs.schema import read_comparison
from pfedbred.runs.statistics import t_quantile

MODELS = ("global", "personal")


@pytest.fixture
def runs(tmp_path):
    """Three methods on two splits with three seeds; the second is hardly better than the first."""
    found = {}
    for name in ("fedavg", "better", "worst!"):
        records = []
        for split in (4, 5):
            folder = tmp_path / split_name(split) / name.strip("!")
            lines = write_run(folder, name, validation=True, seeds=3, seed=split, metrics=())
            for line in lines:
                for model in MODELS:
                    shift = {"fedavg": 0.0, "better": 0.001, "worst!": -0.3}[name]
                    noise = 0.004 * np.random.default_rng([*name.encode(), split]).normal(size=3)
                    line[model]["test"]["accuracy"] = (0.5 + 0.1 * split / 10 + shift + noise).tolist()
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            records.append(RunRecord.read(folder))
        found[name.strip("!")] = records
    return found


def by_hand(runs, name, figure, model):
    return np.stack([run.figure(figure, "accuracy", model) for run in runs[name]])


def of(compared, name, figure="chosen", model="personal"):
    return next(each for each in compared["methods"] if each["algorithm"] == name)[model]["accuracy"][figure]


def test_differences_are_paired_and_intervals_over_splits(runs):
    compared = comparison(runs, [4, 5])
    assert compared["figures"] == ["chosen", "last", "best"]
    for figure in compared["figures"]:
        for model in MODELS:
            means = {name: by_hand(runs, name, figure, model).mean() for name in runs}
            best = max(means, key=means.get)
            for name in runs:
                found = of(compared, name, figure, model)
                assert found["mean"] == pytest.approx(means[name])
                assert found["best"] == (name == best)
                if name == best:
                    assert found["difference"] is None
                    continue
                apart = (by_hand(runs, name, figure, model) - by_hand(runs, best, figure, model)).mean(axis=1)
                half = t_quantile(1) * apart.std(ddof=1) / math.sqrt(2)
                assert found["difference"]["to"] == best
                assert found["difference"]["mean"] == pytest.approx(apart.mean())
                assert found["difference"]["half_width"] == pytest.approx(half)
                assert found["told_from_best"] == (abs(apart.mean()) > half)
    assert of(compared, "worst")["told_from_best"] is True
    assert of(compared, "fedavg")["told_from_best"] is False or of(compared, "better")["told_from_best"] is False


def test_a_baseline_is_what_the_others_are_compared_with(runs):
    compared = comparison(runs, [4, 5], "worst")
    assert of(compared, "worst")["difference"] is None
    assert {of(compared, name)["difference"]["to"] for name in ("fedavg", "better")} == {"worst"}
    assert of(compared, "worst")["told_from_best"] is True  # whatever the baseline is
    with pytest.raises(SettingError, match="the baseline 'x' is not one of fedavg, better, worst"):
        comparison(runs, [4, 5], "x")


def test_one_run_of_each_tells_nothing(runs, capsys):
    alone = comparison({name: each[:1] for name, each in runs.items()})
    assert of(alone, "fedavg")["half_width"] is not None  # three seeds
    single = json.loads(json.dumps(alone).replace('"seeds": 3', '"seeds": 1'))
    show_differences(single)
    assert capsys.readouterr().out == ""


def test_tables_mark_what_cannot_be_told_from_the_best(runs, capsys):
    show_differences(comparison(runs, [4, 5], "fedavg"))
    shown = capsys.readouterr().out
    assert "paired differences to fedavg over 2 splits" in shown
    lines = {line.split("|")[1].strip(): line for line in shown.splitlines() if line.count("|") == 4}
    assert "≈" not in lines["worst"]
    assert "≈" in lines["fedavg"] + lines["better"]
    show_figures([pooled(each).summary | {"algorithm": name} for name, each in runs.items()])
    shown = capsys.readouterr().out
    assert re.search(r"chosen round \| +last round \| +best on test", shown)
    mean = 100 * by_hand(runs, "better", "chosen", "global").mean()
    assert f"{mean:.2f} ± " in shown
    assert "over splits" in shown


def test_runs_on_several_splits_are_one_with_all_seeds(runs):
    together = pooled(runs["fedavg"])
    assert together.summary["seeds"] == 6
    expected = np.concatenate([run.curve("loss", "global") for run in runs["fedavg"]], axis=1)
    np.testing.assert_array_equal(together.curve("loss", "global"), expected)
    for figure in ("chosen", "last", "best"):
        values = np.concatenate([run.figure(figure, "accuracy", "personal") for run in runs["fedavg"]])
        np.testing.assert_array_equal(together.figure(figure, "accuracy", "personal"), values)
    assert pooled(runs["fedavg"][:1]) is runs["fedavg"][0]


def test_the_page_counts_one_seed_as_one(runs, tmp_path):
    write_json(tmp_path / "comparison.json", comparison(runs, [4, 5]) | {"seeds": 1, "splits": None})
    (shown,) = page.gather([tmp_path])["comparisons"]
    assert shown["over"] == "1 seed"


def test_the_page_shows_a_comparison_over_splits(runs, tmp_path):
    compared = comparison(runs, [4, 5])
    write_json(tmp_path / "comparison.json", compared)
    assert read_comparison(tmp_path / "comparison.json") == json.loads(json.dumps(compared))
    content = page.gather([tmp_path])
    (shown,) = content["comparisons"]
    assert shown["over"] == "2 splits"
    assert [each["name"] for each in shown["methods"]] == list(runs)
    found = of(compared, "worst")
    assert shown["methods"][2]["P"]["accuracy"]["chosen"] == {
        "mean": pytest.approx(100 * found["mean"], abs=1e-3),
        "half": pytest.approx(100 * found["half_width"], abs=1e-3),
        "difference": pytest.approx(100 * found["difference"]["mean"], abs=1e-3),
        "difference_half": pytest.approx(100 * found["difference"]["half_width"], abs=1e-3),
        "best": False,
        "told": True,
    }
    run = next(each for each in content["runs"] if each["name"] == "worst!")
    assert run["seeds"] == 6
    assert run["metrics"]["accuracy"]["P"]["figures"]["chosen"]["half"] == pytest.approx(
        100 * found["half_width"], abs=1e-3
    )
    places = runs["worst"][0].places("chosen", "accuracy", "personal")
    assert run["metrics"]["accuracy"]["P"]["chosen"]["rounds"][:3] == (places + 1).tolist()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda facts: facts.update(figures=["first"]), "there is no figure 'first'"),
        (lambda facts: facts["methods"][0]["global"].pop("loss"), "has no 'loss'"),
        (lambda facts: facts["methods"][0].update(algorithm="../x"), "'../x' is not an algorithm"),
        (lambda facts: facts.pop("seeds"), "has no 'seeds'"),
    ],
)
def test_a_damaged_file_is_one_line(runs, tmp_path, change, words):
    facts = comparison(runs, [4, 5])
    change(facts)
    write_json(tmp_path / "comparison.json", facts)
    with pytest.raises(SettingError, match=words):
        page.gather([tmp_path])
