"""Real processes of the command line, started quickly: one process imports everything and forks for each command."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_PROGRAM = """
import os, resource, signal, sys
sys.path[:0] = sys.argv[1:]
import jax, optax, yaml, rich, typer, numpy, sklearn.datasets, matplotlib.backends.backend_agg, matplotlib.figure
import safetensors.numpy
import pfedbred.cli

def dying(fsync, times):
    # Kills the process in the middle of writing its n-th checkpoint.
    left = [times]
    def settle(handle):
        left[0] -= ".checkpoint-" in os.readlink(f"/proc/self/fd/{handle}")
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(handle)
    return settle

print("ready", flush=True)
for line in sys.stdin:
    output, limit, devices, dies, *arguments = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if not child:
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(handle, 1), os.dup2(handle, 2)
        if limit != "-":
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C
        jax.config.update("jax_num_cpu_devices", int(devices))
        if int(dies):
            os.fsync = dying(os.fsync, int(dies))
        sys.stdin.close()
        sys.argv = ["pfedbred", *arguments]
        pfedbred.cli.main()
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Forker:
    """``start(...)`` starts a command, ``wait()`` returns its exit code, negative for a signal; one at a time."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "output.txt"
        source = Path(__file__).parents[2] / "src"
        environment = {
            **os.environ,
            "JAX_ENABLE_COMPILATION_CACHE": "true",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def start(self, *arguments: object, largest_file: int | None = None, devices: int = 1, dies: int = 0) -> int:
        """The process is killed while it writes its ``dies``-th checkpoint; 0 for never."""
        assert self._process.stdin
        limit = "-" if largest_file is None else largest_file
        self._process.stdin.write("\t".join(map(str, (self.output, limit, devices, dies, *arguments))) + "\n")
        self._process.stdin.flush()
        self._child = int(self._line())
        return self._child

    def wait(self, seconds: float = 120.0) -> int:
        """Its exit code; a command that does not end in time is killed."""
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            os.kill(self._child, signal.SIGKILL)
        return int(self._line())

    def run(self, *arguments: object, **options: int) -> int:
        self.start(*arguments, **options)
        return self.wait()

    def said(self) -> str:
        return self.output.read_text()

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # it, and a command that may still be running
        self._process.communicate()


def send(child: int, number: signal.Signals) -> None:
    """A signal to a process, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def until(condition, seconds: float = 60.0, pause: float = 0.0002) -> bool:
    """Waits until the condition holds, polling often unless there is a pause."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(pause)
    return False


def alive(text: str) -> list[str]:
    """The processes, those that have ended left out, with this text in their command line or their environment."""
    command = ["ps", "axeww", "-o", "stat,pid,args"]  # ww: not cut off at the width of a terminal
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if text in line and not line.startswith("Z")]
