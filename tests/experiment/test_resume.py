"""Checkpoints: what is restored is what was saved, whatever it is restored on; damage is noticed."""

import errno
import functools
import json
import os
import shutil
import signal
import time

import jax
import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.experiment import keeping, loop, stopping
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.keeping import Keeping
from pfedbred.io import tensors
from pfedbred.runs import checkpoints
from pfedbred.runs.metrics_file import read_points


@functools.cache
def compiled(options):
    """Compiled once for all tests: a fresh process for each is in test_survival.py."""
    given = {"dataset": "small", "rounds": 8, "eval_every": 3, "aggregated": 2, "batch_size": 3, **json.loads(options)}
    return Experiment(**given).prepare(small_federation())


def prepare(algorithm="mg-meta", **options):
    return compiled(json.dumps({"algorithm": algorithm, **options}))


LONGER = {"rounds": 10, "eval_every": 5}


def run_into(folder, prepared, observe=lambda point: None, **options):
    with keeping.opened(folder, resume=options.get("resume", False)):
        return keeping.run_into(folder, prepared, observe, Keeping(**options))


def contents(arrays):
    """Arrays as bytes; those given in pieces joined."""
    return {
        name: np.concatenate(list(array.pieces())).tobytes() if isinstance(array, tensors.Pieces) else array.tobytes()
        for name, array in arrays.items()
    }


def lines(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in found:
        del line["seconds"]
    return found


class Interrupt:
    """Sends this process Ctrl-C after the evaluation of a round."""

    def __init__(self, round_):
        self.round = round_

    def __call__(self, point):
        if point.round == self.round:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("mg-meta", {"seeds": 2}),
        ("fedamp", {}),
        ("scaffold", {"participation": "sample"}),
        pytest.param("fedem+ft", {"participation": "sample", "store": "memory", "seeds": 2}, marks=pytest.mark.slow),
        ("mfo+am", {"participation": "sample", "store": "file"}),
    ],
)
def test_an_interrupted_run_goes_on_with_the_same_bits(algorithm, options, tmp_path, capfd):
    whole, half = tmp_path / "whole", tmp_path / "half"
    expected = run_into(whole, prepare(algorithm, **options))
    stop = stopping.Stopping()
    prepared = prepare(algorithm, **options)
    with stop.listening():
        stopped = run_into(half, prepared, Interrupt(3), stopping=stop)
    assert (stopped.stopped, stopped.round) == ("interrupted", 3)
    assert "finishing the round" in capfd.readouterr().err
    assert not keeping.finished(half)
    resumed = run_into(half, prepare(algorithm, **options), resume=True)
    assert contents(resumed.simulation.saved(resumed.states)) == contents(expected.simulation.saved(expected.states))
    assert lines(half) == lines(whole)
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in (whole, half))
    for each in (first, second):
        assert each.pop("seconds")["total"] > 0
    assert first == second


def test_lines_that_are_cut_off_do_not_count(tmp_path):
    """Killed after an evaluation, resumed, stopped before it comes again, resumed: each goes on where the last was."""
    folder = tmp_path / "run"

    def die(point):
        raise MemoryError

    with pytest.raises(MemoryError):
        run_into(folder, prepare(**LONGER), die, every=3)
    assert len(lines(folder)) == 1
    stopped = run_into(folder, prepare(**LONGER), resume=True, stopping=stopping.Stopping(time_limit=0.0))
    assert stopped.round == 4
    assert lines(folder) == []
    run_into(folder, prepare(**LONGER), resume=True, warn=pytest.fail)  # what was saved last is sound
    run_into(tmp_path / "whole", prepare(**LONGER))
    assert lines(folder) == lines(tmp_path / "whole")


def test_the_pace_of_another_machine_is_not_trusted():
    """The first stretch of a resumed run is one round, whatever a round took before."""
    prepared = prepare()
    states = prepared.simulation.init([0])
    paces = []

    class Watch:
        def most(self, done, round_seconds):
            paces.append(round_seconds)
            return 1

        def pause(self, progress):
            return "interrupted" if progress.round == 2 else None

    loop.run(prepared=prepared, pauses=Watch(), start=loop.Progress(0, states, [], 1.0, 0.0, 1e-9))
    assert paces[0] is None
    assert paces[1] > 1e-6


def test_a_run_that_goes_nowhere_is_not_saved(tmp_path):
    """Its last checkpoint is from before all clients fell sick."""
    prepared = prepare("fedavg", rounds=12, eval_every=12, settings={"alpha": 1e30, "R": 2})
    done = run_into(tmp_path / "run", prepared, every=1)
    assert done.diverged == 12
    sick = [checkpoints.read(each).arrays["skipped_in_row"] for each in checkpoints.files(tmp_path / "run")]
    assert all(each == 0 for each in sick)


def test_a_queue_may_repeat_its_signal():
    stop = stopping.Stopping()
    with stop.listening():
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wanted() == "terminated"


def test_time_runs_out_before_what_comes_next():
    now = time.monotonic()
    assert stopping.Stopping(100.0, begun=now - 50).wanted(needed=40) is None
    assert stopping.Stopping(100.0, begun=now - 50).wanted(needed=60) == "time limit"
    assert 0 < time.monotonic() - stopping.process_begun() < 10**5


def test_a_run_stops_between_evaluations_too(tmp_path):
    """Here each slice of rounds is one, because the limit has passed."""
    folder = tmp_path / "run"
    stopped = run_into(folder, prepare(), stopping=stopping.Stopping(time_limit=0.0))
    assert (stopped.stopped, stopped.round, stopped.points) == ("time limit", 1, [])
    resumed = run_into(folder, prepare(), resume=True)
    expected = run_into(tmp_path / "whole", prepare())
    assert lines(folder) == lines(tmp_path / "whole")
    assert contents(resumed.simulation.saved(resumed.states)) == contents(expected.simulation.saved(expected.states))


@pytest.mark.parametrize("change", [{"executor": "vmap"}, {"executor": "vmap", "chunk": 2}, {"executor": "loop"}])
def test_it_goes_on_with_another_executor(change, tmp_path):
    folder = tmp_path / "run"
    run_into(folder, prepare(), stopping=stopping.Stopping(time_limit=0.0))
    resumed = run_into(folder, prepare(**change), resume=True)
    expected = pfedbred.run(prepared=prepare())
    for ours, theirs in zip(*(jax.tree.leaves(each.states.clients.state) for each in (resumed, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_a_run_that_goes_on_no_longer_needs_its_checkpoint(stopped):
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


def test_the_last_two_are_kept_and_an_end_is_an_end(tmp_path):
    folder = tmp_path / "run"
    run_into(folder, prepare(), every=2)
    assert [each.name for each in checkpoints.files(folder)] == [
        "checkpoint-00000008.safetensors",
        "checkpoint-00000006.safetensors",
    ]
    assert keeping.finished(folder)


@pytest.fixture
def stopped(tmp_path):
    """The folder of a run with checkpoints of rounds 2 and 4."""
    folder = tmp_path / "run"

    def observe(point):
        if point.round == 5:
            raise MemoryError

    with pytest.raises(MemoryError):
        run_into(folder, prepare(**LONGER), observe, every=2)
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
    with pytest.raises(pfedbred.SettingError, match=r"no checkpoint in .* is sound: start again with --overwrite"):
        checkpoints.latest(stopped, lambda message: None)


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(stopped, tmp_path):
    checkpoints.files(stopped)[0].write_bytes(b"nonsense")
    warnings = []
    run_into(stopped, prepare(**LONGER), resume=True, every=7, warn=warnings.append)
    assert len(warnings) == 1
    run_into(tmp_path / "whole", prepare(**LONGER))
    assert lines(stopped) == lines(tmp_path / "whole")
    assert [each.name for each in checkpoints.files(stopped)] == [
        "checkpoint-00000007.safetensors",
        "checkpoint-00000002.safetensors",
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rounds": 12}, "rounds 10, now 12"),
        ({"seeds": 2, "batch_size": 4}, "seeds 1, now 2; batch_size 3, now 4"),
        ({"settings": {"lam": 3.0}}, r"lam 15\.0, now 3\.0"),
        ({"algorithm": "fedavg"}, "algorithm 'mg-meta', now 'fedavg'"),
    ],
)
def test_other_settings_are_refused_with_the_difference(stopped, options, words):
    with pytest.raises(pfedbred.SettingError, match=f"was run with other settings: {words}"):
        run_into(stopped, prepare(**{**LONGER, **options}), resume=True)


def test_other_data_are_refused(stopped):
    other = Experiment("small", rounds=10, eval_every=5, aggregated=2, batch_size=3).prepare(
        small_federation(sizes=(7, 12, 5, 21))
    )
    with pytest.raises(pfedbred.SettingError, match=r"was run on other data: .* now "):
        run_into(stopped, other, resume=True)


def test_the_settings_of_a_checkpoint_count_too(stopped):
    """A config.yaml can be written anew; what was saved is of the old one."""
    config = stopped / "config.yaml"
    config.write_text(config.read_text().replace("lam: 15.0", "lam: 3.0"))
    with pytest.raises(pfedbred.SettingError, match=r"was run with other settings: lam 15\.0, now 3\.0"):
        run_into(stopped, prepare(**LONGER, settings={"lam": 3.0}), resume=True)


def test_another_version_is_not_damage(stopped):
    newest = checkpoints.files(stopped)[0]
    newest.write_bytes(newest.read_bytes().replace(b"pfedbred checkpoint 1", b"pfedbred checkpoint 2"))
    with pytest.raises(pfedbred.SettingError, match="was written by another version"):
        run_into(stopped, prepare(**LONGER), resume=True)
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
        run_into(folder, prepare(), become_read_only, every=2)
    monkeypatch.undo()
    assert checkpoints.latest(folder, pytest.fail).round == 2


def test_to_overwrite_a_run_leaves_others_alone(tmp_path):
    run_into(tmp_path / "outer", prepare())
    run_into(tmp_path / "outer" / "other", prepare(), every=4)
    inner = {each.name for each in (tmp_path / "outer" / "other").iterdir()}
    with keeping.opened(tmp_path / "outer", overwrite=True):
        assert {each.name for each in (tmp_path / "outer").iterdir()} == {"other", ".lock"}
    assert {each.name for each in (tmp_path / "outer" / "other").iterdir()} == inner


def test_to_resume_nothing_asks_for_an_empty_folder(tmp_path):
    (tmp_path / ".mine.partial").write_text("not a run's")
    with (
        pytest.raises(pfedbred.SettingError, match="is not empty"),
        keeping.opened(tmp_path, resume=True),
    ):
        pass
    assert (tmp_path / ".mine.partial").exists()


def test_metrics_that_have_been_cut_are_noticed(tmp_path):
    folder = tmp_path / "run"
    stop = stopping.Stopping()
    with stop.listening():
        run_into(folder, prepare(), Interrupt(3), stopping=stop)
    (folder / "metrics.jsonl").write_text("")
    warnings = []
    with pytest.raises(pfedbred.SettingError, match=r"no checkpoint in .* is sound"):
        run_into(folder, prepare(), resume=True, warn=warnings.append)
    assert "metrics.jsonl is shorter than when" in warnings[0]


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_is_one_line_and_leaves_the_run_intact(problem, stopped, monkeypatch):
    real, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > 5:  # config.yaml, metrics, file and folder of the first checkpoint, metrics of the second
            raise OSError(problem, os.strerror(problem))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(pfedbred.SettingError) as refused:
            run_into(stopped, prepare(**LONGER), resume=True, every=2)
    message = str(refused.value)
    assert f"checkpoint-00000008.safetensors: {os.strerror(problem)}; the run is saved up to round 6" in message
    assert not list(stopped.glob(".*"))
    assert checkpoints.latest(stopped, pytest.fail).round == 6


def test_a_vanished_folder_is_one_line(tmp_path):
    folder = tmp_path / "run"
    vanish = lambda point: shutil.rmtree(folder)  # noqa: E731
    for every in (4, 0):
        with pytest.raises(pfedbred.SettingError, match=r"No such file or directory; nothing of the run is saved"):
            run_into(folder, prepare(), vanish, every=every)
        assert not folder.exists()


def test_what_a_dead_process_left_is_swept_up(stopped):
    left = stopped / ".checkpoint-00000006.safetensors.123.partial"
    left.write_bytes(b"half")
    run_into(stopped, prepare(**LONGER), resume=True)
    assert not left.exists()


def test_scores_are_read_back_as_they_were(tmp_path):
    finished = run_into(tmp_path / "run", prepare(seeds=2))
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
    assert stopping.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "0", "-3", "1d", "nan", "1e3"])
def test_other_times_are_refused(text):
    with pytest.raises(pfedbred.SettingError, match="a time limit is such as"):
        stopping.seconds(text)
