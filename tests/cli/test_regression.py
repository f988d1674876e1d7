"""Regression from a CSV file in the shell: training, records, pictures, the page, export and prediction."""

import contextlib
import io
import json
import re

import numpy as np
import pytest

import pfedbred
from pfedbred.experiment.command import command
from pfedbred.report import page

RNG = np.random.default_rng(0)
CLIENTS = 3


def rows(count=90):
    """Numbers around 1000 that depend on two features and, differently for each client, on a third."""
    client, x = np.arange(count) % CLIENTS, RNG.normal(5, 2, (count, 3))
    y = 1000 + 30 * x[:, 0] - 20 * x[:, 1] + 15 * client * x[:, 2] + RNG.normal(size=count)
    return client, x, y


def write(path, client, x, y):
    lines = [f"clinic {c},{a:.4f},{b:.4f},{d:.4f},{z:.4f}" for c, (a, b, d), z in zip(client, x, y, strict=True)]
    path.write_text("\n".join(["client,a,b,d,y", *lines]) + "\n")


SHARED = "--dataset table.csv --task regression --rounds 6 --aggregated 3 --batch-size 30 --set alpha=0.2 --set R=10"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run and an exported model, as the command line writes them, and what it said."""
    root = tmp_path_factory.mktemp("regression")
    write(root / "table.csv", *rows())
    write(root / "new.csv", *rows(12))
    said = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for line in (
            f"run {SHARED} --algorithm local --seeds 2 --out run",
            "export run --client 2 --out two.safetensors",
            "predict two.safetensors new.csv",
        ):
            said[line.split()[0]] = _call(patch, line)
    return root, said


def _call(patch, line):
    out, err = io.StringIO(), io.StringIO()
    patch.setattr("sys.argv", ["pfedbred", *line.split()])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stopped:
        pfedbred.cli.main()
    assert not stopped.value.code, err.getvalue()
    return out.getvalue(), err.getvalue()


def test_lines_and_tables_show_the_rmse(folder):
    out, _ = folder[1]["run"]
    assert "table: 3 clients (all averaged in a round), 66 training and 24 test samples, numbers to predict" in out
    assert re.search(r"local: round 6/6  RMSE G \d+\.\d+  P \d+\.\d+", out)
    assert re.search(r"6 rounds: test RMSE *\n", out)
    assert out.count("%") == out.count("mean ± half-width of its 95 % interval over seeds") == 1  # no value has one
    assert re.search(r"\| algorithm \| model \| +MAE \| +R² \|", out)


def test_records_hold_the_metrics_of_regression(folder):
    root, _ = folder
    summary = json.loads((root / "run" / "summary.json").read_text())
    assert list(summary["metric_info"]) == ["rmse", "loss", "mae", "r2"]
    assert summary["experiment"]["task"] == "regression"
    read = pfedbred.RunRecord.read(root / "run")
    assert read.primary == "rmse"
    curve = read.curve("rmse", "personal")
    assert summary["personal"]["best_rmse"]["mean"] == pytest.approx(curve.min(axis=0).mean())
    last = read.points[-1].scores.personal.test
    worst = last.clients["rmse"].max(axis=1).mean()
    assert summary["personal"]["final_worst_decile"]["mean"] == pytest.approx(worst, abs=1e-3)
    data = json.loads((root / "run" / "data.json").read_text())
    assert len(data["labels"]) == 10
    assert np.sum(data["train"]) == 66


@pytest.mark.full
def test_the_best_of_a_comparison_has_the_lowest_rmse(folder, monkeypatch):
    root, _ = folder
    monkeypatch.chdir(root)
    out, _ = _call(monkeypatch, f"compare {SHARED} --algorithms fedavg,local --out both")
    summaries = json.loads((root / "both" / "table.json").read_text())
    assert [each["algorithm"] for each in summaries] == ["fedavg", "local"]
    fedavg, local = (each["personal"]["best_rmse"]["mean"] for each in summaries)
    assert local < fedavg  # the third feature means something else to every client
    assert f"{local:.4f}" in out
    assert (root / "both" / "curves.png").stat().st_size > 10_000


def test_the_page_shows_them(folder):
    content = page.gather([folder[0] / "run"], command=command)
    assert content["metrics"][0] == {"name": "rmse", "title": "RMSE", "percent": False, "higher_is_better": False}
    shown = content["runs"][0]["metrics"]["rmse"]["P"]
    assert shown["worst_tenth"] > shown["best"]
    assert "--task regression" in content["commands"][0]["command"]


def test_predictions_are_in_the_units_of_the_labels(folder):
    """As a linear model in NumPy gives them, from the tensors of the file."""
    root, said = folder
    out, err = said["predict"]
    predicted = np.array(out.split(), float)
    model = pfedbred.load_model(root / "two.safetensors")
    table = np.genfromtxt(root / "new.csv", delimiter=",", skip_header=1, usecols=(1, 2, 3, 4))
    federation = pfedbred.load(str(root / "table.csv"), task="regression")
    train = federation.train
    z = (table[:, :3] - train.x.mean(0)) / train.x.std(0)
    layer = model.params["output"]
    by_hand = train.y.mean() + train.y.std() * (z @ layer["weight"][0] + layer["bias"][0])
    np.testing.assert_allclose(predicted, by_hand, rtol=1e-4)
    errors = predicted - table[:, 3]
    assert f"RMSE {np.sqrt(np.mean(errors**2)):.4g}, MAE {np.mean(np.abs(errors)):.4g} against the file's labels" in err
    assert model.predict(table[:2, :3]) == pytest.approx(predicted[:2], rel=1e-5)


@pytest.mark.full
def test_a_prepared_file_is_of_its_task(folder, call, tmp_path):
    root, _ = folder
    code, out, err = call("data", "prepare", root / "table.csv", "--task", "regression", "--out", "t.fed")
    assert code == 0, err
    assert "numbers to predict" in out
    assert re.search(r"interval +training +test +clients", out)
    again = pfedbred.load("t.fed")
    assert again.task == "regression"
    np.testing.assert_array_equal(again.train.y, pfedbred.load(str(root / "table.csv"), task="regression").train.y)
    code, _, err = call("run", "--dataset", "t.fed", "--task", "binary", "--rounds", "1")
    assert code == 2
    assert "the task binary is for classes, but the labels of table are numbers" in err
    code, _, err = call("run", "--dataset", root / "table.csv", "--rounds", "1")
    assert code == 2
    assert "--task regression" in err
    assert err.count("\n") == 1


@pytest.mark.full
def test_several_labels_from_columns(call, tmp_path):
    lines = [f"{i % 2},{i},{-i},{int(i > 4)},{int(i % 3 == 0)}" for i in range(12)]
    (tmp_path / "t.csv").write_text("client,a,b,high,third\n" + "\n".join(lines) + "\n")
    columns = ("--task", "multi-label", "--label-column", "high,third")
    code, out, err = call("data", "prepare", "t.csv", *columns, "--out", "t.fed")
    assert code == 0, err
    assert "2 labels" in out
    code, out, err = call("run", "--dataset", "t.fed", "--rounds", 2, "--algorithm", "fedem", "--out", "run")
    assert code == 0, err
    assert "test micro F1 in %" in out
    assert call("export", "run")[0] == 0
    code, out, err = call("predict", "run/global.safetensors", "t.csv")
    assert code == 0, err
    assert set(out.replace("\n", ",").split(",")) <= {"high", "third", ""}
    assert len(out.split("\n")) == 13
    assert "of 12 labels agree with the file" in err
