"""Coverage in the shell: a run with --coverage, its table and page, export, and predictions with sets or intervals."""

import csv
import io

import numpy as np
import pytest

import pfedbred
from pfedbred.report import page

SHARED = "--rounds 4 --aggregated 3 --algorithm local --set R=10 --validation 0.4 --coverage 0.8 --seeds 2"
NAMES = np.array(["no", "yes, surely", "perhaps"])


def write(path, count, seed, numbers):
    rng = np.random.default_rng(seed)
    client, x = np.arange(count) % 3, rng.normal(size=(count, 3))
    y = 100 + 5 * x[:, 0] + rng.normal(size=count)
    labels = [f"{each:.4f}" for each in y] if numbers else NAMES[(y > 97).astype(int) + (y > 103)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(
            [
                ["client", "a", "b", "c", "y"],
                *([f"site {c}", *row, z] for c, row, z in zip(client, x, labels, strict=True)),
            ]
        )


def call_in(folder, patch, line):
    out, err = io.StringIO(), io.StringIO()
    patch.chdir(folder)
    patch.setattr("sys.argv", ["pfedbred", *line.split()])
    patch.setattr("sys.stdout", out)
    patch.setattr("sys.stderr", err)
    with pytest.raises(SystemExit) as stopped:
        pfedbred.cli.main()
    return stopped.value.code or 0, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module", params=["classes", "numbers"])
def folder(request, tmp_path_factory):
    """A run and exported models of it, as the command line writes them, and what it said."""
    root = tmp_path_factory.mktemp(request.param)
    write(root / "table.csv", 300, 0, request.param == "numbers")
    write(root / "new.csv", 12, 1, request.param == "numbers")
    said = {}
    data = "--dataset table.csv --task " + ("regression" if request.param == "numbers" else "classification")
    for name, line in {
        "run": f"run {data} {SHARED} --out run",
        "export": "export run --client 2 --out two.safetensors",
        "plain": f"run {data} --rounds 1 --algorithm local --set R=1 --out plain",
        "export plain": "export plain --client 2 --out plain.safetensors",
    }.items():
        with pytest.MonkeyPatch.context() as patch:
            code, said[name], err = call_in(root, patch, line)
            assert code == 0, err
    return request.param, root, said


def rows(text):
    header, *found = csv.reader(io.StringIO(text))
    return [dict(zip(header, row, strict=True)) for row in found]


def test_the_table_says_what_was_asked_for_and_what_was_covered(folder):
    kind, root, said = folder
    found = pfedbred.RunRecord.read(root / "run").summary["calibration"]["personal"]["figures"]
    assert "calibrated for 80 % coverage, on the test samples, mean over clients" in said["run"]
    assert "calibrated alone: 3 of 3 clients, those with at least 9 validation samples" in " ".join(said["run"].split())
    assert f"{100 * found['coverage']['mean']['mean']:.2f} ±" in said["run"]
    if kind == "classes":
        before, after = (found[name]["mean"]["mean"] for name in ("nll_before", "nll"))
        assert f"{before:.4f} → {after:.4f}" in said["run"]
        assert "labels in a set" in said["run"]
    else:
        assert "interval width" in said["run"]
        assert "NLL" not in said["run"]
        assert "→" not in said["run"]


def test_the_page_has_it(folder):
    kind, root, _ = folder
    (shown,) = page.gather([root / "run"])["runs"]
    found = shown["uncertainty"]
    assert (found["coverage"], found["own"], found["own_samples"]) == (80, [True] * 3, 9)
    recorded = pfedbred.RunRecord.read(root / "run").summary["calibration"]["personal"]
    assert found["P"]["clients"] == pytest.approx([100 * each for each in recorded["figures"]["coverage"]["clients"]])
    titles = {"classes": ["NLL", "Brier score", "ECE", "coverage", "labels in a set"]}
    assert [each["title"] for each in found["G"]["figures"]] == titles.get(kind, ["coverage", "interval width"])
    assert (found["P"]["reliability"] is None) == (kind == "numbers")
    (plain,) = page.gather([root / "plain"])["runs"]
    assert plain["uncertainty"] is None


def test_predictions_are_a_table_with_sets_or_intervals(folder, monkeypatch):
    kind, root, _ = folder
    asked = "--probabilities --sets" if kind == "classes" else "--intervals"
    code, out, err = call_in(root, monkeypatch, f"predict two.safetensors new.csv {asked}")
    assert code == 0
    assert "calibrated for 80 % of this client's samples" in err
    _, plain, _ = call_in(root, monkeypatch, "predict two.safetensors new.csv")
    found = rows(out)
    assert [row["prediction"] for row in found] == plain.splitlines()
    model = pfedbred.load_model(root / "two.safetensors")
    x = np.genfromtxt(root / "new.csv", delimiter=",", skip_header=1, usecols=(1, 2, 3))
    if kind == "numbers":
        ends = [[float(row["from"]), float(row["to"])] for row in found]
        np.testing.assert_allclose(ends, model.intervals(x), rtol=1e-6)
        return
    names = model.about["labels"]
    likely = [[float(row[f"P({name})"]) for name in names] for row in found]
    np.testing.assert_allclose(likely, model.probabilities(x), rtol=1e-3)
    assert [row["set"] for row in found] == [",".join(each) for each in model.sets(x)]


def test_probabilities_of_a_model_that_is_not_calibrated_are_its_own(folder, monkeypatch):
    kind, root, _ = folder
    code, out, err = call_in(root, monkeypatch, "predict plain.safetensors new.csv --probabilities")
    if kind == "numbers":
        assert (code, out) == (2, "")
        assert "probabilities are for classes" in err
        return
    assert code == 0
    assert "probabilities not calibrated, which needs a run with --coverage" in err
    model = pfedbred.load_model(root / "plain.safetensors")
    x = np.genfromtxt(root / "new.csv", delimiter=",", skip_header=1, usecols=(1, 2, 3))
    likely = [[float(row[f"P({name})"]) for name in model.about["labels"]] for row in rows(out)]
    np.testing.assert_allclose(likely, model.probabilities(x, calibrated=False), rtol=1e-3)
    code, out, err = call_in(root, monkeypatch, "predict plain.safetensors new.csv --probabilities --sets")
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("model", "classes", "numbers"),
    [
        ("plain.safetensors", "--sets", "--intervals"),
        ("two.safetensors", "--intervals", "--sets"),
        ("two.safetensors", "--intervals", "--probabilities"),
    ],
)
def test_what_a_model_cannot_tell_is_one_line_and_exit_code_2(folder, monkeypatch, model, classes, numbers):
    kind, root, _ = folder
    code, out, err = call_in(root, monkeypatch, f"predict {model} new.csv {classes if kind == 'classes' else numbers}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert ("this model is not calibrated: run with" if model.startswith("plain") else "the task of this model") in err


def test_coverage_needs_validation_samples(monkeypatch, tmp_path):
    code, _, err = call_in(tmp_path, monkeypatch, "run --coverage 0.9 --clients 5")
    assert (code, err.count("\n")) == (2, 1)
    assert "coverage needs validation samples: keep some for validation (validation 0.2)" in err
    code, _, err = call_in(tmp_path, monkeypatch, "sweep --coverage 0.9 --clients 5 --grid lam=1,2 --validation 0.2")
    assert (code, err.count("\n")) == (2, 1)
    assert "a sweep keeps no models to calibrate" in err
