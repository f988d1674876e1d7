"""Resuming: a resumed run is the uninterrupted run, bit for bit; damage is noticed."""

import errno
import functools
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.engine import devices
from pfedbred.experiment import run as run_module
from pfedbred.experiment.building import build
from pfedbred.experiment.callbacks import Callback, Interruption
from pfedbred.experiment.callbacks.stopping import EXIT_CODES, parse_seconds, process_started
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.loop import train
from pfedbred.experiment.progress import Progress
from pfedbred.experiment.resume import open_folder
from pfedbred.io import tensors
from pfedbred.runs import checkpoints, layout
from pfedbred.runs.metrics_file import read_points


@functools.cache
def compiled(options):
    """Compiled once for all tests: test_survival.py has real processes."""
    given = {"dataset": "small", "rounds": 8, "eval_every": 3, "aggregated": 2, "batch_size": 3, **json.loads(options)}
    return build(Experiment(**given), small_federation())


def built(algorithm="mg-meta", **options):
    return compiled(json.dumps({"algorithm": algorithm, **options}))


LONGER = {"rounds": 10, "eval_every": 5}


class Observe(Callback):
    """Calls a function after every evaluation."""

    def __init__(self, function):
        self.on_evaluation = lambda progress, point: function(point)


def run_into(folder, built, *callbacks, resume=False, every=None, warn=pytest.fail, outcome=False):
    """``outcome`` writes the picture and the summary too."""
    with open_folder(folder, resume=resume):
        how = run_module.FolderOptions(checkpoint_every=every, resume=resume, warn=warn, outcome=outcome)
        return run_module.run_into(folder, built, callbacks, how)


def contents(arrays):
    """Arrays as bytes; those given in pieces joined."""
    return {
        name: np.concatenate(list(array.pieces())).tobytes() if isinstance(array, tensors.Pieces) else array.tobytes()
        for name, array in arrays.items()
    }


def states(run):
    return contents(run.backend.save(run.state).arrays)


def lines(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in found:
        del line["seconds"]
    return found


@functools.cache
def uninterrupted(options="{}"):
    """The lines and the states of a run that nothing interrupts."""
    with tempfile.TemporaryDirectory() as folder:
        done = run_into(Path(folder) / "run", built(**json.loads(options)))
        return lines(Path(folder) / "run"), states(done)


def interrupt(round_):
    """Sends this process Ctrl-C after the evaluation of a round."""
    return Observe(lambda point: os.kill(os.getpid(), signal.SIGINT) if point.round == round_ else None)


def out_of_time():
    return Interruption(time_limit=0.0)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("mg-meta", {}),
        pytest.param("mg-meta", {"seeds": 2}, marks=pytest.mark.full),
        pytest.param("fedamp", {}, marks=pytest.mark.full),
        pytest.param("scaffold", {"participation": "sample"}, marks=pytest.mark.full),
        pytest.param("pfedbayes", {"participation": "sample"}, marks=pytest.mark.full),
        pytest.param("fedem+ft", {"participation": "sample", "store": "memory", "seeds": 2}, marks=pytest.mark.full),
        ("mfo+am", {"participation": "sample", "store": "file"}),
    ],
)
@pytest.mark.few_cases(2)
def test_an_interrupted_run_is_resumed_bit_for_bit(algorithm, options, tmp_path, capfd):
    whole, half = tmp_path / "whole", tmp_path / "half"
    expected = run_into(whole, built(algorithm, **options), outcome=True)
    stop = Interruption()
    with stop.listening():
        stopped = run_into(half, built(algorithm, **options), interrupt(3), stop)
    assert (stopped.stopped, stopped.round) == ("interrupted", 3)
    assert "finishing the round" in capfd.readouterr().err
    assert not layout.finished(half)
    resumed = run_into(half, built(algorithm, **options), resume=True, outcome=True)
    assert states(resumed) == states(expected)
    assert lines(half) == lines(whole)
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in (whole, half))
    for each in (first, second):
        assert each.pop("seconds")["total"] > 0
    assert first == second


def test_metrics_after_the_checkpoint_are_discarded(tmp_path):
    """Killed after an evaluation, resumed, stopped before it comes again, resumed: each goes on where the last was."""
    folder = tmp_path / "run"

    def die(point):
        raise MemoryError

    with pytest.raises(MemoryError):
        run_into(folder, built(**LONGER), Observe(die), every=3)
    assert len(lines(folder)) == 1
    stopped = run_into(folder, built(**LONGER), out_of_time(), resume=True)
    assert stopped.round == 4
    assert lines(folder) == []
    run_into(folder, built(**LONGER), resume=True)  # the last checkpoint is intact
    assert lines(folder) == uninterrupted(json.dumps(LONGER))[0]


def test_the_pace_of_another_machine_is_not_trusted():
    """The first stretch of a resumed run is one round, whatever a round took before."""
    ready, paces = built(), []

    class Watch(Callback):
        def most_rounds(self, progress):
            paces.append(progress.pace)
            return 1

        def stop_reason(self, progress):
            return "interrupted" if progress.round == 2 else None

    start = Progress(ready.experiment, ready.backend, ready.backend.init([0]), seconds=1.0, round_seconds=[1e-9])
    train(ready, [Watch()], start)
    assert paces[0] is None
    assert paces[1] > 1e-6


def test_a_diverging_run_is_not_saved(tmp_path):
    """Its last checkpoint is from before all updates were rejected."""
    ready = built("fedavg", rounds=12, eval_every=12, settings={"alpha": 1e30, "R": 2})
    done = run_into(tmp_path / "run", ready, every=1)
    assert done.diverged == 12
    skipped = [checkpoints.read(each).arrays["skipped_in_row"] for each in checkpoints.files(tmp_path / "run")]
    assert all(each == 0 for each in skipped)


def test_a_scheduler_may_repeat_its_signal():
    stop = Interruption()
    with stop.listening():
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.check() == "terminated"


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no such signal")
def test_a_closed_terminal_stops_a_run_though_nothing_can_be_shown(monkeypatch):
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    stop = Interruption()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.check() == "hung up"
    assert EXIT_CODES["hung up"] == 129


@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_any_process_stops_all(signalled, monkeypatch):
    """What a process hears of the other comes by way of one array."""
    sent = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr("jax.experimental.multihost_utils.process_allgather", lambda own: sent.append(own) or [own])
    assert devices.agreed_text("terminated") == "terminated"
    assert devices.agreed_text(None) is None
    gathered = np.stack([sent[0], sent[1]] if signalled == 0 else [sent[1], sent[0]])
    monkeypatch.setattr("jax.experimental.multihost_utils.process_allgather", lambda own: gathered)
    assert devices.agreed_text(None) == devices.agreed_text("terminated") == "terminated"


def test_a_time_limit_leaves_time_for_what_comes_next():
    now = time.monotonic()
    assert Interruption(100.0, started=now - 50).check(needed=40) is None
    assert Interruption(100.0, started=now - 50).check(needed=60) == "time limit"
    assert 0 < time.monotonic() - process_started() < 10**5


def test_a_run_stops_between_evaluations_too(tmp_path):
    """Here each slice of rounds is one, because the limit has passed."""
    folder = tmp_path / "run"
    stopped = run_into(folder, built(), out_of_time())
    assert (stopped.stopped, stopped.round, stopped.points) == ("time limit", 1, [])
    resumed = run_into(folder, built(), resume=True)
    assert (lines(folder), states(resumed)) == uninterrupted()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"executor": "vmap"}, marks=pytest.mark.full),
        {"executor": "vmap", "chunk": 2},
        pytest.param({"executor": "loop"}, marks=pytest.mark.full),
    ],
)
@pytest.mark.few_cases
@pytest.mark.full
def test_a_run_is_resumed_with_another_executor(change, tmp_path):
    folder = tmp_path / "run"
    run_into(folder, built(), out_of_time())
    resumed = run_into(folder, built(**change), resume=True)
    expected = train(built())
    for ours, theirs in zip(*(jax.tree.leaves(each.state.clients.state) for each in (resumed, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_a_resumed_run_no_longer_needs_its_checkpoint(stopped):
    """What becomes of its states is no view of the file: to write into that would change them, or kill the process."""
    found = checkpoints.latest(stopped, print)
    like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in found.arrays.items()}
    filled = tensors.refill(like, found.arrays, "it")
    before = contents(filled)
    size = found.path.stat().st_size
    with found.path.open("r+b") as file:
        file.write(b"\xa5" * size)
    assert contents(filled) == before
    assert contents(found.arrays) != before  # those are


def test_the_last_two_checkpoints_are_kept(tmp_path):
    folder = tmp_path / "run"
    run_into(folder, built(), every=2, outcome=True)
    assert [each.name for each in checkpoints.files(folder)] == [
        "checkpoint-00000008.safetensors",
        "checkpoint-00000006.safetensors",
    ]
    assert layout.finished(folder)


@pytest.fixture
def stopped(tmp_path):
    """The folder of a run with checkpoints of rounds 2 and 4."""
    folder = tmp_path / "run"

    def die(point):
        raise MemoryError

    with pytest.raises(MemoryError):  # at round 5
        run_into(folder, built(**LONGER), Observe(die), every=2)
    assert [checkpoints.read(each).round for each in checkpoints.files(folder)] == [4, 2]
    return folder


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_taken(stopped):
    newest, older = checkpoints.files(stopped)
    whole = newest.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.choice(len(whole), 60, replace=False):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        newest.write_bytes(damaged)
        warnings = []
        found = checkpoints.latest(stopped, warnings.append)
        assert found.round == 2
        assert len(warnings) == 1
        assert "checkpoint-00000004" in warnings[0]
        assert "\n" not in warnings[0]
    older.write_bytes(b"")
    with pytest.raises(pfedbred.SettingError, match=r"all checkpoints in .* are damaged: start again with --overwrite"):
        checkpoints.latest(stopped, lambda message: None)


def test_checkpoints_that_cannot_be_opened_are_not_called_damaged(stopped):
    for each in checkpoints.files(stopped):
        each.unlink()
        each.mkdir()
    with pytest.raises(pfedbred.SettingError, match=r"no checkpoint in .* can be read: cannot read .*") as told:
        checkpoints.latest(stopped, lambda message: None)
    assert "overwrite" not in str(told.value)


def test_a_run_is_resumed_from_the_checkpoint_before_a_damaged_one(stopped, tmp_path):
    checkpoints.files(stopped)[0].write_bytes(b"nonsense")
    warnings = []
    run_into(stopped, built(**LONGER), resume=True, every=7, warn=warnings.append)
    assert len(warnings) == 1
    assert lines(stopped) == uninterrupted(json.dumps(LONGER))[0]
    assert [each.name for each in checkpoints.files(stopped)] == [
        "checkpoint-00000007.safetensors",
        "checkpoint-00000002.safetensors",
    ]


def test_rules_that_changed_since_a_run_began_are_told(stopped):
    config = stopped / layout.CONFIG
    kept = [line for line in config.read_text().splitlines(keepends=True) if not line.startswith("screening")]
    config.write_text("".join(kept))
    warnings = []
    run_into(stopped, built(**LONGER), resume=True, warn=warnings.append)
    assert warnings == [
        "resuming a run of an earlier version: updates are now also screened by direction, and averaging weights capped"
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rounds": 8}, "rounds 10, now 8"),
        ({"seeds": 2, "batch_size": 4}, "seeds 1, now 2; batch_size 3, now 4"),
        ({"settings": {"lam": 3.0}}, r"lam 15\.0, now 3\.0"),
        ({"algorithm": "fedavg"}, "algorithm 'mg-meta', now 'fedavg'"),
    ],
)
def test_other_settings_are_rejected_with_the_difference(stopped, options, words):
    with pytest.raises(pfedbred.SettingError, match=f"was run with other settings: {words}"):
        run_into(stopped, built(**{**LONGER, **options}), resume=True)


def test_a_finished_run_is_given_more_rounds(tmp_path):
    """From where it ended, as if it had had them from the beginning; nothing before is trained again."""
    run_into(tmp_path / "run", built(rounds=6), outcome=True)
    assert layout.finished(tmp_path / "run")
    evaluated = []
    more = built(rounds=9)
    done = run_into(tmp_path / "run", more, Observe(lambda point: evaluated.append(point.round)), resume=True)
    whole = run_into(tmp_path / "whole", more)
    assert evaluated == [9]
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")
    assert states(done) == states(whole)


def test_a_schedule_over_all_rounds_forbids_more(tmp_path):
    """With 8 rounds its values would have been others from the first on."""
    scheduled = {"settings": {"alpha": {"schedule": "cosine", "start": 0.02}}, "rounds": 2, "eval_every": 2}
    run_into(tmp_path / "run", built(**scheduled), outcome=True)
    with pytest.raises(pfedbred.SettingError, match="cannot be given more rounds: the schedule of alpha spans all"):
        run_into(tmp_path / "run", built(**{**scheduled, "rounds": 4}), resume=True)


def test_the_command_gives_more_rounds(call, tmp_path):
    options = ["run", "--clients", "4", "--algorithm", "fedavg", "--out", tmp_path / "run"]
    assert call(*options, "--rounds", "2")[0] == 0
    code, out, _ = call("run", "--resume", "--out", tmp_path / "run", "--rounds", "3")
    assert (code, "3 rounds in place of 2" in out, "round 1/3" in out) == (0, True, False)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 3
    code, _, problem = call("run", "--resume", "--out", tmp_path / "run", "--rounds", "2")
    assert (code, problem) == (2, f"pfedbred: {tmp_path / 'run'} was run with other settings: rounds 3, now 2\n")


def test_other_data_is_rejected(stopped):
    experiment = Experiment("small", rounds=10, eval_every=5, aggregated=2, batch_size=3)
    other = build(experiment, small_federation(sizes=(7, 12, 5, 21)))
    with pytest.raises(pfedbred.SettingError, match=r"was run on other data: .* now "):
        run_into(stopped, other, resume=True)


def test_the_settings_of_a_checkpoint_count_too(stopped):
    """A config.yaml can be written anew; what was saved is of the old one."""
    config = stopped / "config.yaml"
    config.write_text(config.read_text().replace("lam: 15.0", "lam: 3.0"))
    with pytest.raises(pfedbred.SettingError, match=r"was run with other settings: lam 15\.0, now 3\.0"):
        run_into(stopped, built(**LONGER, settings={"lam": 3.0}), resume=True)


def test_another_version_is_not_damage(stopped):
    newest = checkpoints.files(stopped)[0]
    newest.write_bytes(newest.read_bytes().replace(b"pfedbred checkpoint 1", b"pfedbred checkpoint 2"))
    with pytest.raises(pfedbred.SettingError, match="was written by another version"):
        run_into(stopped, built(**LONGER), resume=True)
    assert newest.exists()


def test_a_folder_that_became_read_only_is_one_line(tmp_path, monkeypatch):
    """Nothing can be removed from it either, the lock included."""
    folder = tmp_path / "run"

    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    def become_read_only(point):
        for name in ("unlink", "replace", "open"):
            monkeypatch.setattr(f"pathlib.Path.{name}", refuse)

    with pytest.raises(pfedbred.SettingError, match="Permission denied; the run is saved up to round 2"):
        run_into(folder, built(), Observe(become_read_only), every=2)
    monkeypatch.undo()
    assert checkpoints.latest(folder, pytest.fail).round == 2


def test_overwriting_a_run_leaves_others_alone(tmp_path):
    run_into(tmp_path / "outer", built(), outcome=True)
    run_into(tmp_path / "outer" / "other", built(), every=4)
    inner = {each.name for each in (tmp_path / "outer" / "other").iterdir()}
    with open_folder(tmp_path / "outer", overwrite=True):
        assert {each.name for each in (tmp_path / "outer").iterdir()} == {"other", ".lock"}
    assert {each.name for each in (tmp_path / "outer" / "other").iterdir()} == inner


def test_resuming_nothing_needs_an_empty_folder(tmp_path):
    (tmp_path / ".mine.partial").write_text("not a run's")
    with (
        pytest.raises(pfedbred.SettingError, match="is not empty"),
        open_folder(tmp_path, resume=True),
    ):
        pass
    assert (tmp_path / ".mine.partial").exists()


def test_metrics_that_have_been_cut_are_noticed(tmp_path):
    folder = tmp_path / "run"
    stop = Interruption()
    with stop.listening():
        run_into(folder, built(), interrupt(3), stop)
    (folder / "metrics.jsonl").write_text("")
    warnings = []
    with pytest.raises(pfedbred.SettingError, match=r"no checkpoint in .* fits its metrics.jsonl"):
        run_into(folder, built(), resume=True, warn=warnings.append)
    assert "metrics.jsonl is shorter than when" in warnings[0]


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_is_one_line_and_leaves_the_run_intact(problem, stopped, monkeypatch):
    real, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > 6:  # config.yaml (2), metrics and checkpoint (3) of round 6, metrics of round 8
            raise OSError(problem, os.strerror(problem))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(pfedbred.SettingError) as refused:
            run_into(stopped, built(**LONGER), resume=True, every=2)
    message = str(refused.value)
    assert f"checkpoint-00000008.safetensors: {os.strerror(problem)}; the run is saved up to round 6" in message
    assert not list(stopped.glob(".*"))
    assert checkpoints.latest(stopped, pytest.fail).round == 6


def test_a_vanished_folder_is_one_line(tmp_path):
    folder = tmp_path / "run"
    vanish = lambda point: shutil.rmtree(folder, ignore_errors=True)  # noqa: E731
    for every in (4, 0):
        with pytest.raises(pfedbred.SettingError, match=r"No such file or directory; nothing of the run is saved"):
            run_into(folder, built(), Observe(vanish), every=every, outcome=True)
        assert not folder.exists()


def test_leftovers_of_a_dead_process_are_removed(stopped):
    left = stopped / ".checkpoint-00000006.safetensors.123.partial"
    left.write_bytes(b"half")
    run_into(stopped, built(**LONGER), resume=True)
    assert not left.exists()


def test_scores_are_read_back_unchanged(tmp_path):
    finished = run_into(tmp_path / "run", built(seeds=2))
    path = tmp_path / "run" / "metrics.jsonl"
    for ours, theirs in zip(read_points(path.parent, path.stat().st_size), finished.points, strict=True):
        assert ours.round == theirs.round
        for model in ("global_", "personal"):
            for part in ("train", "test"):
                one, other = (getattr(getattr(each.scores, model), part) for each in (ours, theirs))
                for name in ("accuracy", "loss", "worst_decile", "client_std"):
                    np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
                np.testing.assert_allclose(one.client_accuracy, other.client_accuracy, atol=5e-5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("1:30:00", 5400), ("2:03", 123)],
)
def test_times(text, expected):
    assert parse_seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "0", "-3", "1d", "nan", "1e3"])
def test_other_times_are_rejected(text):
    with pytest.raises(pfedbred.SettingError, match="a time limit must look like 90s, 30m or 1h30m, not"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["1000000h", "9" * 400 + "s", "99999999999:00:00"])
def test_absurd_times_are_rejected(text):
    with pytest.raises(pfedbred.SettingError, match="a time limit must be at most 100 years, not"):
        parse_seconds(text)
