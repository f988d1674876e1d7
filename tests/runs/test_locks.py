"""A run folder belongs to one process at a time, on every operating system."""

import errno
import os
import socket
import subprocess
import sys
import time

import pytest

from pfedbred.errors import SettingError
from pfedbred.runs import layout, locks

HOLDS = """
import sys, time
from pathlib import Path
from pfedbred.runs import locks
with locks.locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_folder_in_use_names_its_holder_and_a_killed_holder_is_replaced(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDS, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(locks.InUse) as refusal, locks.locked(tmp_path):
                pass
            holder_text = f"process {holder.pid} on {socket.gethostname()} since "
            assert str(refusal.value).startswith(f"{tmp_path} is in use by {holder_text}")
            assert str(refusal.value).count("\n") == 0
        finally:
            holder.kill()
    assert (tmp_path / locks.LOCK).exists()  # left by the killed process
    with locks.locked(tmp_path):
        assert f"process {os.getpid()} " in (tmp_path / locks.LOCK).read_text()


def test_the_lock_file_is_removed_and_does_not_occupy_the_folder(tmp_path):
    with locks.locked(tmp_path):
        assert [each.name for each in tmp_path.iterdir()] == [locks.LOCK]
        assert layout.is_free(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_lock_is_waited_for(tmp_path):
    begun = time.monotonic()
    with locks.locked(tmp_path), pytest.raises(locks.InUse), locks.locked(tmp_path, 0.3):
        pass
    assert time.monotonic() - begun >= 0.3


def test_a_folder_that_cannot_be_locked_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=r"cannot lock .*file: .*; choose a folder"), locks.locked(tmp_path / "file"):
        pass
    for number in (errno.ENOSYS, errno.ENOLCK):  # file systems without locks

        def refuse(*arguments, number=number):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("fcntl.flock", refuse)
        with (
            pytest.raises(SettingError, match=f"cannot lock .*: {os.strerror(number)}; choose a folder"),
            locks.locked(tmp_path),
        ):
            pass


def test_a_full_disk_hides_the_holder_only(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with (
        locks.locked(tmp_path),
        pytest.raises(locks.InUse, match="is in use by another process"),
        locks.locked(tmp_path),
    ):
        pass


@pytest.mark.full
def test_the_library_and_its_commands_need_no_module_of_unix():
    """As on Windows, where these modules do not exist."""
    program = """
import sys
for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
import os
del os.sysconf, os.sched_getaffinity, os.killpg, os.fork
import pfedbred, pfedbred.cli
from pfedbred.engine import devices
assert devices.host_memory() == 8 * 2**30
"""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
