"""Starting a federation's processes on this machine: a SuperLink, SuperNodes, and a run on them."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pfedbred.errors import SettingError
from pfedbred.flower.certificates import Authority
from pfedbred.runs import records

CONNECTION = "federation"
_PATIENCE = 60.0  # seconds for a process to begin or to end

_APP = """\
# A Flower app that runs pfedbred. Start it with: flwr run {folder} {connection} --stream
[project]
name = "pfedbred-federation"
version = "1.0.0"
description = "Personalised federated learning with pfedbred"
license = "Apache-2.0"
dependencies = []  # pfedbred is installed on the machines; nothing is downloaded at run time

[tool.flwr.app]
publisher = "pfedbred"

[tool.flwr.app.components]
serverapp = "pfedbred.flower.server:app"
clientapp = "pfedbred.flower.client:app"

[tool.flwr.app.config]
{config}
"""

DEFAULTS: dict[str, Any] = {
    "out": "",
    "algorithm": "mg-meta",
    "model": "mclr",
    "settings": "",
    "rounds": 100,
    "seed": 0,
    "clients": 0,
    "min-clients": 2,
    "deadline": 600.0,
    "participation": "sample",
    "aggregated": 0,
    "select": "uniform",
    "weights": "data",
    "aggregate": "mean",
    "outliers": 0.2,
    "batch-size": 20,
    "eval-every": 1,
    "classes": 0,
    "labels": "",
}
"""Every key of the run config. 0 and "" stand for what the experiment or the clients say."""


def write_app(folder: Path, config: Mapping[str, Any]) -> None:
    """A Flower app in a folder: one file, whose components are this package's."""
    lines = [f"{name} = {_toml(value)}" for name, value in {**DEFAULTS, **config}.items()]
    text = _APP.format(folder=folder, connection=CONNECTION, config="\n".join(lines))
    records.find_folder(folder)
    records.write_text(folder / "pyproject.toml", text)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)


def environment(home: Path) -> dict[str, str]:
    """For Flower's processes: nothing is reported to anyone, and nothing is kept outside ``home``."""
    own = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds until a message is looked at; 1 if nobody says
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **own}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


class Started(NamedTuple):
    """A process, and the file with what it says."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self, *, kill: bool = False) -> None:
        """Ends it and all that it has started: asked first, unless to ``kill``."""
        for number in (signal.SIGKILL,) if kill else (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(10)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()


class Machine:
    """Processes on this machine, in a folder with their logs."""

    def __init__(self, folder: Path, authority: Authority | None = None) -> None:
        """Without an ``authority``, connections are not encrypted."""
        self.folder, self.authority = records.find_folder(folder), authority
        self.port = free_port()
        self.started: list[Started] = []

    @property
    def address(self) -> str:
        """Where the SuperLink is."""
        return f"127.0.0.1:{self.port}"

    def start(self, name: str, command: Sequence[str], home: str | None = None) -> Started:
        """Starts a process that has a group of its own, and so can be ended with all its children."""
        log = records.find_folder(self.folder / "logs") / f"{name}.log"
        with log.open("ab") as file:
            file.write(f"$ {shlex.join(command)}\n".encode())
            file.flush()
            environ = environment(records.find_folder(self.folder / "flower" / (home or name)))
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ, start_new_session=True
            )
        self.started.append(Started(name, process, log))
        return self.started[-1]

    def superlink(self, *, authenticated: bool = False, lasting: bool = True) -> Started:
        """The server that all connect to; with ``authenticated``, only nodes whose keys it has been told.

        If it is ``lasting``, it keeps in a file what it would else forget when it ends.
        """
        security = ["--insecure"]
        if self.authority:
            ca, certificate, key = map(str, self.authority)
            security = ["--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key]
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), *security]
        command += ["--disable-runtime-dependency-installation"]
        command += ["--enable-supernode-auth"] if authenticated else []
        command += ["--database", str(self.folder / "superlink.db")] if lasting else []
        started = self.start("superlink", command)
        self._wait_for_port(started)
        self._write_connection()
        return started

    def _wait_for_port(self, started: Started) -> None:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and started.process.poll() is None:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise SettingError(f"the SuperLink does not start: see {started.log}")

    def _write_connection(self) -> None:
        """How ``flwr`` finds the SuperLink."""
        security = f"root-certificates = {_toml(str(self.authority.ca))}" if self.authority else "insecure = true"
        lines = ("[superlink]", f'default = "{CONNECTION}"', "", f"[superlink.{CONNECTION}]")
        text = "\n".join((*lines, f'address = "{self.address}"', security, ""))
        records.write_text(records.find_folder(self.folder / "flower" / "flwr") / "config.toml", text)

    def supernode(self, name: str, config: Mapping[str, Any], key: Path | None = None) -> Started:
        """A client's machine."""
        security = ["--root-certificates", str(self.authority.ca)] if self.authority else ["--insecure"]
        command = ["flower-supernode", "--superlink", self.address, *security, "--port", str(free_port())]
        if key:
            command += ["--auth-supernode-private-key", str(key)]
        command += ["--node-config", " ".join(f"{each}={_toml(value)}" for each, value in config.items())]
        return self.start(name, command)

    def register(self, public_key: Path) -> None:
        """Tells the SuperLink of a node's key."""
        self.flwr("supernode", "register", str(public_key), CONNECTION)

    def flwr(self, *arguments: str) -> str:
        """Runs ``flwr``; returns what it says."""
        environ = environment(self.folder / "flower" / "flwr")
        done = subprocess.run(["flwr", *arguments], env=environ, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise SettingError(f"flwr {arguments[0]} failed: {done.stdout} {done.stderr}")
        return done.stdout

    def run(self, app: Path, name: str = "run") -> Started:
        """Starts a run, and a process that writes what it says into a log until the run ends."""
        return self.start(name, ["flwr", "run", str(app), CONNECTION, "--stream"], home="flwr")

    def stop(self) -> None:
        """Ends all that was started, the last first."""
        for each in reversed(self.started):
            each.stop()


@contextmanager
def machine(folder: Path, authority: Authority | None = None) -> Iterator[Machine]:
    """Processes that end with the block, however it ends."""
    made = Machine(folder, authority)
    try:
        yield made
    finally:
        made.stop()
