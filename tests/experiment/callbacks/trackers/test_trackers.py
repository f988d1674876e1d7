"""Trackers: what the libraries' own readers find is what the run measured, once, whatever happened to the run."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.custom import federation

import pfedbred
from pfedbred import Callback, trackers
from pfedbred.experiment.building import build
from pfedbred.experiment.callbacks.trackers.content import flattened, measured, run_figures
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.resume import open_folder
from pfedbred.experiment.run import FolderOptions, run_into
from pfedbred.runs import layout

# MLflow still uses a part of SQLAlchemy that a later version will not have.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")

SEEDS = (3, 4)
FILES = {"summary.json", "config.yaml", "metrics.jsonl", "curves.png"}


@functools.cache
def built(eval_every=1, alpha=0.05):
    given = {"aggregated": 2, "batch_size": 3, "settings": {"R": 2, "alpha": alpha}, "seed": SEEDS[0], "seeds": 2}
    options = {"algorithm": "fedavg", "rounds": 4, "eval_every": eval_every, "diagnostics": True}
    return build(Experiment(federation(), **options, **given))


def into(folder, *callbacks, resume=False, every=None, **options):
    with open_folder(folder, resume=resume):
        return run_into(folder, built(**options), callbacks, FolderOptions(every, resume))


class Recorded(trackers.Tracker):
    """Keeps what it is told."""

    name = "recorded"

    def __init__(self, folder=None, fails=()):
        super().__init__(folder)
        self.calls, self.starts, self.evaluations, self._fails = [], [], [], fails

    def _called(self, name, *what):
        self.calls.append((name, *what))
        if name in self._fails or (name, *what) in self._fails:
            raise ConnectionError(f"cannot\n{name}")

    def open(self, start):
        self.starts.append(start)
        self._called("open", start.id)
        return "an id"

    def record(self, evaluation):
        self.evaluations.append(evaluation)
        self._called("record", evaluation.round)

    def finish(self, figures, files):
        self.figures = figures
        self._called("finish", {file.name for file in files})

    def close(self, ending):
        self._called("close", ending)


class StopAfter(Callback):
    """Interrupts the run after a round."""

    def __init__(self, round_):
        self._round = round_

    def most_rounds(self, progress):
        return 1

    def stop_reason(self, progress):
        return "enough" if progress.round == self._round else None


class DieAt(Callback):
    """Ends the run with an error, after the callbacks before it have seen the round."""

    def __init__(self, round_):
        self._round = round_

    def on_evaluation(self, progress, point):
        if point.round == self._round:
            raise RuntimeError("died")


def curves(run):
    """Of every metric of the run: its name, and its values by evaluation and seed."""
    for model in ("global", "personal"):
        for part, scores in run.points[0].scores.of(model).parts.items():
            for metric in scores.values:
                yield f"{model}/{part}/{metric}", run.curve(metric, model, part)


def client_values(run, model):
    """Of every evaluation, the accuracies of all clients and seeds that have one."""
    for point in run.points:
        values = point.scores.of(model).test.clients["accuracy"].ravel()
        yield values[np.isfinite(values)]


# What every tracker does


def test_a_tracker_is_told_of_everything(tmp_path):
    tracker = Recorded()
    run = into(tmp_path / "mine", tracker)
    assert tracker.calls == [
        ("open", None),
        *(("record", round_) for round_ in (1, 2, 3, 4)),
        ("finish", FILES),
        ("close", "finished"),
    ]
    best, last = (run.record().figure(each, "accuracy", "personal") for each in ("best", "last"))
    assert tracker.figures["personal/best/accuracy"] == np.mean(best)
    assert tracker.figures["personal/last/accuracy"] == np.mean(last)
    assert not [name for name in tracker.figures if "chosen" in name]  # without validation samples
    (start,) = tracker.starts
    assert (start.folder, start.name, start.group) == (tmp_path / "mine" / "tracking" / "recorded", "mine", None)
    assert start.folder.is_dir()
    assert (start.settings["settings.alpha"], start.settings["rounds"], start.seeds) == (0.05, 4, list(SEEDS))
    names = {"screening/rejected", "screening/skipped"}
    names |= {f"diagnostics/{name}" for name in run.points[0].diagnostics}
    assert len(names) > 2
    for name, values in curves(run):
        names.add(name)
        np.testing.assert_array_equal([each.values[name] for each in tracker.evaluations], values)
        if np.isfinite(values).all():
            np.testing.assert_allclose([each.means()[name] for each in tracker.evaluations], values.mean(axis=1))
            np.testing.assert_array_equal([each.of_seed(1)[name] for each in tracker.evaluations], values[:, 1])
    assert {"personal/train/loss", "global/test/accuracy", "personal/test/worst_decile"} <= names
    assert set(tracker.evaluations[0].values) == names


def test_numbers_that_are_not_finite_are_left_out():
    point = into_memory().points[0]
    test = point.scores.personal.test
    test.values["loss"][0] = np.nan
    test.clients["accuracy"][0, 0] = np.nan
    found = measured(point, [0, 1], "accuracy")
    assert "personal/test/loss" not in found.means()
    assert "personal/test/loss" not in found.of_seed(0)
    assert found.of_seed(1)["personal/test/loss"] == test.values["loss"][1]
    assert {"seed-0/personal/test/loss", "seed-1/personal/test/loss"} & set(found.numbers()) == {
        "seed-1/personal/test/loss"
    }
    assert not [name for name in found._replace(seeds=[0]).numbers() if name.startswith("seed-")]
    assert found.clients["personal/test/clients/accuracy"].size == test.clients["accuracy"].size - 1


def into_memory(*callbacks):
    given = {"aggregated": 2, "batch_size": 3, "settings": {"R": 2}, "seeds": 2, "rounds": 1, "algorithm": "fedavg"}
    return pfedbred.run(federation=federation(), callbacks=callbacks, **given)


def test_settings_are_flat():
    nested = {"a": 1, "b": {"c": "x", "d": {"e": True}}, "f": None, "g": [1, "y"]}
    assert flattened(nested) == {"a": 1, "b.c": "x", "b.d.e": True, "g": '[1, "y"]'}


def test_a_run_in_memory_is_tracked_in_a_given_folder(tmp_path):
    tracker = Recorded(tmp_path / "there")
    into_memory(tracker)
    assert tracker.starts[0].folder == tmp_path / "there"
    assert tracker.calls == [("open", None), ("record", 1), ("finish", set()), ("close", "finished")]
    with pytest.raises(pfedbred.SettingError, match=r"recorded needs a folder .*: give it one, or run with out="):
        into_memory(Recorded())


@pytest.mark.parametrize("fails", ["open", ("record", 2), "finish", "close"])
def test_a_tracker_that_fails_costs_one_line_and_not_the_run(fails, tmp_path, capsys):
    tracker = Recorded(fails=[fails])
    run = into(tmp_path / "run", tracker)
    assert run.round == 4
    assert layout.finished(tmp_path / "run")
    name = fails if isinstance(fails, str) else fails[0]
    expected = f"pfedbred: warning: recorded stopped recording this run: ConnectionError: cannot {name}\n"
    assert capsys.readouterr().err == expected
    assert [name for name, *_ in tracker.calls].count("record") == {"open": 0, "record": 2}.get(name, 4)
    assert (tracker.calls[-1][0] == "close") == (name != "open")


def test_a_tracker_that_fails_again_says_nothing_more(tmp_path, capsys):
    into(tmp_path / "run", Recorded(fails=[("record", 2), "close"]))
    assert capsys.readouterr().err.count("\n") == 1


def test_what_a_failed_tracker_missed_is_recorded_when_the_run_is_resumed(tmp_path, capsys):
    into(tmp_path / "run", Recorded(fails=[("record", 2)]), StopAfter(3))
    tracker = Recorded()
    into(tmp_path / "run", tracker, resume=True)
    assert tracker.calls[:4] == [("open", "an id"), ("record", 2), ("record", 3), ("record", 4)]


def test_a_run_that_was_not_tracked_before_is_recorded_from_its_start(tmp_path):
    into(tmp_path / "run", StopAfter(2))
    tracker = Recorded()
    into(tmp_path / "run", tracker, resume=True)
    assert tracker.calls[:5] == [("open", None), *(("record", round_) for round_ in (1, 2, 3, 4))]


def test_a_run_that_dies_is_closed_as_failed_and_continued(tmp_path):
    tracker = Recorded()
    with pytest.raises(RuntimeError, match="died"):
        into(tmp_path / "run", tracker, DieAt(3), every=2)
    assert tracker.calls[-1] == ("close", "failed")
    again = Recorded()
    run = into(tmp_path / "run", again, resume=True)  # round 3 is trained again
    assert [point.round for point in run.points] == [1, 2, 3, 4]
    assert again.calls == [("open", "an id"), ("record", 4), ("finish", FILES), ("close", "finished")]


def test_a_damaged_note_stops_the_tracker_alone(tmp_path, capsys):
    into(tmp_path / "run", Recorded(), StopAfter(2))
    (tmp_path / "run" / "tracking" / "recorded.json").write_text('{"id": 3}')
    assert into(tmp_path / "run", Recorded(), resume=True).round == 4
    assert "recorded stopped recording this run: SettingError" in capsys.readouterr().err


def test_one_process_of_several_records(tmp_path, monkeypatch):
    monkeypatch.setattr("pfedbred.experiment.callbacks.trackers.base.jax.process_index", lambda: 1)
    tracker = Recorded()
    into(tmp_path / "run", tracker)
    assert tracker.calls == []


def test_overwriting_a_run_removes_what_was_recorded(tmp_path):
    into(tmp_path / "run", Recorded())
    mine = tmp_path / "run" / "tracking" / "of-mine.txt"
    assert mine.parent.is_dir()
    layout.new_folder(tmp_path / "run", overwrite=True)
    assert not mine.parent.exists()


# The three of them, read back by their own libraries


def once(found, values):
    """Compares (round, value) pairs that were found with what was measured in rounds 1, 2, ..."""
    assert [round_ for round_, _ in found] == list(range(1, len(values) + 1))
    np.testing.assert_allclose([value for _, value in found], values, rtol=1e-6)  # event files have single precision


def alike(found, values):
    """Compares numbers of clients: of a resumed run, those in metrics.jsonl have four digits."""
    np.testing.assert_allclose(found, values, atol=2e-4)


def read_tensorboard(folder):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard reads what was written"
    )
    return reader.EventAccumulator(str(folder), dict.fromkeys(reader.DEFAULT_SIZE_GUIDANCE, 0)).Reload()


def check_tensorboard(run):
    folder = run.folder / "tracking" / "tensorboard"
    mean, *seeds = [read_tensorboard(each) for each in (folder, *(folder / f"seed-{seed}" for seed in SEEDS))]
    for name, values in curves(run):
        for found, expected in zip((mean, *seeds), (values.mean(axis=1), *values.T), strict=True):
            if np.isfinite(expected).all():
                once([(each.step, each.value) for each in found.Scalars(name)], expected)
    for model in ("global", "personal"):
        found = mean.Histograms(f"{model}/test/clients/accuracy")
        assert [each.step for each in found] == [1, 2, 3, 4]
        for each, values in zip(found, client_values(run, model), strict=True):
            histogram = each.histogram_value
            assert histogram.num == sum(histogram.bucket) == values.size > 4
            alike([histogram.min, histogram.max, histogram.sum], [min(values), max(values), sum(values)])
    return mean


def test_tensorboard_reads_back_what_the_run_measured(tmp_path):
    run = into(tmp_path / "run", trackers.TensorBoard())
    found = check_tensorboard(run)
    (picture,) = found.Images("curves")
    assert (picture.step, picture.encoded_image_string[:4]) == (4, b"\x89PNG")
    assert picture.width > 300
    (text,) = found.Tensors("config.yaml/text_summary")
    shown = text.tensor_proto.string_val[0].decode()
    assert shown.replace("    ", "") == (run.folder / "config.yaml").read_text().replace("    ", "")
    from tensorboard.plugins.hparams import plugin_data_pb2

    def hparams(tag):
        content = found.SummaryMetadata(f"_hparams_/{tag}").plugin_data.content
        return plugin_data_pb2.HParamsPluginData.FromString(content)

    settings = hparams("session_start_info").session_start_info.hparams
    assert settings["settings.alpha"].number_value == 0.05
    assert settings["algorithm"].string_value == "fedavg"
    shown = {each.name.tag for each in hparams("experiment").experiment.metric_infos}
    assert shown == {"global/test/accuracy", "personal/test/accuracy"}
    for name, value in run_figures(run).items():
        (figure,) = found.Scalars(name)
        assert (figure.step, figure.value) == (4, pytest.approx(value))
    assert hparams("session_end_info").session_end_info.status == 1  # success


def test_event_files_of_the_same_second_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorboardX.event_file_writer.time", SimpleNamespace(time=lambda: 1e9))
    into(tmp_path / "run", trackers.TensorBoard(), StopAfter(2))
    check_tensorboard(into(tmp_path / "run", trackers.TensorBoard(), resume=True))


def read_mlflow(run):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{run.folder / 'tracking' / 'mlflow' / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("pfedbred").experiment_id])
    return client, found


def check_mlflow(run):
    client, found = read_mlflow(run)

    def history(name):
        return [(each.step, each.value) for each in client.get_metric_history(found.info.run_id, name)]

    for name, values in curves(run):
        prefixes = ("", *(f"seed-{seed}/" for seed in SEEDS))
        for prefix, expected in zip(prefixes, (values.mean(axis=1), *values.T), strict=True):
            if np.isfinite(expected).all():
                once(history(prefix + name), expected)
    for model in ("global", "personal"):
        expected = [np.quantile(values, [0, 0.25, 0.5, 1]) for values in client_values(run, model)]
        for q, values in zip(("q000", "q025", "q050", "q100"), np.transpose(expected), strict=True):
            rounds, found_values = zip(*history(f"{model}/test/clients/accuracy/{q}"), strict=True)
            assert rounds == (1, 2, 3, 4)
            alike(found_values, values)
    return client, found


@pytest.mark.full
def test_mlflow_reads_back_what_the_run_measured(tmp_path):
    run = into(tmp_path / "run", trackers.MLflow())
    client, found = check_mlflow(run)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params["settings.alpha"] == "0.05"
    assert found.data.params["algorithm"] == "fedavg"
    figures = run_figures(run)
    assert {name: found.data.metrics[name] for name in figures} == figures
    assert {each.path for each in client.list_artifacts(found.info.run_id)} == FILES
    kept = client.download_artifacts(found.info.run_id, "summary.json", str(tmp_path))
    assert Path(kept).read_text() == (run.folder / "summary.json").read_text()
    assert (run.folder / "tracking" / "mlflow" / "artifacts").is_dir()


@pytest.mark.full
@pytest.mark.slow
def test_mlflow_records_where_its_variable_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'all.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    monkeypatch.chdir(tmp_path)
    tracker = trackers.MLflow()
    into_memory(tracker)
    into(tmp_path / "run", trackers.MLflow())
    assert not (tmp_path / "run" / "tracking" / "mlflow").exists()
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    found = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert {each.info.run_name for each in found} == {"fedavg", "run"}


@pytest.mark.full
@pytest.mark.slow
def test_a_server_that_is_not_there_does_not_cost_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert into(tmp_path / "run", trackers.MLflow()).round == 4
    lines = [line for line in capsys.readouterr().err.splitlines() if "mlflow stopped recording this run" in line]
    assert len(lines) == 1


@pytest.fixture
def wandb():
    """Its library, whose background process is ended after the test."""
    library = pytest.importorskip("wandb", reason="wandb is not installed")
    yield library
    library.teardown()


def read_wandb(run):
    """What each part of the run has logged, in the order in which they were written."""
    from support.wandb_file import read_records

    files = sorted((run.folder / "tracking" / "wandb" / "wandb").glob("offline-run-*/*.wandb"))
    return [read_records(each) for each in files]


def check_wandb(run):
    from support.wandb_file import history

    parts = read_wandb(run)
    logged = {}
    for part in map(history, parts):
        assert not set(part) & set(logged)  # no step twice
        logged.update(part)
    assert list(logged) == [1, 2, 3, 4, 5]  # the last has the picture
    for name, values in curves(run):
        prefixes = ("", *(f"seed-{seed}/" for seed in SEEDS))
        for prefix, expected in zip(prefixes, (values.mean(axis=1), *values.T), strict=True):
            if np.isfinite(expected).all():
                once([(step, each[prefix + name]) for step, each in logged.items() if step < 5], expected)
    for model in ("global", "personal"):
        for step, values in enumerate(client_values(run, model), 1):
            found = logged[step][f"{model}/test/clients/accuracy"]
            assert found["_type"] == "histogram"
            assert sum(found["values"]) == values.size
            alike([found["bins"][0], found["bins"][-1]], [min(values), max(values)])
            mean = np.average(found["bins"][:-1] + np.diff(found["bins"]) / 2, weights=found["values"])
            assert abs(mean - np.mean(values)) < np.diff(found["bins"])[0]
    return parts, logged


@pytest.mark.full
def test_wandb_reads_back_what_the_run_measured(tmp_path, monkeypatch, wandb):
    from support.wandb_file import summary

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_PROJECT", "of-mine")
    run = into(tmp_path / "run", trackers.Wandb())
    (records,), logged = check_wandb(run)
    about = next(each.run for each in records if each.WhichOneof("record_type") == "run")
    assert (about.project, about.display_name) == ("of-mine", "run")
    config = {each.key: each.value_json for each in about.config.update}
    assert (config["settings.alpha"], config["algorithm"]) == ("0.05", '"fedavg"')
    assert logged[5]["curves"]["_type"] == "image-file"
    assert run_figures(run).items() <= summary(records).items()
    (artifact,) = [each.artifact for each in records if each.WhichOneof("record_type") == "artifact"]
    assert {each.path for each in artifact.manifest.contents} == FILES


# Sweeps: each point is a run of its own

POINTS = ["point 0: alpha=0.01", "point 1: alpha=0.3"]


@functools.cache
def swept(*callbacks):
    given = {"aggregated": 2, "batch_size": 3, "settings": {"R": 2}, "seed": SEEDS[0], "seeds": 2, "rounds": 2}
    experiment = Experiment(federation(), algorithm="fedavg", **given)
    return pfedbred.sweep(experiment, {"alpha": [0.01, 0.3]}, callbacks=callbacks)


def tell(found, tracker, folder):
    """Tells a tracker of the points of a sweep in that folder, as the command does."""
    tracker.group = trackers.Group("mine", folder)
    for number in range(len(found.points)):
        tracker.on_point(found, number)
    return tracker


def point_curves(found, number):
    """Of a point: the name of each metric, and its values by evaluation, as means over seeds."""
    for model, test in (("global", found.global_), ("personal", found.personal)):
        yield f"{model}/test/accuracy", test[number].mean(axis=1)
        yield f"{model}/validation/accuracy", found.validation[model][number].mean(axis=1)


def point_figures(found, number):
    return {
        f"{model}/{figure}/accuracy": pytest.approx(float(found.figure(figure, model)[number].mean()))
        for model in ("global", "personal")
        for figure in ("chosen", "last", "best")
    }


def test_each_point_of_a_sweep_is_a_run(tmp_path):
    tracker = Recorded(tmp_path / "there")
    found = swept(tracker)
    whole = [("open", None), ("record", 1), ("record", 2), ("finish", set()), ("close", "finished")]
    assert tracker.calls == 2 * whole
    assert [start.name for start in tracker.starts] == POINTS
    assert [start.settings["settings.alpha"] for start in tracker.starts] == [0.01, 0.3]
    assert {start.settings["settings.R"] for start in tracker.starts} == {2}
    assert tracker.figures == point_figures(found, 1)
    for number, evaluations in enumerate((tracker.evaluations[:2], tracker.evaluations[2:])):
        for name, values in point_curves(found, number):
            np.testing.assert_allclose([each.means()[name] for each in evaluations], values)
    with pytest.raises(pfedbred.SettingError, match="recorded needs a folder to write into"):
        Recorded().on_point(found, 0)


def test_a_point_is_recorded_once_however_often_the_sweep_is_resumed(tmp_path, capsys):
    tell(swept(), Recorded(fails=["finish"]), tmp_path)
    assert "recorded stopped recording this run: ConnectionError" in capsys.readouterr().err
    assert [name for name, *_ in tell(swept(), Recorded(), tmp_path).calls].count("open") == 2
    assert tell(swept(), Recorded(), tmp_path).calls == []


def test_tensorboard_has_a_folder_for_each_point(tmp_path):
    found = swept()
    tell(found, trackers.TensorBoard(), tmp_path)
    folders = [tmp_path / "tracking" / "tensorboard" / each for each in ("point-0-alpha-0.01", "point-1-alpha-0.3")]
    for number, folder in enumerate(folders):
        read = read_tensorboard(folder)
        for name, values in point_curves(found, number):
            once([(each.step, each.value) for each in read.Scalars(name)], values)
        for name, value in point_figures(found, number).items():
            assert [each.value for each in read.Scalars(name)] == [value]


@pytest.mark.full
def test_mlflow_has_a_run_for_each_point(tmp_path):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    from mlflow.tracking import MlflowClient

    found = swept()
    tell(found, trackers.MLflow(), tmp_path)
    client = MlflowClient(f"sqlite:///{tmp_path / 'tracking' / 'mlflow' / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("pfedbred").experiment_id])
    for number, run in enumerate(sorted(runs, key=lambda each: each.info.run_name)):
        assert (run.info.run_name, run.info.status, run.data.tags["group"]) == (POINTS[number], "FINISHED", "mine")
        assert run.data.params["settings.alpha"] == ("0.01", "0.3")[number]
        figures = point_figures(found, number)
        assert {name: run.data.metrics[name] for name in figures} == figures
        history = client.get_metric_history(run.info.run_id, "personal/test/accuracy")
        once([(each.step, each.value) for each in history], found.personal[number].mean(axis=1))


@pytest.mark.full
def test_wandb_has_a_run_for_each_point(tmp_path, wandb):
    from support.wandb_file import history, read_records, summary

    found = swept()
    tell(found, trackers.Wandb(), tmp_path)
    files = (tmp_path / "tracking" / "wandb" / "wandb").glob("offline-run-*/*.wandb")
    by_name = {}
    for records in map(read_records, files):
        (about,) = [each.run for each in records if each.WhichOneof("record_type") == "run"]
        by_name[about.display_name] = (about, records)
    assert sorted(by_name) == POINTS
    for number, name in enumerate(POINTS):
        about, records = by_name[name]
        config = {each.key: each.value_json for each in about.config.update}
        assert (about.run_group, config["settings.alpha"]) == ("mine", ("0.01", "0.3")[number])
        logged = [(step, each["personal/test/accuracy"]) for step, each in history(records).items()]
        once(logged, found.personal[number].mean(axis=1))
        figures = point_figures(found, number)
        assert {each: summary(records)[each] for each in figures} == figures


# Resuming, with each of them


CHECKS = {
    "tensorboard": (trackers.TensorBoard, check_tensorboard),
    "mlflow": (trackers.MLflow, check_mlflow),
    "wandb": (trackers.Wandb, check_wandb),
}


@pytest.mark.parametrize("ends", [StopAfter(2), DieAt(3)], ids=["stopped", "died"])
@pytest.mark.parametrize(
    "name", [pytest.param("tensorboard"), *(pytest.param(each, marks=pytest.mark.full) for each in ("mlflow", "wandb"))]
)
def test_a_resumed_run_continues_its_recording(name, ends, tmp_path, request):
    if name == "wandb":
        request.getfixturevalue("wandb")
    tracker, check = CHECKS[name]
    try:
        into(tmp_path / "run", tracker(), ends, every=2)
    except RuntimeError:
        assert isinstance(ends, DieAt)  # after a round that its checkpoint does not have
    run = into(tmp_path / "run", tracker(), resume=True)
    assert [point.round for point in run.points] == [1, 2, 3, 4]
    found = check(run)
    if name == "mlflow":
        assert found[1].info.status == "FINISHED"
    if name == "wandb":
        ids = {each.run.run_id for part in found[0] for each in part if each.WhichOneof("record_type") == "run"}
        assert (len(found[0]), len(ids)) == (2, 1)


@pytest.mark.parametrize("name", ["tensorboard", pytest.param("mlflow", marks=pytest.mark.full)])
def test_a_run_that_dies_before_a_round_is_noted_has_it_once(name, tmp_path):
    tracker, check = CHECKS[name]
    into(tmp_path / "run", tracker(), StopAfter(3))
    note = tmp_path / "run" / "tracking" / f"{name}.json"
    kept = json.loads(note.read_text())
    assert kept["round"] == 3
    note.write_text(json.dumps({**kept, "round": 2}))
    check(into(tmp_path / "run", tracker(), resume=True))


# The command line


@pytest.fixture
def own(call, tmp_path):
    """``own("run", ...)`` runs a command on a small file of data in an empty folder."""
    x = np.random.default_rng(0).normal(size=(30, 3))
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(30) % 3, client=np.arange(30) % 4)
    small = ["--dataset", "own.npz", "--rounds", 2, "--set", "R=1"]
    return lambda command, *options: call(command, *small, *options)


def test_run_tracks(own, tmp_path):
    code, _, err = own("run", "--algorithm", "fedavg", "--out", "a", "--track", "tensorboard")
    assert (code, err) == (0, "")
    found = read_tensorboard(tmp_path / "a" / "tracking" / "tensorboard")
    assert [each.step for each in found.Scalars("personal/test/accuracy")] == [1, 2]
    assert not list((tmp_path / "a" / "tracking" / "tensorboard").glob("seed-*"))  # there is one
    code, _, err = own("run", "--algorithm", "fedavg", "--out", "a", "--track", "tensorboard", "--overwrite")
    found = read_tensorboard(tmp_path / "a" / "tracking" / "tensorboard")
    assert (code, len(found.Scalars("personal/test/accuracy"))) == (0, 2)


@pytest.mark.full
@pytest.mark.slow
def test_compare_tracks_each_run_with_several(own, tmp_path):
    code, _, err = own("compare", "--algorithms", "fedavg,local", "--out", "b", "--track", "tensorboard, mlflow")
    assert (code, err) == (0, "")
    for name in ("fedavg", "local"):
        notes = {each.name for each in (tmp_path / "b" / name / "tracking").iterdir()}
        assert notes == {"tensorboard.json", "mlflow.json"}
        found = read_tensorboard(tmp_path / "b" / "tracking" / "tensorboard" / name)
        assert [each.step for each in found.Scalars("personal/test/accuracy")] == [1, 2]
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'b' / 'tracking' / 'mlflow' / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("pfedbred").experiment_id])
    assert {each.info.run_name: each.data.params["algorithm"] for each in runs} == {
        "fedavg": "fedavg",
        "local": "local",
    }
    assert {each.data.tags["group"] for each in runs} == {"b"}


@pytest.mark.full
def test_a_sweep_tracks_its_points(own, tmp_path):
    options = ("--algorithm", "fedavg", "--grid", "alpha=0.01,0.1", "--out", "c", "--track", "tensorboard")
    code, _, err = own("sweep", *options)
    assert code == 0, err
    folder = tmp_path / "c" / "tracking" / "tensorboard"
    assert {each.name for each in folder.iterdir()} == {"point-0-alpha-0.01", "point-1-alpha-0.1"}
    assert len(read_tensorboard(folder / "point-1-alpha-0.1").Scalars("personal/validation/accuracy")) == 2
    record = json.loads((tmp_path / "c" / "sweep.json").read_text())["points"][1]
    (shown,) = read_tensorboard(folder / "point-1-alpha-0.1").Scalars("personal/chosen/accuracy")
    assert shown.value == pytest.approx(record["measured"]["figures"]["personal"]["chosen"]["mean"])
    assert own("sweep", *options, "--overwrite")[0] == 0
    assert len(list((folder / "point-0-alpha-0.01").iterdir())) == 1


def test_the_command_to_resume_names_the_trackers(own):
    done = own("run", "--algorithm", "fedavg", "--out", "a", "--track", "tensorboard", "--time-limit", "1s")
    assert done[0] == 75
    assert "to resume: pfedbred run --resume --out a --track tensorboard\n" in done[1]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("tensorbord", "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        ("", "unknown tracker ''; choose one of: tensorboard, mlflow, wandb"),
        ("tensorboard,tensorboard", "a tracker is named twice: tensorboard, tensorboard"),
    ],
)
def test_wrong_names_are_one_line(names, words, own, tmp_path):
    assert own("run", "--out", "a", "--track", names) == (2, "", f"pfedbred: {words}\n")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("name", "module"),
    [("tensorboard", "tensorboardX.event_file_writer"), ("mlflow", "mlflow.entities"), ("wandb", "wandb")],
)
def test_a_library_that_is_missing_is_one_line(name, module, own, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    expected = f"pfedbred: tracking with {name} needs {module}: pip install 'pfedbred[{name}]'\n"
    assert own("run", "--out", "a", "--track", name) == (2, "", expected)


def test_trackers_are_listed(call):
    code, out, _ = call("list", "trackers")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["tensorboard", "mlflow", "wandb"]


def test_nothing_is_imported_or_set_without_a_tracker():
    program = "import os, sys; before = dict(os.environ); import pfedbred\n"
    program += "found = {'tensorboardX', 'mlflow', 'wandb'} & set(sys.modules)\n"
    program += "assert not found and dict(os.environ) == before, found"
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ)
