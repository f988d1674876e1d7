"""What a process has started ends with it, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from support.processes import alive, until

from pfedbred.flower import processes

PAUSE = 0.2  # seconds; reading logs and listing processes takes time from those that are waited for

# A process that starts another one in the way the demo does, and then sleeps. The other one ignores SIGTERM if told to.
_PARENT = """
import sys, time
from pathlib import Path
from pfedbred.flower import processes

machine = processes.Machine(Path(sys.argv[1]))
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" if sys.argv[2] == "deaf" else ""
program = deaf + "import time; print('started', flush=True); time.sleep(600)"
machine.start("child", [sys.executable, "-c", program, sys.argv[1]])
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        pytest.param("polite", signal.SIGTERM, marks=pytest.mark.full),
        pytest.param("polite", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("polite", signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param("deaf", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_children_end_with_their_parent(kind, number, tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(tmp_path), kind])
    log = tmp_path / "logs" / "child.log"
    try:
        assert until(lambda: log.exists() and "\nstarted" in log.read_text(), 120, PAUSE), alive(str(tmp_path))
        assert len(alive(str(tmp_path))) >= 2  # the list shows them
    finally:
        parent.send_signal(number)
        parent.wait(10)
    assert until(lambda: not alive(str(tmp_path)), 30, PAUSE), alive(str(tmp_path))


def test_a_stopped_process_is_waited_for(tmp_path):
    """``stop`` returns when the command has ended, not just the process that runs it. Only the owner reads its log."""
    machine = processes.Machine(tmp_path)
    slow = "import signal, sys, time; from pathlib import Path; signal.signal(signal.SIGTERM, lambda *_: "
    slow += (
        "(time.sleep(0.5), Path(sys.argv[1], 'ended').touch(), sys.exit(3))); print('up', flush=True); time.sleep(60)"
    )
    started = machine.start("child", [sys.executable, "-c", slow, str(tmp_path)])
    assert until(lambda: "\nup" in started.log.read_text(), 60, PAUSE)
    started.stop()
    assert (tmp_path / "ended").exists()
    assert started.process.returncode == 3
    assert started.log.stat().st_mode & 0o777 == 0o600


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_lifeline_takes_its_command_along(tmp_path):
    machine = processes.Machine(tmp_path)
    program = "import time; print('up', flush=True); time.sleep(60)"
    started = machine.start("child", [sys.executable, "-c", program, str(tmp_path)])
    assert until(lambda: "\nup" in started.log.read_text(), 60, PAUSE)
    os.kill(started.process.pid, signal.SIGKILL)
    try:
        assert until(lambda: not alive(f"time.sleep(60) {tmp_path}"), 10, PAUSE), alive(str(tmp_path))
    finally:
        started.stop(kill=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "programs"),
    [(signal.SIGTERM, ["flwr-clientapp", "flwr-serverapp"]), (signal.SIGKILL, ["flower-superexec"])],
    ids=["in a round", "at the start"],
)
def test_a_killed_demo_leaves_no_process(number, programs, tmp_path):
    """Flower's processes start processes of their own, in sessions of their own: those end too."""
    command = [sys.executable, "-m", "pfedbred", "flower", "demo", "--out", str(tmp_path / "demo"), "--nodes", "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    said = tmp_path / "said.txt"
    with said.open("wb") as file:
        demo = subprocess.Popen([*command, "--rounds", "50"], env=environment, stdout=file, stderr=file)
    try:
        started = lambda: all(each in "\n".join(alive(str(tmp_path))) for each in programs)  # noqa: E731
        assert until(lambda: started() or demo.poll() is not None, 300, PAUSE), said.read_text()
        assert demo.poll() is None, said.read_text()
    finally:
        demo.send_signal(number)
        demo.wait(30)
    assert until(lambda: not alive(str(tmp_path)), 60, PAUSE), "\n".join(alive(str(tmp_path)))
