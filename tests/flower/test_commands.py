"""``pfedbred flower``; and the commands in docs/deploy.md work as printed."""

import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from cryptography import x509
from support.processes import alive, until
from typer.testing import CliRunner

from pfedbred import cli
from pfedbred.errors import SettingError
from pfedbred.flower import certificates, processes, run_config

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def typed(section):
    """The commands of a section of the page, by terminal, in their order."""
    (text,) = re.findall(rf"^## {section}\n(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return re.findall(r"```bash\n# (all three terminals|terminal \d)[^\n]*\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("section", ["Three terminals", "With TLS and node authentication"])
def test_the_pages_commands(section, tmp_path):
    blocks = typed(section)
    assert len(blocks) >= 4
    (everywhere,) = [commands for where, commands in blocks if where == "all three terminals"]
    environment = processes.environment(tmp_path / "flower")
    script = tmp_path / "bin"
    script.mkdir()
    (script / "pfedbred").write_text(f'#!/bin/sh\nexec {sys.executable} -m pfedbred "$@"\n')
    (script / "pfedbred").chmod(0o755)
    environment["PATH"] = f"{script}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    said = tmp_path / "said.txt"
    started = []
    try:
        with said.open("ab") as file:
            for where, commands in blocks:
                if where == "all three terminals":
                    continue
                process = subprocess.Popen(
                    ["bash", "-c", everywhere + commands + "wait\n"],
                    cwd=tmp_path,
                    env=environment,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
                started.append(process)
                lasts = "flower-super" in commands
                if lasts:
                    assert until(lambda text=commands: _listens(text), 120, 0.2), said.read_text()
                else:
                    assert process.wait(600) == 0, said.read_text()
    finally:
        for process in reversed(started):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = said.read_text(errors="replace")
    assert "round 5/5" in text
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["federation"]["clients"] == ["north", "south"]
    if section == "Three terminals":
        assert "personal model of client north, mg-meta, after round 5" in text


def _listens(commands):
    """Whether the servers of these commands can be reached; clients have nothing to wait for."""
    import socket

    if "flower-superlink" not in commands:
        return True
    for port in re.findall(r"--port (\d+)", commands):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", int(port))):
                return False
    return True


@pytest.mark.slow
def test_the_demo(tmp_path):
    command = [sys.executable, "-m", "pfedbred", "flower", "demo", "--out", str(tmp_path / "demo"), "--rounds", "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mg-meta: round 2/2" in done.stdout
    assert "all processes are stopped" in done.stdout
    assert not alive(str(tmp_path))


# The commands around it ---------------------------------------------------------------------------------------------


def command(*arguments):
    return CliRunner().invoke(cli.app, [str(each) for each in arguments])


def test_keys(tmp_path):
    done = command(
        "flower", "keys", tmp_path / "keys", "--node", "north", "--host", "hub.example", "--host", "10.0.0.7"
    )
    assert done.exit_code == 0, done.output
    for private in ("superlink.key", "north"):
        assert stat.S_IMODE((tmp_path / "keys" / private).stat().st_mode) == 0o600
    for public in ("ca.crt", "superlink.crt", "north.pub"):
        assert stat.S_IMODE((tmp_path / "keys" / public).stat().st_mode) == 0o644
    certificate = x509.load_pem_x509_certificate((tmp_path / "keys" / "superlink.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hub.example"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    ca = x509.load_pem_x509_certificate((tmp_path / "keys" / "ca.crt").read_bytes())
    certificate.verify_directly_issued_by(ca)
    assert (tmp_path / "keys" / "north.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert command("flower", "keys", tmp_path / "keys", "--node", "later").exit_code == 0  # the authority stays
    again = x509.load_pem_x509_certificate((tmp_path / "keys" / "ca.crt").read_bytes())
    assert again.serial_number == ca.serial_number
    assert "already has certificates" in str(command("flower", "keys", tmp_path / "keys", "--host", "other").exception)
    assert "a host must be an ASCII name or an IP address, not 'bücher.example'" in str(
        command("flower", "keys", tmp_path / "odd", "--host", "bücher.example").exception
    )
    assert "the name of a node must be of letters" in str(
        command("flower", "keys", tmp_path / "new", "--node", "../evil").exception
    )
    assert not (tmp_path / "new").exists()
    with pytest.raises(SettingError, match="already exists"):
        certificates.node_key(tmp_path / "keys" / "north")


def test_keys_that_are_not_whole_are_not_taken_for_some(tmp_path):
    certificates.make(tmp_path)
    whole = {name: (tmp_path / name).read_bytes() for name in certificates.FILES}
    other = certificates.make(tmp_path / "other").key.read_bytes()
    for name, content in [(each, found) for each in whole for found in (b"", whole[each][:-40], None)] + [
        ("superlink.key", other)
    ]:
        (tmp_path / name).unlink()
        if content is not None:
            (tmp_path / name).write_bytes(content)
        said = str(command("flower", "keys", tmp_path, "--node", "north").exception)
        assert f"{name} is missing or damaged: remove ca.crt, superlink.crt, superlink.key" in said
        assert not (tmp_path / "north").exists()
        (tmp_path / name).write_bytes(whole[name])
    assert command("flower", "keys", tmp_path, "--node", "north").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("keys", "k", "--host", ""), "a host must be an ASCII name or an IP address, not ''"),
        (("keys", ""), "Invalid value for 'FOLDER': it must not be empty"),
        (("app", "", "--out", "o"), "Invalid value for 'FOLDER': it must not be empty"),
        (("app", "a", "--out", ""), "Invalid value for '--out': it must not be empty"),
        (("demo", "--out", ""), "Invalid value for '--out': it must not be empty"),
        (("demo", "--algorithm", "fedavgg"), "unknown algorithm 'fedavgg'; did you mean 'fedavg'?"),
        (
            ("demo", "--model", "cnn"),
            "cnn needs images of shape (height, width) or (height, width, channels), at least 16 by 16, not samples of "
            "shape (64,)",
        ),
        (
            ("app", "a", "--out", "o", "--set", "algorithm=fedavgg"),
            "unknown algorithm 'fedavgg'; did you mean 'fedavg'?",
        ),
        (
            ("app", "a", "--out", "o", "--set", "model=os:system"),
            "model must be given by name on a federation, not as an import path: 'os:system'",
        ),
    ],
)
def test_nothing_is_written_or_started_by_mistake(arguments, words, call, tmp_path):
    code, _, said = call("flower", *arguments)
    assert (code, said) == (2, f"pfedbred: {words}\n")
    assert not list(tmp_path.iterdir())


def test_a_demo_leaves_a_folder_alone_that_is_not_empty(call, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    code, _, said = call("flower", "demo", "--out", "mine")
    assert (code, said) == (2, f"pfedbred: {tmp_path / 'mine'} is not empty; choose another --out\n")
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["notes"]


@pytest.mark.parametrize("writes", range(10))
def test_a_full_disk_leaves_no_half_of_the_keys(writes, tmp_path, monkeypatch):
    """The disk is full after so many writes; the same command succeeds when there is space again."""
    keys, real, done = tmp_path / "keys", os.fsync, []

    def full(handle):
        done.append(handle)
        if len(done) > writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused = command("flower", "keys", keys, "--node", "north")
    assert isinstance(refused.exception, SettingError)
    assert re.search(r"cannot write .*/keys/[\w.]+: No space left on device", str(refused.exception))
    left = {each.name for each in keys.iterdir()}
    assert left == (set(certificates.FILES) if writes >= 6 else set())  # three files, each in two steps
    assert command("flower", "keys", keys, "--node", "north").exit_code == 0
    assert {each.name for each in keys.iterdir()} == {*certificates.FILES, "north", "north.pub"}
    assert all(each.stat().st_size for each in keys.iterdir())


def test_a_full_disk_leaves_no_half_of_an_app(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused = command("flower", "app", tmp_path / "app", "--out", tmp_path / "run")
    assert re.search(r"cannot write .*/app/pyproject.toml: No space left on device", str(refused.exception))
    assert not list((tmp_path / "app").iterdir())


def test_an_app_is_what_flower_takes_for_one(tmp_path):
    from flwr.cli.config_utils import load_and_validate

    done = command("flower", "app", tmp_path / "app", "--out", tmp_path / 'a "run"', "--set", "algorithm=pfedme")
    assert done.exit_code == 0, done.output
    found, _ = load_and_validate(tmp_path / "app" / "pyproject.toml")
    written = found["tool"]["flwr"]["app"]["config"]
    assert written["algorithm"] == "pfedme"
    assert set(written) == set(run_config.DEFAULTS)
    options, fields = run_config.parse(written)
    assert options.out == tmp_path / 'a "run"'
    assert fields["algorithm"] == "pfedme"
    wrong = command("flower", "app", tmp_path / "app", "--out", "x", "--set", "algoritm=pfedme")
    assert "did you mean 'algorithm'" in str(wrong.exception)


def test_the_demo_is_refused_on_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SettingError, match="cannot be started from here on Windows: use WSL"):
        processes.check_system()
