"""Random search, halving and Optuna's samplers: places in the program are refilled, and a sweep is resumed."""

import json
import re
import sys

import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.experiment import samplers
from pfedbred.experiment.callbacks import Stopped
from pfedbred.experiment.halving import Halving, rungs
from pfedbred.experiment.space import Range, parse_space, space_texts
from pfedbred.experiment.sweep import sweep
from pfedbred.experiment.sweep_plan import SweepPlan
from pfedbred.runs.config_file import read_config

EXPERIMENT = pfedbred.Experiment(algorithm="pfedme", settings={"R": 1, "K": 1}, rounds=8, validation=0.3, batch_size=4)
SPACE = {"alpha_m": Range(0.001, 1.0, log=True), "lam": [5.0, 15.0]}
DATA = small_federation((60, 90))


def search(**options):
    return sweep(EXPERIMENT, SPACE, federation=DATA, **options)


def test_rungs_are_evaluations_at_halves_of_the_rounds():
    assert rungs([10, 20, 30, 40, 50, 60, 70, 80]) == [0, 1, 3]  # 10, 20 and 40 of 80
    assert rungs(range(1, 101)) == [6, 12, 24, 49]  # 7, 13, 25 and 50 of 100
    assert rungs([5]) == []
    assert rungs([]) == []


def test_the_worse_half_of_those_that_got_there_stops():
    halving = Halving([1, 2])
    assert (halving.judges(0), halving.judges(1)) == (True, False)
    for point, score in enumerate([0.1, 0.4, float("nan"), 0.3, 0.3]):
        halving.note(0, point, score)
    assert [halving.stops(0, point) for point in range(5)] == [True, False, True, False, False]
    halving.note(0, 5, 0.3)  # comes later: of six, three go on, and of equals the first
    assert halving.stops(0, 5)
    halving.note(0, 6, 0.9)
    assert not halving.stops(0, 6)
    halving.note(1, 0, 0.1)
    assert not halving.stops(1, 0)


@pytest.fixture(scope="module")
def whole():
    """All nine points to the end."""
    return search(points=9)


@pytest.fixture(scope="module")
def halved():
    return search(points=9, halving=True)


@pytest.mark.full
def test_a_place_that_becomes_free_is_taken_by_another_point(whole, halved):
    """Whatever shares the program with it, and whenever it starts, a point's scores are its own."""
    np.testing.assert_array_equal(halved.points, whole.points)
    assert set(halved.evaluations.tolist()) > {8}
    for i, count in enumerate(halved.evaluations):
        np.testing.assert_allclose(halved.personal[i, :count], whole.personal[i, :count], atol=1e-6)
        np.testing.assert_allclose(
            halved.validation["global"][i, :count], whole.validation["global"][i, :count], atol=1e-6
        )
        assert np.isnan(halved.personal[i, count:]).all()
    assert halved.evaluations.sum() < 0.8 * whole.evaluations.sum()
    scores = whole.scores("personal")
    assert halved.scores("personal")[halved.evaluations == 8].max() >= np.sort(scores)[-3]  # not the best for certain


class StopAfter(pfedbred.Callback):
    """Stops a sweep after n evaluations."""

    def __init__(self, times):
        self.times = times

    def sweep_stop_reason(self, sweeping):
        self.times -= 1
        return "time limit" if self.times == 0 else None


def kept(record):
    """A sweep's record without what depends on the clock."""
    return {name: value for name, value in record.items() if name != "seconds"}


@pytest.mark.parametrize("sampler", ["random", pytest.param("tpe", marks=pytest.mark.full)])
@pytest.mark.full
def test_a_resumed_sweep_is_the_uninterrupted_one(sampler, tmp_path, halved):
    """Stopped twice, with points at different rounds, and resumed."""
    if sampler == "tpe":
        pytest.importorskip("optuna", reason="needs Optuna: pip install 'pfedbred[search]'")
    options = {"points": 9, "sampler": sampler, "halving": True}
    expected = halved if sampler == "random" else search(**options)
    into = {**options, "out": tmp_path, "resume": True}
    for times in (3, 4):
        with pytest.raises(Stopped, match=r"stopped \(time limit\) with \d of 9 points done"):
            search(**into, callbacks=[StopAfter(times)])
    assert list(tmp_path.glob("checkpoint-*"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "DATA", small_federation((60, 100)))  # a file that was rewritten
        with pytest.raises(pfedbred.SettingError, match="was run on other data"):
            search(**into)
    with pytest.raises(pfedbred.SettingError, match="was run with other settings: sweep"):
        search(**{**into, "points": 10})
    found = search(**into)
    assert kept(found.record()) == kept(expected.record())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.yaml", "heatmap.png", "sweep.json"]
    with pytest.raises(pfedbred.SettingError, match="holds a finished sweep"):
        search(**into)


@pytest.mark.full
def test_a_sampler_that_learns_is_told_every_batch(monkeypatch):
    pytest.importorskip("optuna", reason="needs Optuna: pip install 'pfedbred[search]'")
    events = []
    real = samplers.Logged

    def watched(sampler):
        events.append(real(sampler))
        return events[-1]

    monkeypatch.setattr(samplers, "Logged", watched)
    found = search(points=10, sampler="tpe")
    asked = [event["ask"] for event in events[0].events if "ask" in event]
    assert asked[:5] == [2, 2, 2, 2, 2]  # five batches
    told = {event["point"]: event["value"] for event in events[0].events if "point" in event}
    np.testing.assert_allclose([told[i] for i in range(10)], found.scores("personal"))
    assert ["ask" in event for event in events[0].events[:6]] == [True, False, False, True, False, False]


def test_optuna_finds_the_top_of_a_hill():
    pytest.importorskip("optuna", reason="needs Optuna: pip install 'pfedbred[search]'")

    def best(name):
        sampler = samplers.get({"x": Range(0.01, 100, log=True), "y": [1.0, 2.0]}, 40, name, seed=0)
        points = np.zeros((0, 2))
        while len(points) < 40:
            asked = sampler.ask(8)
            for place, (x, y) in enumerate(asked, len(points)):
                value = -((np.log10(x) - 1) ** 2) - (y - 2) ** 2
                sampler.tell(place, None if place == 3 else float(value), complete=place != 4)
            points = np.concatenate([points, asked])
        assert len(sampler.ask(1)) == 0
        return points[8:]

    drawn, learned = best("random"), best("tpe")
    apart = [np.median(np.abs(np.log10(each[:, 0]) - 1)) for each in (drawn, learned)]
    assert apart[1] < 0.5 * apart[0]
    assert learned[:, 1].mean() > drawn[:, 1].mean()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": "tpe"}, "the sampler tpe needs a number of points, such as --points 40"),
        ({"points": 0}, "points must be a whole number >= 1 and below"),
        ({"sampler": "tpee", "points": 3}, "unknown sampler 'tpee'; did you mean 'tpe'"),
    ],
)
def test_what_cannot_be_sampled_is_refused(options, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        search(**options)


def test_without_optuna_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(pfedbred.SettingError, match=r"needs Optuna: pip install 'pfedbred\[search\]'"):
        search(sampler="tpe", points=3)


# The command line ---------------------------------------------------------------------------------------------------

LINE = ("sweep", "--algorithm", "pfedme", "--clients", "5", "--rounds", "4", "--set", "R=1", "--set", "K=1")


@pytest.mark.full
def test_the_command_draws_halves_stops_and_resumes(call, tmp_path):
    search = ("--grid", "alpha_m=log:0.001:1", "--grid", "lam=5:30", "--random", "6", "--halving")
    code, out, err = call(*LINE, *search, "--out", "here", "--time-limit", "1s")
    assert code == 75, err
    assert err == "pfedbred: note: points are chosen on 20 % of each client's training samples; see --validation\n"
    assert "to resume: pfedbred sweep --resume --out here" in out
    code, out, err = call("sweep", "--resume", "--out", "here")
    assert (code, err) == (0, "")
    record = json.loads((tmp_path / "here" / "sweep.json").read_text())
    assert (record["chosen_on"], len(record["points"])) == ("validation", 6)
    assert re.search(r"G chosen \| +G last \| +G best \| +P chosen \| +P last \| +P best \|", out)
    code, out, err = call("sweep", "--resume", "--out", "here")
    assert (code, err) == (0, "")
    assert out.startswith("here: already finished\n")
    code, _, err = call(*LINE, *search, "--seeds", "2", "--resume", "--out", "here")
    assert (code, err) == (2, "pfedbred: here was run with other settings: seeds 1, now 2\n")
    code, out, err = call("sweep", "here/config.yaml", "--out", "again")
    assert code == 0, err
    again = json.loads((tmp_path / "again" / "sweep.json").read_text())
    assert kept(again) == kept(record)
    assert call("report", "here", "again")[0] == 0
    code, out, err = call(*LINE, "--grid", "lam=5,30", "--choose-on-test", "--out", "test")
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "test" / "sweep.json").read_text())["chosen_on"] == "test"
    assert "by P on test samples" in " ".join(out.split())


def same_files(left, right):
    """Two folders of the same sweep: they differ in their paths and in times only."""
    assert sorted(each.name for each in left.iterdir()) == sorted(each.name for each in right.iterdir())
    assert read_config(left / "config.yaml") == read_config(right / "config.yaml")
    assert (left / "heatmap.png").read_bytes() == (right / "heatmap.png").read_bytes()
    records = [json.loads((each / "sweep.json").read_text()) for each in (left, right)]
    assert kept(records[0]) == kept(records[1])


def test_a_sweep_from_python_writes_what_the_shell_writes_and_resumes(call, tmp_path):
    """An interrupted one is resumed by either."""
    experiment = pfedbred.Experiment(algorithm="pfedme", clients=5, rounds=4, settings={"R": 1, "K": 1})
    grid = {"alpha_m": Range(0.001, 1, log=True), "lam": [5, 30]}
    code, _, err = call(*LINE, "--grid", "alpha_m=log:1e-3:1.0", "--grid", "lam=5.0,30", "--random", "4", "--out", "a")
    assert code == 0, err
    pfedbred.sweep(experiment, grid, points=4, out=tmp_path / "b")
    same_files(tmp_path / "a", tmp_path / "b")
    for out in ("c", "d"):
        with pytest.raises(Stopped, match="with 0 of 4 points done"):
            pfedbred.sweep(experiment, grid, points=4, out=tmp_path / out, callbacks=[StopAfter(2)])
    with pytest.raises(pfedbred.SettingError, match="c is not empty; choose another folder, or overwrite it"):
        pfedbred.sweep(experiment, grid, points=4, out=tmp_path / "c")
    ended = []

    class Ended(pfedbred.Callback):
        def on_sweep_end(self, sweep):
            ended.append((tmp_path / "c" / "sweep.json").exists())

    pfedbred.sweep(experiment, grid, points=4, out=tmp_path / "c", resume=True, callbacks=[Ended()])
    assert ended == [True]
    code, _, err = call("sweep", "--resume", "--out", "d")
    assert (code, err) == (0, "")
    same_files(tmp_path / "a", tmp_path / "c")
    same_files(tmp_path / "a", tmp_path / "d")
    pfedbred.sweep(experiment, grid, points=4, out=tmp_path / "c", overwrite=True)
    same_files(tmp_path / "a", tmp_path / "c")


def test_a_plan_is_the_same_however_it_is_written(tmp_path):
    written = ["a=0.01:0.5:8", "b=5.0,15,30.0", "c=log:1e-1:100", "d=0:0.5", "e=0.1,0.30000000000000004,7"]
    tidy = ["a=0.01:0.5:8", "b=5,15,30", "c=log:0.1:100", "d=0:0.5", "e=0.1,0.30000000000000004,7"]
    assert space_texts(parse_space(written)) == tidy
    assert parse_space(tidy) == parse_space(written)
    earlier = {"grid": ["lam=5.0,15"], "points": 3, "sampler": None, "halving": False, "choose_on_test": False}
    given = SweepPlan({"lam": [5, 15]}, points=3, sampler="random")
    assert SweepPlan.read(earlier).plain() == given.plain()
    assert given.plain() != SweepPlan({"lam": [5, 15]}, points=3, metric="loss").plain()


def test_an_interruption_stops_a_sweep_too(tmp_path):
    with pytest.raises(Stopped, match=r"stopped \(time limit\) with 0 of 9 points done"):
        search(points=9, callbacks=[pfedbred.Interruption(time_limit=0)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resume": True}, "resume and overwrite need a folder"),
        ({"resume": True, "overwrite": True, "out": "here"}, "overwrite starts again and resume continues"),
    ],
)
def test_a_folder_is_resumed_or_replaced(options, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        search(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--grid", "lam=1:2"), "lam is a range: give the number of points to draw from it with --random N"),
        (("--grid", "lam=1,2", "--random", "3", "--sampler", "tpe"), "leave --points and --sampler out"),
        (("--grid", "lam=1,2", "--overwrite", "--resume"), "give one of them"),
        (("--resume",), "--resume needs --out"),
    ],
)
def test_a_mistake_is_one_line(call, options, words):
    code, _, err = call(*LINE, *options)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
