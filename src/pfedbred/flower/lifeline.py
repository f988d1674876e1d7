"""Runs a command until standard input closes, so that it ends with the process at the other end of that pipe.

A killed process cannot end its children, but the system closes its pipes. This file is run by its path and imports
nothing else of this package, so that it starts instantly. If this process is killed itself, Linux ends the command
(PR_SET_PDEATHSIG); other systems lack that, and grandchildren do not inherit it. psutil can only end children while
their parent is alive.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_TIMEOUT = 10.0  # seconds for the command and its children to end gracefully


def main(command: list[str]) -> int:
    """Runs the command; returns its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # sent to the whole group: wait for the command, which gets it too
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)  # no threads yet
    closed = threading.Event()
    watch = threading.Thread(target=_end_with_input, args=(closed,), daemon=True)
    watch.start()
    code = process.wait()
    if closed.is_set():
        watch.join()
    return code


def _end_with_parent() -> None:
    """In the child: asks Linux to kill it when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_input(closed: threading.Event) -> None:
    while os.read(0, 1024):
        pass
    closed.set()
    os.killpg(0, signal.SIGTERM)
    time.sleep(_TIMEOUT)
    os.killpg(0, signal.SIGKILL)  # the command's children may outlive it; this ends this process, too


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
