"""Callbacks: when they are called, and how they stop or finish a run."""

import functools
import json
import os
import signal
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from support.custom import federation

import pfedbred
from pfedbred import Callback, Interruption, Patience
from pfedbred.engine import metrics
from pfedbred.engine.history import Point
from pfedbred.engine.scores import Evaluation, ModelScores, Scores
from pfedbred.experiment.building import build
from pfedbred.experiment.callbacks.model_writer import ModelWriter
from pfedbred.experiment.callbacks.outcome import OutcomeFiles
from pfedbred.experiment.callbacks.pictures import Pictures
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.loop import train
from pfedbred.experiment.resume import open_folder
from pfedbred.experiment.run import FolderOptions, run_into
from pfedbred.runs import checkpoints, layout
from pfedbred.runs.record import RunRecord


@functools.cache
def built(rounds=4, eval_every=2, alpha=0.05):
    given = {"algorithm": "fedavg", "aggregated": 2, "batch_size": 3, "settings": {"R": 2, "alpha": alpha}}
    return build(Experiment(federation(), rounds=rounds, eval_every=eval_every, **given))


def into(folder, *callbacks, resume=False, every=None, **options):
    with open_folder(folder, resume=resume):
        return run_into(folder, built(**options), callbacks, FolderOptions(every, resume))


def lines(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in found]


def same_models(one, other):
    np.testing.assert_array_equal(one.global_model()["output"]["weight"], other.global_model()["output"]["weight"])


class Log(Callback):
    """Writes down every call."""

    def __init__(self, most=None):
        self.calls, self._most = [], most

    @contextmanager
    def running(self, progress):
        self.calls.append(("begin", progress.round))
        yield
        self.calls.append(("close", progress.round))

    def most_rounds(self, progress):
        self.calls.append(("most", progress.round))
        return self._most or super().most_rounds(progress)

    def on_evaluation(self, progress, point):
        assert progress.points[-1] is point
        self.calls.append(("evaluation", point.round))

    def finish_reason(self, progress):
        self.calls.append(("finish", progress.round))

    def stop_reason(self, progress):
        self.calls.append(("stop", progress.round))

    def on_pause(self, progress, stopping):
        self.calls.append(("pause", progress.round))

    def on_end(self, run):
        self.calls.append(("end", run.round))


class StopAfter(Callback):
    """Interrupts the run after a round."""

    def __init__(self, round_, reason="a reason of mine"):
        self._round, self._reason = round_, reason

    def most_rounds(self, progress):
        return 1

    def stop_reason(self, progress):
        return self._reason if progress.round == self._round else None


class FinishAfter(StopAfter):
    """Finishes the run early instead."""

    def stop_reason(self, progress):
        return None

    def finish_reason(self, progress):
        return super().stop_reason(progress)


def test_a_callback_is_called_at_every_moment_in_order():
    log = Log()
    train(built(), [log])
    between = ["finish", "stop", "pause"]
    assert log.calls == [
        ("begin", 0),
        ("most", 0),
        ("evaluation", 2),
        *((name, 2) for name in between),
        ("most", 2),
        ("evaluation", 4),
        *((name, 4) for name in between),
        ("end", 4),
        ("close", 4),
    ]


def test_callbacks_are_called_in_the_order_given():
    order = []

    class Named(Callback):
        def __init__(self, name):
            self.on_evaluation = lambda progress, point: order.append((name, point.round))

    train(built(), [Named("a"), Named("b")])
    assert order == [("a", 2), ("b", 2), ("a", 4), ("b", 4)]


def test_most_rounds_limits_the_rounds_between_pauses():
    logs = [Log(most=3), Log(most=1)]
    run = train(built(), logs)
    for log in logs:
        assert [round_ for name, round_ in log.calls if name == "pause"] == [1, 2, 3, 4]
        assert [round_ for name, round_ in log.calls if name == "evaluation"] == [2, 4]
    same_models(run, train(built()))


def test_a_stop_reason_interrupts_saves_and_can_be_resumed(tmp_path):
    stopped = into(tmp_path / "half", StopAfter(3))
    assert (stopped.stopped, stopped.round, stopped.finished_early) == ("a reason of mine", 3, None)
    assert not layout.finished(tmp_path / "half")
    assert [checkpoints.read(each).round for each in checkpoints.files(tmp_path / "half")] == [3]
    log = Log()
    resumed = into(tmp_path / "half", log, resume=True)
    assert log.calls[0] == ("begin", 3)
    assert [call for call in log.calls if call[0] == "evaluation"] == [("evaluation", 4)]
    whole = into(tmp_path / "whole")
    assert lines(tmp_path / "half") == lines(tmp_path / "whole")
    same_models(resumed, whole)


def test_without_checkpoints_an_interrupted_run_saves_nothing(tmp_path):
    into(tmp_path / "run", StopAfter(3), every=0)
    assert not checkpoints.files(tmp_path / "run")


def test_a_stop_after_the_last_round_is_none(tmp_path):
    assert train(built(), [StopAfter(4)]).stopped is None


@pytest.mark.parametrize("round_", [1, 2])
def test_a_finish_reason_ends_the_run_complete_and_evaluated(round_, tmp_path):
    done = into(tmp_path / "run", FinishAfter(round_, "good enough"))
    assert (done.stopped, done.finished_early, done.round) == (None, "good enough", round_)
    assert [point.round for point in done.points] == [round_]
    assert layout.finished(tmp_path / "run")
    summary = RunRecord.read(tmp_path / "run").summary
    assert summary["finished_early"] == {"reason": "good enough", "round": round_}


def test_patience_finishes_a_run_that_no_longer_improves(tmp_path):
    """Steps so small that no prediction changes: the first evaluation stays the best."""
    still = {"rounds": 6, "eval_every": 1, "alpha": 1e-12}
    done = into(tmp_path / "run", Patience(2), **still)
    assert (done.round, done.finished_early) == (3, "accuracy has not improved for 2 evaluations")
    into(tmp_path / "half", StopAfter(2), Patience(2), **still)
    resumed = into(tmp_path / "half", Patience(2), resume=True, **still)
    assert (resumed.round, resumed.finished_early) == (3, done.finished_early)
    assert lines(tmp_path / "half") == lines(tmp_path / "run")
    assert train(built(**still), [Patience(6)]).finished_early is None


def test_patience_knows_which_direction_is_better():
    """The training loss of this run falls, and so does its test loss."""
    done = train(built(rounds=4, eval_every=1), [Patience(1, metric="loss", model="global")])
    losses = done.curve("loss", "global")[:, 0]
    expected = next((i + 1 for i in range(1, len(losses)) if losses[i] >= min(losses[:i])), None)
    assert (done.round if done.finished_early else None) == expected
    assert done.round > 1


@pytest.mark.parametrize(("evaluations", "words"), [(0, ">= 1, not 0"), ("3", "not '3'"), (1.5, "not 1.5")])
def test_patience_is_a_whole_number(evaluations, words):
    with pytest.raises(pfedbred.SettingError, match=f"patience must be .*{words}"):
        Patience(evaluations)


def test_patience_needs_a_metric_that_is_evaluated():
    with pytest.raises(pfedbred.SettingError, match="patience watches f1, which is not evaluated: add it to metrics"):
        train(built(), [Patience(1, metric="f1")])
    with pytest.raises(pfedbred.SettingError, match="unknown metric 'f2'"):
        Patience(1, metric="f2")


def test_a_callback_that_raises_leaves_a_run_that_can_be_resumed(tmp_path):
    class Broken(Callback):
        def on_evaluation(self, progress, point):
            if point.round == 4:
                raise RuntimeError("a mistake of mine")

    with pytest.raises(RuntimeError, match="a mistake of mine"):
        into(tmp_path / "run", Broken(), every=1)
    assert not (tmp_path / "run" / ".lock").exists()
    into(tmp_path / "run", resume=True)
    into(tmp_path / "whole")
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")


def test_a_time_limit_interrupts_a_run(tmp_path):
    stopped = into(tmp_path / "run", Interruption(time_limit=0.0))
    assert (stopped.stopped, stopped.round) == ("time limit", 1)
    assert train(built(), [Interruption(time_limit=1000.0)]).stopped is None


class Finish(Callback):
    """Completes the run after a round; may fail once when the outcome is there."""

    def __init__(self, after):
        self.after = after

    def finish_reason(self, progress):
        return "enough" if progress.round >= self.after else None


def test_a_run_that_was_complete_when_it_died_is_complete_when_resumed(tmp_path, monkeypatch):
    def die(record, path):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("pfedbred.report.curves.draw_run", die)
        with pytest.raises(MemoryError):
            into(tmp_path / "run", Finish(2), every=1)
    resumed = into(tmp_path / "run", Finish(2), resume=True, every=1)
    assert (resumed.round, resumed.finished_early) == (2, "enough")


def test_an_error_of_a_users_callback_is_not_taken_for_a_full_disk(tmp_path):
    class Tracker(Callback):
        def on_evaluation(self, progress, point):
            raise ConnectionRefusedError("tracker refused")

    with pytest.raises(ConnectionRefusedError, match="tracker refused"):
        into(tmp_path / "run", Tracker())


def test_the_end_is_seen_with_the_folder_and_its_summary(tmp_path):
    seen = []

    class Last(Callback):
        def on_end(self, run):
            seen.append((run.folder, (run.folder / "summary.json").exists()))

    into(tmp_path / "run", Last())
    assert seen == [(tmp_path / "run", True)]


def test_an_interruption_listens_while_the_run_trains(tmp_path, capfd):
    class Terminate(Callback):
        def on_evaluation(self, progress, point):
            os.kill(os.getpid(), signal.SIGTERM)

    done = train(built(), [Interruption(), Terminate()])
    assert (done.stopped, done.round) == ("terminated", 2)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_patience_starts_with_the_first_number(monkeypatch):
    patience = Patience(2, metric="loss")

    def see(loss):
        scores = Scores({"loss": np.array([loss])}, {})
        both = ModelScores(scores, scores)
        patience.on_evaluation(None, Point(1, 0.0, Evaluation(both, both), None))
        return patience.finish_reason(None)

    assert [see(loss) for loss in (np.nan, 3.0, 2.0, 1.0)] == [None] * 4
    assert see(1.0) is None
    assert see(np.nan) is not None


@pytest.mark.parametrize(
    ("left_out", "files"),
    [(ModelWriter, {layout.MODELS}), (Pictures, {layout.CURVES}), (OutcomeFiles, {layout.DATA, layout.SUMMARY})],
)
def test_each_part_of_the_outcome_is_a_callback_of_its_own(left_out, files, tmp_path):
    parts = [kind(tmp_path) for kind in (ModelWriter, Pictures, OutcomeFiles) if kind is not left_out]
    train(built(), parts)
    everything = {layout.MODELS, layout.CURVES, layout.DATA, layout.SUMMARY}
    assert {each.name for each in tmp_path.iterdir()} == everything - files


def test_patience_watches_validation_samples_if_there_are_any():
    progress = SimpleNamespace(backend=SimpleNamespace(plan=SimpleNamespace(metrics=metrics.resolve(""))))

    def reason(validation):
        patience = Patience(1)
        for test, held in ((0.1, 0.1), (0.2, 0.1)):
            scores = [Scores({"accuracy": np.array([each]), "loss": np.ones(1)}, {}) for each in (test, held)]
            both = ModelScores(scores[0], scores[0], scores[1] if validation else None)
            patience.on_evaluation(progress, Point(1, 0.0, Evaluation(both, both), None))
        return patience.finish_reason(None)

    assert reason(validation=False) is None
    assert reason(validation=True) == "accuracy has not improved for 1 evaluations"
