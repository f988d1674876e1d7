"""Sweeps: every point is the run it stands for, and all of them are one program."""

import json
import os
import shlex
import shutil

import numpy as np
import pytest
from conftest import small_federation
from support.custom import choosy

import pfedbred
from pfedbred import Positive, Sweep
from pfedbred.experiment.building import build
from pfedbred.experiment.space import Range, parse_space, random_points
from pfedbred.runs.locks import locked

OPTIONS = {"rounds": 3, "eval_every": 2, "seeds": 2}


def experiment(algorithm="mg-meta", **settings):
    return pfedbred.Experiment(algorithm=algorithm, settings={"R": 3, **settings}, **OPTIONS)


@pytest.mark.parametrize(
    ("algorithm", "grid"),
    [
        ("mg-meta", {"eta": [0.01, 0.9], "lam": [1.0, 90.0]}),
        pytest.param("fedprox+am", {"am_beta": [0.5, 2.0], "alpha": [0.01, 0.05]}, marks=pytest.mark.full),
        pytest.param("per-fedavg", {"alpha": [0.01, 0.2]}, marks=pytest.mark.full),
    ],
)
@pytest.mark.few_cases
@pytest.mark.full
def test_a_point_is_the_run_with_its_settings(algorithm, grid):
    federation = small_federation((150, 200, 90, 240))
    found = pfedbred.sweep(experiment(algorithm), grid, federation=federation)
    assert found.personal.shape == (len(found.points), 2, 2)  # points, evaluations, seeds
    assert found.experiment.validation == 0.2  # as nobody said anything of it
    for i, point in enumerate(found.points):
        own = {"R": 3, **dict(zip(found.names, map(float, point), strict=True))}
        run = pfedbred.run(federation=federation, algorithm=algorithm, settings=own, validation=0.2, **OPTIONS)
        np.testing.assert_allclose(found.personal[i], run.accuracy("personal"), atol=1e-6)
        np.testing.assert_allclose(found.global_[i], run.accuracy("global"), atol=1e-6)
        record = run.record()
        for model in ("global", "personal"):
            validation = run.accuracy(model, "validation")
            np.testing.assert_allclose(found.validation[model][i], validation, atol=1e-6)
            for figure in ("chosen", "last", "best"):
                expected = record.figure(figure, "accuracy", model)
                np.testing.assert_allclose(found.figure(figure, model)[i], expected, atol=1e-6)
    assert not np.allclose(found.personal[0], found.personal[-1])  # the settings matter


@pytest.mark.full
def composed(task, *, alpha: Positive = 0.01):
    """A method made from another, which takes its settings."""
    return pfedbred.make("fedavg", task, {"alpha": alpha, "R": 3})


def test_a_method_made_from_another_is_swept_as_that_is():
    own, named = (
        pfedbred.sweep(
            pfedbred.Experiment(algorithm=algorithm, settings=settings, **OPTIONS),
            {"alpha": [0.01, 0.1]},
            federation=small_federation((150, 200, 90, 240)),
        )
        for algorithm, settings in ((composed, {}), ("fedavg", {"R": 3}))
    )
    np.testing.assert_array_equal(own.personal, named.personal)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_method_made_from_another_has_the_schedules_of_that(executor):
    def losses(algorithm, **settings):
        alpha = {"schedule": "cosine", "start": 0.1}
        settings = {"alpha": alpha, **settings}
        done = pfedbred.run(
            federation=small_federation(), algorithm=algorithm, settings=settings, rounds=2, executor=executor
        )
        return done.curve("loss", "global", "train")

    np.testing.assert_array_equal(losses(composed), losses("fedavg", R=3))


def test_a_method_made_from_another_cannot_vary_what_decides_how_that_is_built():
    def build(task, *, alpha: Positive = 1.0):
        return pfedbred.make("fedavg", task, {"R": alpha})

    experiment = pfedbred.Experiment(algorithm=build, **OPTIONS)
    with pytest.raises(pfedbred.SettingError, match="alpha cannot be swept: it changes the compiled program"):
        pfedbred.sweep(experiment, {"alpha": [1.0, 2.0]}, federation=small_federation((150, 200, 90, 240)))


def test_points_that_do_not_fit_together_run_in_groups():
    """Five points, two at a time: the same figures, and still one program."""
    grid = {"lam": [1.0, 5.0, 10.0, 20.0, 40.0]}
    whole = pfedbred.sweep(experiment(), grid, federation=small_federation())
    two = 2 * 2 * build(experiment(lam=1.0), small_federation()).backend.state_bytes()
    seen = []
    parts = pfedbred.sweep(
        experiment(), grid, federation=small_federation(), memory=two, observe=lambda *done: seen.append(done)
    )
    np.testing.assert_array_equal(parts.points, whole.points)
    np.testing.assert_allclose(parts.personal, whole.personal, atol=1e-6)
    assert seen == [(4, 15), (6, 15), (10, 15), (12, 15), (14, 15), (15, 15)]


def by_hand(chosen_on="validation", validated=True):
    """Three points, three evaluations, one seed: the second has stopped, the third is best on test alone."""
    nan = np.nan
    test = np.array([[[0.5], [0.6], [0.4]], [[0.7], [0.2], [nan]], [[0.3], [0.9], [0.8]]])
    validation = np.array([[[0.5], [0.7], [0.9]], [[0.6], [0.5], [nan]], [[0.2], [0.6], [0.8]]])
    checked = pfedbred.Experiment(rounds=6, eval_every=2).checked()
    return Sweep(
        *(checked, ("lam",), np.array([[1.0], [2.0], [3.0]]), [2, 4, 6], test, test, 0.0, 0.0),
        validation={"global": validation, "personal": validation} if validated else None,
        evaluations=np.array([3, 2, 3]),
        chosen_on=chosen_on,
    )


def test_the_best_point_is_the_best_on_validation_samples():
    found = by_hand()
    np.testing.assert_allclose(found.scores("personal"), [0.9, 0.6, 0.8])
    assert found.best_point() == {"lam": 1.0}
    np.testing.assert_allclose(found.figure("chosen", "personal")[:, 0], [0.4, 0.7, 0.8])
    np.testing.assert_allclose(found.figure("last", "personal")[:, 0], [0.4, 0.2, 0.8])
    np.testing.assert_allclose(found.figure("best", "personal")[:, 0], [0.6, 0.7, 0.9])
    record = found.record()
    assert [point["measured"]["rounds"] for point in record["points"]] == [6, 4, 6]
    assert record["points"][0]["measured"]["score"]["personal"] == pytest.approx(0.9)
    assert record["points"][0]["personal"] == pytest.approx(0.6)  # the best on test, as before there were others
    for validated in (True, False):
        assert by_hand("test", validated).best_point() == {"lam": 3.0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("eta=0:1:3", [0.0, 0.5, 1.0]), ("eta=0.5,2", [0.5, 2.0]), ("eta = 3", [3.0]), ("eta=1:9:1", [1.0])],
)
def test_grids(text, expected):
    assert parse_space([text]) == {"eta": expected}


def test_ranges():
    assert parse_space(["eta=0:0.5", "lam=log:0.1:100"]) == {"eta": Range(0, 0.5), "lam": Range(0.1, 100, log=True)}
    points = random_points({"a": Range(2, 4), "b": Range(0.01, 100, log=True), "c": [5.0, 7.0]}, 4000, seed=1)
    low, high = points.min(axis=0), points.max(axis=0)
    assert np.all(low >= [2, 0.01, 5])
    assert np.all(high <= [4, 100, 7])
    assert set(points[:, 2]) == {5.0, 7.0}
    deciles = np.linspace(0.1, 0.9, 9)  # of uniform numbers: each within four standard errors
    for column in (points[:, 0] / 2 - 1, np.log10(points[:, 1]) / 4 + 0.5):
        np.testing.assert_allclose(np.quantile(column, deciles), deciles, atol=4 * 0.5 / np.sqrt(4000))
    assert not np.array_equal(points, random_points({"a": Range(2, 4), "b": [1.0], "c": [1.0]}, 4000, seed=2))


@pytest.mark.parametrize(
    "texts",
    [
        *(["eta"], ["eta="], ["=1"], ["eta=2:1"], ["eta=a,b"], ["eta=1:2:0"], ["a=1", "a=2"]),
        *(["eta=log:0:1"], ["eta=log:1"], ["eta=1:2:3:4"], ["eta=1e999:2:3"]),
    ],
)
def test_broken_grids_are_refused(texts):
    with pytest.raises(pfedbred.SettingError, match=r"--grid (eta )?takes"):
        parse_space(texts)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({}, "a sweep needs a grid"),
        ({"etta": [1.0]}, "unknown setting 'etta'; did you mean 'eta'"),
        ({"K": [1.0, 2.0]}, "K decides how the program is built.*lam, alpha"),
        ({"lam": [1.0, -1.0]}, "lam must be a number > 0"),
        ({"tol": [0.0, 0.1]}, "tol decides how the program is built"),
        ({"lam": Range(1.0, 2.0)}, "lam is a range: give the number of points to draw from it with --random N"),
        ({"lam": Range(-1.0, 2.0)}, "lam must be a number > 0"),
    ],
)
def test_impossible_sweeps_are_refused(grid, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.sweep(experiment(), grid, federation=small_federation())


def test_the_command(call, tmp_path):
    grid = ["--grid", "eta=0.01:0.2:2", "--grid", "lam=5,15,30"]
    code, out, _ = call("sweep", *grid, "--rounds", "2", "--clients", "5", "--set", "R=2", "--out", "here")
    assert code == 0
    assert "6 points" in out
    assert (tmp_path / "here" / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "here" / "sweep.json").read_text())
    assert len(found["points"]) == 6
    assert found["best"].keys() == {"eta", "lam"}
    best = max(found["points"], key=lambda point: point["personal"])
    assert best["personal"] == max(point["personal"] for point in found["points"])
    (words,) = [line for line in out.splitlines() if line.startswith("to run the best point: ")]
    assert call(*shlex.split(words)[6:], "--dry-run")[0] == 0
    assert [f"{name}={value}" in words for name, value in found["best"].items()] == [True, True]
    code, _, err = call("sweep", "--grid", "eta=x")
    assert code == 2
    assert err == "pfedbred: --grid eta takes numbers, not 'x'\n"


def test_what_a_sweep_cannot_use_is_refused():
    held = pfedbred.Experiment(held_out_clients=0.25)
    with pytest.raises(pfedbred.SettingError, match="does not evaluate held-out clients"):
        pfedbred.sweep(held, {"lam": [1.0]}, federation=small_federation())
    with pytest.raises(pfedbred.SettingError, match="alpha cannot be swept: it changes the compiled program"):
        pfedbred.sweep(pfedbred.Experiment(algorithm=choosy), {"alpha": [0.1, 0.2]}, federation=small_federation())
    samples = [(np.ones((2, 2)), np.array([0, 1]))] * 3
    untested = pfedbred.from_clients(samples, [(np.ones((0, 2)), [])] * 3)
    with pytest.raises(pfedbred.SettingError, match="no test samples"):
        pfedbred.sweep(pfedbred.Experiment(), {"lam": [1.0]}, federation=untested, choose_on_test=True)


def test_a_sweep_in_which_every_point_diverges_says_so():
    with pytest.raises(pfedbred.SettingError, match="every point of the sweep diverged"):
        pfedbred.sweep(experiment("fedavg"), {"alpha": [1e30]}, federation=small_federation())


def test_points_can_be_compared_by_a_metric_of_the_experiment():
    options = {"algorithm": "fedavg", "rounds": 1, "aggregated": 4, "metrics": "f1"}
    data, alphas = small_federation(), [0.1, 0.5]
    given = pfedbred.Experiment(settings={"R": 2}, **options)
    swept = pfedbred.sweep(given, {"alpha": alphas}, federation=data, metric="f1", choose_on_test=True)
    runs = [pfedbred.run(settings={"R": 2, "alpha": alpha}, federation=data, **options) for alpha in alphas]
    found = [run.points[-1].scores.personal.test.values["f1"][0] for run in runs]
    np.testing.assert_allclose(swept.scores("personal"), found, rtol=1e-6)
    assert swept.metric.name == "f1"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"metrics": "f1"}, "a sweep compares points by accuracy"),
        ({"diagnostics": True}, "a sweep compares points by accuracy"),
        ({"algorithm": pfedbred.Algorithm(None, None, None), "settings": {}}, "has no settings to sweep"),
    ],
)
def test_what_a_sweep_does_not_do_is_rejected(options, problem):
    given = pfedbred.Experiment(**{"algorithm": "fedavg", "rounds": 1, **options})
    with pytest.raises(pfedbred.SettingError, match=problem):
        pfedbred.sweep(given, {"alpha": [0.1]}, federation=small_federation())


@pytest.mark.full
def test_a_sweep_leaves_a_folder_in_use_alone(call, tmp_path, finished):
    """As a live run's: its files are there afterwards, and the sweep says who has the folder."""
    shutil.copytree(finished / "run", tmp_path / "run")
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    command = ("sweep", "--dataset", finished / "own.npz", "--rounds", 1, "--set", "R=1", "--grid", "lam=5,15")
    with locked(tmp_path / "run"):
        code, _, err = call(*command, "--overwrite", "--out", "run")
    assert code == 2
    assert err.startswith(f"pfedbred: run is in use by process {os.getpid()} on ")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
    assert call(*command, "--overwrite", "--out", "run")[0] == 0
    assert (tmp_path / "run" / "sweep.json").exists()
    assert not (tmp_path / "run" / ".lock").exists()
