"""Chosen metrics, through the whole library: records, tables, pictures and the page."""

import json
import re

import numpy as np
import pytest
from support.custom import confident, federation

import pfedbred
from pfedbred.report import page
from pfedbred.report.terminal import show_outcome
from pfedbred.runs.record import RunRecord
from pfedbred.runs.statistics import half_width

OPTIONS = {"algorithm": "fedavg", "rounds": 2, "aggregated": 2, "seeds": 2, "settings": {"R": 2}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A named metric, and a custom one that no table knows."""
    folder = tmp_path_factory.mktemp("metrics") / "run"
    return pfedbred.run(**OPTIONS, federation=federation(), metrics=["ece", confident], out=folder)


def test_they_are_in_every_line_pooled_and_by_client(run):
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert line["schema"] == 2
        for model in ("global", "personal"):
            for name in ("accuracy", "loss", "ece", "confident"):
                assert np.shape(line[model]["test"][name]) == (2,)
                assert np.shape(line[model]["test"][f"client_{name}"]) == (2, 4)
            assert "ece" not in line[model]["train"]  # only accuracy and loss, to see how training goes


def test_they_are_read_back(run):
    read = RunRecord.read(run.folder)
    for name in ("ece", "confident"):
        np.testing.assert_array_equal(read.curve(name, "personal"), run.curve(name, "personal"))
        for ours, theirs in zip(read.points, run.points, strict=True):
            one, other = (each.scores.global_.test.clients[name] for each in (ours, theirs))
            np.testing.assert_allclose(one, other, atol=5e-5)


def test_the_summary_has_their_best_and_final_values(run):
    summary = json.loads((run.folder / "summary.json").read_text())
    assert list(summary["metric_info"]) == ["accuracy", "loss", "ece", "confident"]
    assert summary["metric_info"]["confident"] == {
        "title": "confident samples",
        "percent": True,
        "higher_is_better": True,
    }
    for name, best in (("ece", np.min), ("confident", np.max)):
        said, curve = summary["personal"]["metrics"][name], run.curve(name, "personal")
        assert said["final"]["mean"] == pytest.approx(curve[-1].mean())
        assert said["best"]["mean"] == pytest.approx(best(curve, axis=0).mean())
    assert not summary["metric_info"]["ece"]["higher_is_better"]


def test_the_table_has_a_column_for_each(run, capsys):
    summary = run.record().summary
    show_outcome([summary])
    shown = capsys.readouterr().out
    assert re.search(r"\| algorithm \| model \| +ECE \(%\) \| +confident samples \(%\) \|", shown)
    for letter, model in (("G", "global"), ("P", "personal")):
        best = summary[model]["metrics"]["confident"]["best"]
        assert re.search(
            rf"\| fedavg    \| {letter} .*\| +{100 * best['mean']:.2f} ± {100 * half_width(best['std'], 2):.2f} \|",
            shown,
        )


def test_the_page_has_them(run):
    content = page.gather([run.folder])
    assert [each["name"] for each in content["metrics"]] == ["accuracy", "loss", "ece", "confident"]
    (shown,) = content["runs"]
    curve = run.curve("confident", "personal").mean(axis=1)
    np.testing.assert_allclose(shown["metrics"]["confident"]["P"]["mean"], 100 * curve, atol=0.01)
    assert len(shown["metrics"]["ece"]["G"]["clients"]) == 4


def test_the_picture_has_a_row_for_each(run, finished):
    from PIL import Image

    heights = []
    for folder in (run.folder, finished / "run"):
        with Image.open(folder / "curves.png") as picture:
            heights.append(picture.height)
    assert heights[0] > heights[1]


def test_the_command_line_takes_their_names(call, tmp_path, finished):
    given = ("--dataset", finished / "own.npz", "--algorithm", "fedavg", "--rounds", 1, "--set", "R=1")
    code, out, err = call("run", *given, "--metrics", "f1,ece", "--out", "here")
    assert code == 0, err
    assert "| algorithm | model | macro F1 (%) | ECE (%) |" in out
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert list(summary["metric_info"]) == ["accuracy", "loss", "f1", "ece"]
    assert summary["experiment"]["metrics"] == ["accuracy", "loss", "f1", "ece"]


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ("rmse", "rmse is for regression, and this task is classification; choose from: accuracy, loss, f1"),
        ("f2", "unknown metric 'f2'; did you mean"),
        ("f1,f1", "the metric 'f1' is given 2 times"),
        ("f1,,ece", "unknown metric ''"),
    ],
)
def test_wrong_metrics_are_one_line(metrics, words, call, tmp_path):
    code, out, err = call("run", "--metrics", metrics)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir())
