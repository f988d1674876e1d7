"""A run survives: killed, interrupted, on a full disk, or twice at once, nothing is lost and nothing doubled.

These tests run real processes and kill them.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from support.processes import Forker, send, until

from pfedbred.runs import checkpoints

pytestmark = pytest.mark.full

OPTIONS = ("--clients", 12, "--rounds", 160, "--eval-every", 5)
COMMAND = ("run", *OPTIONS, "--checkpoint-every", 4)


@pytest.fixture(scope="module")
def forker(tmp_path_factory):
    made = Forker(tmp_path_factory.mktemp("processes"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(forker, tmp_path_factory):
    """A run that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert forker.run(*COMMAND, "--out", folder) == 0, forker.said()
    return folder


@pytest.fixture(scope="module")
def whole_seconds(forker, whole, tmp_path_factory):
    """What such a run takes, start included, once its programs are compiled."""
    begun = time.monotonic()
    assert forker.run(*COMMAND, "--out", tmp_path_factory.mktemp("again") / "run") == 0
    return time.monotonic() - begun


def outcome(folder):
    """All that a run records, without the times it took and the revision, which may change while these tests run."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["revision"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = checkpoints.read(checkpoints.files(folder)[0])
    states = {name: array.tobytes() for name, array in last.arrays.items()}
    for each in (summary, *lines):
        del each["seconds"]
    return summary, lines, last.round, states


def kill_until_done(forker, folder, random_, kills, whole_seconds):
    """Kills a run at random moments, half of them in a write, as often as asked; then lets it finish."""
    done, in_writes = 0, 0
    for _ in range(kills):
        every = random_.choice((1, 2, 4, 8))
        in_write = random_.random() < 0.5
        options = {"dies": random_.randint(1, 6)} if in_write else {}
        child = forker.start("run", *OPTIONS, "--checkpoint-every", every, "--out", folder, "--resume", **options)
        if not in_write:
            until(lambda: False, random_.uniform(0, whole_seconds))
            send(child, signal.SIGKILL)
        if forker.wait() == 0:
            break  # it was faster
        done += 1
        in_writes += any(folder.glob(".checkpoint-*.partial"))
    assert forker.run("run", *OPTIONS, "--checkpoint-every", 4, "--out", folder, "--resume") == 0, forker.said()
    return done, in_writes


@pytest.mark.parametrize("kills", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_a_killed_run_is_resumed_to_the_same_end(forker, whole, whole_seconds, tmp_path, kills):
    expected = outcome(whole)
    random_ = random.Random(0)
    done = in_writes = 0
    for number in range(2 * kills):
        if done >= kills:
            break
        folder = tmp_path / str(number)
        killed, written = kill_until_done(forker, folder, random_, kills - done, whole_seconds)
        done, in_writes = done + killed, in_writes + written
        assert outcome(folder) == expected
        assert not list(folder.glob(".*"))
    assert done == kills
    assert in_writes > 0


def test_a_signal_stops_a_run_cleanly(forker, whole, tmp_path):
    """Ctrl-C, the end of a job or of its terminal: the round is finished and saved, and how to resume is shown."""
    folder = tmp_path / "run"
    for number, words in (
        (signal.SIGINT, "again to stop at once"),
        (signal.SIGTERM, "then saving"),
        (signal.SIGHUP, "then saving"),
    ):
        begun = len(checkpoints.files(folder)) if folder.exists() else 0
        child = forker.start(*COMMAND, "--out", folder, "--resume")
        assert until(lambda begun=begun: folder.exists() and len(checkpoints.files(folder)) > begun)
        send(child, number)
        assert forker.wait() == 128 + number
        said = forker.said()
        assert words in said
        assert f"to resume: pfedbred run --resume --out {folder} --checkpoint-every 4" in said
        assert "Traceback" not in said
        assert not (folder / ".lock").exists()
        for each in checkpoints.files(folder)[1:]:
            each.unlink()  # what it saved last is enough
    assert forker.run("run", "--resume", "--out", folder, "--checkpoint-every", 4) == 0  # settings as they were
    assert outcome(folder) == outcome(whole)


@pytest.mark.parametrize("signalled", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_signal_to_one_of_two_processes_stops_both(signalled, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--rounds", "1000000", "--eval-every", "1000000", "--checkpoint-every", "1", "--out", "run"]
    with ExitStack() as stack:
        started = []
        for number in range(2):
            names = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(number)}
            process = subprocess.Popen(
                [sys.executable, "-m", "pfedbred", "--distributed", "run", *options],
                cwd=tmp_path,
                env={**os.environ, **names, "JAX_NUM_CPU_DEVICES": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            started.append(stack.enter_context(process))
            stack.callback(process.kill)
        end = time.monotonic() + 180
        while not any(tmp_path.glob("run/checkpoint-*")) and time.monotonic() < end:
            time.sleep(0.1)  # until both are in the loop
        started[signalled].send_signal(signal.SIGTERM)
        outputs = [each.communicate(timeout=120)[0] for each in started]
    assert [each.returncode for each in started] == [143, 143], outputs
    assert "stopped (terminated) after round" in outputs[0]
    assert "to resume: pfedbred run --resume --out run" in outputs[0]


def test_the_second_interrupt_stops_at_once(forker, tmp_path):
    folder = tmp_path / "run"
    child = forker.start("run", "--rounds", 10, "--set", "R=500000", "--out", folder)  # a round of minutes
    assert until((folder / "metrics.jsonl").exists)
    send(child, signal.SIGINT)
    assert until(lambda: "finishing the round" in forker.said())
    send(child, signal.SIGINT)
    assert forker.wait() == -signal.SIGINT


def test_a_time_limit_stops_a_run_in_time(forker, tmp_path):
    folder = tmp_path / "run"
    command = ("run", "--rounds", 10**6, "--eval-every", 10**6, "--out", folder)
    assert forker.run(*command, "--time-limit", "100000h", "--dry-run") == 0
    assert forker.run(*command, "--resume", "--time-limit", "3s") == 75
    assert "stopped (time limit) after round" in forker.said()
    assert len(checkpoints.files(folder)) == 1


@pytest.mark.slow
def test_a_run_is_resumed_on_other_devices(forker, whole, tmp_path):
    folder = tmp_path / "run"
    assert forker.run(*COMMAND, "--out", folder, "--time-limit", "1s") == 75
    assert forker.run("run", "--resume", "--out", folder, "--checkpoint-every", 4, devices=2) == 0, forker.said()
    ours, theirs = (checkpoints.read(checkpoints.files(each)[0]).arrays for each in (folder, whole))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_allclose(array.astype(float), theirs[name].astype(float), atol=1e-4)


def test_a_comparison_is_resumed_too(forker, tmp_path):
    """It stops in the second run: the first is not run again."""
    command = ("compare", "--clients", 12, "--rounds", 40, "--algorithms", "fedavg,pfedme", "--checkpoint-every", 1)
    assert forker.run(*command, "--out", tmp_path / "whole") == 0
    folder = tmp_path / "half"
    child = forker.start(*command, "--out", folder)
    assert until(lambda: any((folder / "pfedme").glob("checkpoint-*")))
    send(child, signal.SIGINT)
    assert forker.wait() == 128 + signal.SIGINT
    assert f"to resume: pfedbred compare --resume --out {folder}" in forker.said()
    first = (folder / "fedavg" / "metrics.jsonl").stat().st_mtime_ns
    assert forker.run("compare", "--resume", "--out", folder) == 0, forker.said()
    assert f"{folder / 'fedavg'}: already finished" in forker.said()
    assert (folder / "fedavg" / "metrics.jsonl").stat().st_mtime_ns == first
    ours, theirs = (json.loads((each / "table.json").read_text()) for each in (folder, tmp_path / "whole"))
    for each in (*ours, *theirs):
        del each["seconds"]
    assert ours == theirs
    assert (folder / "curves.png").exists()
    assert forker.run("compare", "--resume", "--out", folder, "--seeds", 7) == 2
    assert "was run with other settings: seeds 1, now 7" in forker.said()


def test_a_file_that_cannot_grow_is_one_clear_line(forker, tmp_path):
    """As on a full disk: the system refuses to write on."""
    folder = tmp_path / "run"
    size = 20_000  # enough for the metrics, not for a checkpoint
    assert forker.run(*COMMAND, "--out", folder, largest_file=size) == 2
    said = forker.said()
    assert "Traceback" not in said
    assert f"pfedbred: cannot write {folder}/checkpoint-00000004.safetensors: File too large" in said
    assert "nothing of the run is saved" in said
    assert not list(folder.glob("*.partial")) + list(folder.glob(".*"))
    assert (folder / "metrics.jsonl").read_text() == ""  # it had come to round 4, and no evaluation


def test_a_folder_in_use_is_rejected_and_a_stale_lock_is_not(forker, tmp_path, call):
    folder = tmp_path / "run"
    child = forker.start("run", "--rounds", 10**6, "--eval-every", 10**6, "--out", folder)
    assert until((folder / ".lock").exists)
    for option in ("--resume", "--overwrite"):
        code, _, said = call("run", "--rounds", 10**6, "--eval-every", 10**6, "--out", folder, option)
        assert code == 2
        assert f"{folder} is in use by process {child} on " in said
    send(child, signal.SIGKILL)
    forker.wait()
    assert (folder / ".lock").exists()
    code, _, said = call("run", "--rounds", 2, "--out", folder, "--overwrite")
    assert code == 0, said
    assert not (folder / ".lock").exists()


def test_a_long_run_grows_neither_in_memory_nor_in_files():
    """2,000 rounds with checkpoints; in a process of its own, whose memory is only its."""
    program = """
import os, sys, tempfile
from pathlib import Path
sys.path[:0] = sys.argv[1:]
from conftest import small_federation
import pfedbred

seen = {}

class Observe(pfedbred.Callback):
    def on_evaluation(self, progress, point):
        resident = int(Path("/proc/self/statm").read_text().split()[1])
        seen[point.round] = resident, len(os.listdir("/proc/self/fd"))

options = {"rounds": 2000, "eval_every": 10, "aggregated": 2, "batch_size": 3, "federation": small_federation()}
with tempfile.TemporaryDirectory() as folder:
    pfedbred.run(**options, out=Path(folder) / "run", callbacks=[Observe()], checkpoint_every=25)
print(*seen[100], *seen[2000])
"""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", program, str(here.parents[1] / "src"), str(here.parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    before, files_before, after, files_after = map(int, done.stdout.split())
    assert after < 1.05 * before
    assert files_after == files_before
