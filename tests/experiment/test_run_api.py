"""``pfedbred.run(..., out=...)``: the run folder of the command line, from Python."""

import json
import shutil

import pytest
from conftest import small_federation
from safetensors.numpy import load_file

import pfedbred
from pfedbred import Callback
from pfedbred.experiment.sweep import sweep


@pytest.fixture(scope="module")
def options(finished):
    """Those of the run that the command line made."""
    return {
        "dataset": str(finished / "own.npz"),
        "rounds": 2,
        "seeds": 2,
        "algorithm": "pfedme",
        "settings": {"R": 1, "K": 1},
    }


def lines(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in found]


def keys(value):
    return {name: keys(each) for name, each in value.items()} if isinstance(value, dict) else None


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def same_models(one, other):
    ours, theirs = (load_file(folder / "models.safetensors") for folder in (one, other))
    assert {name: each.tobytes() for name, each in ours.items()} == {
        name: each.tobytes() for name, each in theirs.items()
    }


class StopAfterFirst(Callback):
    def most_rounds(self, progress):
        return 1

    def stop_reason(self, progress):
        return "enough for today" if progress.round == 1 else None


def test_python_writes_the_folder_of_the_command_line(finished, options, tmp_path):
    run = pfedbred.run(**options, out=tmp_path / "run")
    assert run.folder == tmp_path / "run"
    shell = {each.name for each in (finished / "run").iterdir()} - {"client-1.safetensors"}
    assert {each.name for each in (tmp_path / "run").iterdir()} == shell
    assert lines(tmp_path / "run") == lines(finished / "run")
    assert keys(summary(tmp_path / "run")) == keys(summary(finished / "run"))
    for name in ("data", "global", "personal", "experiment", "rejected", "metric_info"):
        assert summary(tmp_path / "run")[name] == summary(finished / "run")[name]
    ours, theirs = ((each / "run" / "config.yaml").read_text().split("\n", 1)[1] for each in (tmp_path, finished))
    assert ours == theirs
    same_models(tmp_path / "run", finished / "run")


def test_an_interrupted_run_is_resumed_from_python(finished, options, tmp_path):
    """And by the command line: the folder is the same."""
    stopped = pfedbred.run(**options, out=str(tmp_path / "run"), callbacks=[StopAfterFirst()])
    assert (stopped.stopped, stopped.round) == ("enough for today", 1)
    assert not (tmp_path / "run" / "summary.json").exists()
    done = pfedbred.run(**options, out=tmp_path / "run", resume=True)
    assert (done.stopped, done.round) == (None, 2)
    assert lines(tmp_path / "run") == lines(finished / "run")
    same_models(tmp_path / "run", finished / "run")


@pytest.mark.full
def test_a_finished_run_is_given_more_rounds_from_python(finished, options, tmp_path):
    """Options that are not given are those of the run, as in the shell."""
    shutil.copytree(finished / "run", tmp_path / "run")
    done = pfedbred.run(out=tmp_path / "run", resume=True, rounds=3)
    assert ([point.round for point in done.points], done.experiment.seeds) == ([1, 2, 3], 2)
    whole = pfedbred.run(**{**options, "rounds": 3}, out=tmp_path / "whole")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    assert whole.experiment == done.experiment
    with pytest.raises(pfedbred.SettingError, match="was run with other settings: batch_size 20, now 7"):
        pfedbred.run(out=tmp_path / "run", resume=True, rounds=4, batch_size=7)


@pytest.mark.full
def test_the_command_line_resumes_a_run_from_python(finished, options, tmp_path, call):
    pfedbred.run(**options, out=tmp_path / "run", callbacks=[StopAfterFirst()])
    code, _, err = call("run", "--resume", "--out", "run")
    assert code == 0, err
    assert lines(tmp_path / "run") == lines(finished / "run")
    same_models(tmp_path / "run", finished / "run")


def test_without_out_nothing_is_written(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pfedbred.run(**options, callbacks=[StopAfterFirst()]).folder is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"resume": True}, "holds a finished run: give it more rounds than 2, read it with pfedbred.RunRecord.read"),
        ({}, "is not empty"),
        ({"resume": True, "overwrite": True}, "overwrite starts again and resume continues: give one of them"),
    ],
)
def test_a_finished_run_is_left_alone(finished, options, more, words, tmp_path):
    shutil.copytree(finished / "run", tmp_path / "run")
    before = {each.name: each.read_bytes() for each in (tmp_path / "run").iterdir()}
    with pytest.raises(pfedbred.SettingError) as refused:
        pfedbred.run(**options, out=tmp_path / "run", **more)
    assert words in str(refused.value)
    assert {each.name: each.read_bytes() for each in (tmp_path / "run").iterdir()} == before


def test_a_folder_with_other_files_is_left_alone(options, tmp_path):
    (tmp_path / "notes.txt").touch()
    for more in ({}, {"resume": True}):
        with pytest.raises(pfedbred.SettingError, match="is not empty"):
            pfedbred.run(**options, out=tmp_path, **more)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("more", [{"resume": True}, {"overwrite": True}])
def test_resume_and_overwrite_need_a_folder(options, more):
    with pytest.raises(pfedbred.SettingError, match=r"need a run folder: give out=\.\.\."):
        pfedbred.run(**options, **more)


def test_a_dataset_and_a_federation_are_not_both_given(options):
    for dataset in ("mnist", small_federation()):
        with pytest.raises(pfedbred.SettingError, match="give either a dataset or a federation, not both"):
            pfedbred.run(**{**options, "dataset": dataset, "federation": small_federation()})


def test_the_name_of_a_dataset_is_no_experiment():
    with pytest.raises(pfedbred.SettingError, match=r"run takes an Experiment or keywords, such as pfedbred.run\(data"):
        pfedbred.run("digits", rounds=1)
    with pytest.raises(pfedbred.SettingError, match="sweep takes an Experiment"):
        pfedbred.sweep("digits", {"lam": [1.0]})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"federation": "digits"}, r"federation takes data, such as pfedbred.load\('digits'\), not 'digits'"),
        ({"checkpoint_every": -2}, "checkpoint_every must be a whole number of rounds >= 0, not -2"),
        ({"checkpoint_every": 1.5}, "checkpoint_every must be a whole number of rounds >= 0, not 1.5"),
        ({"callbacks": pfedbred.Patience(3)}, r"callbacks takes a list, such as callbacks=\[pfedbred.Patience\(3\)\]"),
        ({"callbacks": [print]}, "a callback must be a pfedbred.Callback, not <built-in function print>"),
        ({"callbacks": [StopAfterFirst]}, r"give an object: StopAfterFirst\(...\)"),
        ({"out": 123}, "out takes the path of a folder, such as 'runs/mine', not 123"),
    ],
    ids=["federation", "negative", "fraction", "no list", "function", "class", "out"],
)
def test_what_run_cannot_use_is_refused_before_anything_is_written(given, message, tmp_path):
    with pytest.raises(pfedbred.SettingError, match=message):
        pfedbred.run(**{"rounds": 1, "out": tmp_path / "run", **given})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("grid", "more", "message"),
    [
        ({"alpha": 0.1}, {}, "the grid of alpha must be a list of values or a pfedbred.Range, not 0.1"),
        ({"alpha": []}, {}, r"the grid of alpha must be a list of values or a pfedbred.Range, not \[\]"),
        ([0.1], {}, r"a grid maps settings to their values, such as \{'eta': \[0.01, 0.1\]\}, not \[0.1\]"),
        ({"alpha": [0.1]}, {"callbacks": [print]}, "a callback must be a pfedbred.Callback"),
        ({"alpha": [0.1]}, {"out": 123}, "out takes the path of a folder"),
    ],
    ids=["number", "empty", "list", "callback", "out"],
)
def test_what_sweep_cannot_use_is_refused_in_one_line(grid, more, message):
    with pytest.raises(pfedbred.SettingError, match=message):
        sweep(pfedbred.Experiment(algorithm="fedavg", rounds=1), grid, **more)


def test_a_time_limit_is_seconds_or_a_text():
    assert pfedbred.Interruption("2h", started=5.0).end == pfedbred.Interruption(7200, started=5.0).end == 7205.0
    with pytest.raises(pfedbred.SettingError, match="a time limit must look like 90s"):
        pfedbred.Interruption("soon")


def test_an_experiment_and_its_fields_are_not_both_given(options):
    with pytest.raises(TypeError, match="either an experiment or its fields"):
        pfedbred.run(pfedbred.Experiment(**options), rounds=3)


@pytest.mark.full
def test_custom_data_is_marked_as_such(tmp_path):
    """Whether it is given beside the fields or beside an experiment, whose dataset it replaces."""
    from support.custom import federation

    given = {"algorithm": "fedavg", "rounds": 1, "settings": {"R": 1}}
    for name, run in {
        "fields": lambda out: pfedbred.run(**given, federation=federation(), out=out),
        "experiment": lambda out: pfedbred.run(pfedbred.Experiment(**given), federation=federation(), out=out),
    }.items():
        run(tmp_path / name).save(tmp_path / f"{name}-saved")
        for folder in (name, f"{name}-saved"):
            written = (tmp_path / folder / "config.yaml").read_text()
            assert "dataset: <federation, not importable>" in written
            assert "Run it again from the program that made it" in written
            assert "pfedbred run" not in written


def test_a_replaced_experiment_stays_checked():
    checked = pfedbred.Experiment.from_mapping({"algorithm": "fedavg", "settings": {"R": 1}})
    other = checked.replaced(split_seed=7, store="memory")
    assert (other.split_seed, other.store, other.settings) == (7, "memory", checked.settings)
    assert other.checked() is other
    elsewhere = other.on(small_federation())
    assert (elsewhere.split_seed, elsewhere.store, elsewhere.clients) == (7, "memory", None)
    unchecked = pfedbred.Experiment().replaced(split_seed=7)
    assert unchecked.checked() is not unchecked


def test_a_checked_experiment_runs_on_other_data():
    """What its own dataset decided, such as the number of clients, does not hold it there; what was asked for does."""
    other = small_federation()
    checked = pfedbred.Experiment.from_mapping({"algorithm": "fedavg", "rounds": 1, "settings": {"R": 1}})
    assert (checked.clients, checked.aggregated) == (20, 4)
    finished = pfedbred.run(checked, federation=other)
    assert finished.experiment.aggregated == 4
    assert finished.personal_model(3)["output"]["weight"].shape == (other.classes, *other.shape)
    swept = sweep(checked, {"alpha": [0.1, 0.2]}, federation=other)
    assert swept.experiment.dataset is other
    with pytest.raises(pfedbred.SettingError, match="is for 7 clients, the federation has 4"):
        pfedbred.run(pfedbred.Experiment.from_mapping({"clients": 7}), federation=other)
