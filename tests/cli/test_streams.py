"""Standard output that breaks: one true line, and whatever the command was to save is saved."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from support.processes import until

RUN = ("run", "--algorithm", "fedavg", "--rounds", "3", "--clients", "10", "--no-models", "--out", "here")


def broken_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return open(writing, "w")


def full_disk():
    return open("/dev/full", "w")


BROKEN = {
    "Broken pipe": broken_pipe,
    "No space left on device": full_disk,
    "Bad file descriptor": lambda: None,  # what Python makes of a stream that is closed
}


@contextmanager
def broken(reason, monkeypatch):
    """Standard output is broken; pytest would mend it between a fixture and its test."""
    if reason == "No space left on device" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with BROKEN[reason]() or nullcontext() as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        yield


@pytest.mark.parametrize("reason", BROKEN)
def test_a_run_continues_and_is_saved(reason, call, monkeypatch, tmp_path):
    with broken(reason, monkeypatch):
        code, _, err = call(*RUN)
    assert (
        err == f"pfedbred: cannot write to standard output: {reason}; the command completed, but its output was lost\n"
    )
    assert code == 2
    assert {"summary.json", "metrics.jsonl", "curves.png"} <= {each.name for each in (tmp_path / "here").iterdir()}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_mistake_is_still_one_line(reason, call, monkeypatch):
    with broken(reason, monkeypatch):
        code, _, err = call("run", "--rounds", 0)
    assert code == 2
    assert err == "pfedbred: rounds must be a whole number >= 1 and below 2**31, not 0\n"


def test_labels_that_cannot_be_written_are_one_line(call, finished, monkeypatch, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 3)))
    command = ("predict", finished / "run" / "client-1.safetensors", "x.npy")
    assert call(*command, "--out", "labels.txt")[0] == 0
    code, out, err = call(*command, "--out", "absent/labels.txt")
    assert (code, out) == (2, "")
    assert err == "pfedbred: cannot write absent/labels.txt: No such file or directory\n"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code, out, err = call(*command, "--out", "labels.txt")
    assert (code, out) == (2, "")
    assert err == "pfedbred: cannot write labels.txt: No space left on device\n"
    assert (tmp_path / "labels.txt").read_text().count("\n") == 4
    with broken("Broken pipe", monkeypatch):
        code, _, err = call(*command)
    assert code == 2
    assert "pfedbred: cannot write to standard output: Broken pipe" in err


def full(handle):
    raise OSError(28, "No space left on device")


@pytest.mark.full
@pytest.mark.parametrize(("redirection", "reason"), [("| head -1", "Broken pipe"), (">&-", "Bad file descriptor")])
def test_the_same_in_a_shell(redirection, reason, tmp_path):
    line = f"exec 2>errors; {sys.executable} -m pfedbred {' '.join(RUN)} {redirection}"
    subprocess.run(["sh", "-c", line], cwd=tmp_path, check=False, stdout=subprocess.DEVNULL)
    said = (tmp_path / "errors").read_text()
    assert (
        said == f"pfedbred: cannot write to standard output: {reason}; the command completed, but its output was lost\n"
    )
    assert (tmp_path / "here" / "summary.json").exists()


@pytest.mark.full
def test_an_interrupt_during_imports_shows_no_traceback():
    command = [sys.executable, "-m", "pfedbred", "list"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        assert until(lambda: "jaxlib" in maps.read_text())  # half of the imports are still to come
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == -signal.SIGINT


@pytest.mark.full
def test_an_interrupt_in_a_callback_is_not_lost():
    """Python ignores exceptions in what is called while it collects garbage, which JAX makes use of."""
    program = """
import gc, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
import pfedbred.cli
interrupt = lambda *_: os.kill(os.getpid(), signal.SIGINT)
collect = lambda *_: (gc.callbacks.append(interrupt), gc.collect(), gc.callbacks.remove(interrupt))
pfedbred.cli.main.__globals__["use_all_cores"] = collect
sys.argv = ["pfedbred", "list", "algorithms"]
pfedbred.cli.main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "pfedbred: stopped\n")
