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
from pfedbred.flower.run_config import DEFAULTS
from pfedbred.io.atomic import open_private, write_text, writing_into
from pfedbred.io.folders import ensure_folder

CONNECTION = "federation"
_TIMEOUT = 60.0  # seconds for a process to start
_LIFELINE = Path(__file__).with_name("lifeline.py")

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


def write_app(folder: Path, config: Mapping[str, Any]) -> None:
    """Writes a Flower app: one file, whose components are in this package."""
    lines = [f"{name} = {_toml(value)}" for name, value in {**DEFAULTS, **config}.items()]
    text = _APP.format(folder=folder, connection=CONNECTION, config="\n".join(lines))
    write_text(ensure_folder(folder) / "pyproject.toml", text)


def _toml(value: Any) -> str:
    """A flag, text or number as TOML; tomli-w would be a dependency for a few lines."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's processes: no telemetry, and no files outside ``home``."""
    own = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds; 1 by default
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **own}


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def check_system() -> None:
    """Refuses a system without process groups, which are needed to end processes with all their children."""
    if sys.platform == "win32":
        raise SettingError("a federation cannot be started from here on Windows: use WSL, or follow docs/deploy.md")


class Started(NamedTuple):
    """A process, and its log file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self, *, kill: bool = False) -> None:
        """Ends the process and all its children: gracefully first, unless ``kill``."""
        for number in (signal.SIGKILL,) if kill else (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(10)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()


def _listening(address: str) -> list[str]:
    host, _, port = address.rpartition(":")
    return ["--host", host, "--port", port]


def _wait_for_port(started: Started, address: str) -> None:
    host, _, port = address.rpartition(":")
    end = time.monotonic() + _TIMEOUT
    while time.monotonic() < end and started.process.poll() is None:
        with socket.socket() as tried:
            if tried.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.1)
    raise SettingError(f"the {started.name} did not start: see {started.log}")


class Machine:
    """Processes on this machine, in a folder with their logs.

    Attributes:
      control: the SuperLink's own address, for ``flwr``.
      address: the address that SuperNodes connect to: the gateway's, if nodes must authenticate.
    """

    def __init__(self, folder: Path, authority: Authority | None = None) -> None:
        """Without an ``authority``, connections are not encrypted."""
        check_system()
        self.folder, self.authority = ensure_folder(folder), authority
        self.control = self.address = f"127.0.0.1:{free_port()}"
        self.started: list[Started] = []

    def start(self, name: str, command: Sequence[str], home: str | None = None) -> Started:
        """Starts a process in a new process group, so that it can be ended with all its children.

        It also ends when this process does, for whatever reason.
        """
        log = ensure_folder(self.folder / "logs") / f"{name}.log"
        with writing_into(log.parent):
            opened = open_private(log, "ab")
        with opened as file:
            file.write(f"$ {shlex.join(command)}\n".encode())
            file.flush()
            environ = environment(ensure_folder(self.folder / "flower" / (home or name)))
            tied = [sys.executable, "-I", "-S", str(_LIFELINE), *command]
            process = subprocess.Popen(
                tied, stdin=subprocess.PIPE, stdout=file, stderr=file, env=environ, start_new_session=True
            )
        self.started.append(Started(name, process, log))
        return self.started[-1]

    def superlink(self, *, authenticated: bool = False, lasting: bool = True) -> Started:
        """Starts the server; if ``authenticated``, nodes need registered keys and reach it only through a gateway.

        A ``lasting`` one keeps its state in a file and so survives a restart.
        """
        security = ["--insecure"]
        if self.authority:
            ca, certificate, key = map(str, self.authority)
            security = ["--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key]
        command = ["flower-superlink", *_listening(self.control), *security]
        command += ["--disable-runtime-dependency-installation"]
        command += ["--enable-supernode-auth"] if authenticated else []
        command += ["--database", str(self.folder / "superlink.db")] if lasting else []
        started = self.start("superlink", command)
        if authenticated and self.address == self.control:
            self._gateway()
        _wait_for_port(started, self.control)
        self._write_connection()
        return started

    def _gateway(self) -> None:
        """Starts the gateway, which lets only SuperNodes connect."""
        assert self.authority
        self.address = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "pfedbred", "flower", "gateway", str(self.authority.ca.parent)]
        started = self.start("gateway", [*command, "--superlink", self.control, *_listening(self.address)])
        _wait_for_port(started, self.address)

    def _write_connection(self) -> None:
        """Writes the configuration that tells ``flwr`` where the SuperLink is."""
        security = f"root-certificates = {_toml(str(self.authority.ca))}" if self.authority else "insecure = true"
        lines = ("[superlink]", f'default = "{CONNECTION}"', "", f"[superlink.{CONNECTION}]")
        text = "\n".join((*lines, f'address = "{self.control}"', security, ""))
        write_text(ensure_folder(self.folder / "flower" / "flwr") / "config.toml", text)

    def supernode(self, name: str, config: Mapping[str, Any], key: Path | None = None) -> Started:
        """Starts a client's SuperNode."""
        security = ["--root-certificates", str(self.authority.ca)] if self.authority else ["--insecure"]
        command = ["flower-supernode", "--superlink", self.address, *security, "--port", str(free_port())]
        if key:
            command += ["--auth-supernode-private-key", str(key)]
        command += ["--node-config", " ".join(f"{each}={_toml(value)}" for each, value in config.items())]
        return self.start(name, command)

    def register(self, public_key: Path) -> None:
        """Registers a node's key with the SuperLink."""
        self.flwr("supernode", "register", str(public_key), CONNECTION)

    def flwr(self, *arguments: str) -> str:
        """Runs ``flwr``; returns its output."""
        environ = environment(self.folder / "flower" / "flwr")
        done = subprocess.run(["flwr", *arguments], env=environ, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise SettingError(f"flwr {arguments[0]} failed: {done.stdout} {done.stderr}")
        return done.stdout

    def run(self, app: Path, name: str = "run") -> Started:
        """Starts a run, and a process that logs its output until it ends."""
        return self.start(name, ["flwr", "run", str(app), CONNECTION, "--stream"], home="flwr")

    def stop(self) -> None:
        """Ends all processes, the latest first."""
        for each in reversed(self.started):
            each.stop()


@contextmanager
def machine(folder: Path, authority: Authority | None = None) -> Iterator[Machine]:
    """Processes that end with the block."""
    made = Machine(folder, authority)
    try:
        yield made
    finally:
        made.stop()
