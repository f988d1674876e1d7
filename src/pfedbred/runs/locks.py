"""A lock on a run folder: two processes do not write into the same one."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pfedbred.errors import SettingError

LOCK = ".lock"


class InUse(SettingError):
    """Another process has the lock."""


@contextmanager
def locked(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Holds the folder's lock, or refuses if another process does, and still does after ``patience`` seconds.

    The lock is the operating system's, on a file in the folder, so it goes when the process does, however it ends: the
    file of a process that was killed is found unlocked, and taken over. What is written in it is for people.
    """
    path = folder / LOCK
    handle, end = None, time.monotonic() + patience
    while handle is None:
        try:
            handle = _take(path)
        except InUse:
            if time.monotonic() >= end:
                raise
            time.sleep(0.2)
    try:
        with suppress(OSError):  # on a full disk nobody can read who it is, and it is locked all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()} since {time.ctime()}\n".encode(), 0)
        yield
    finally:
        with suppress(OSError):  # the folder may have been made read-only, or be gone
            path.unlink()
        os.close(handle)


def _take(path: Path) -> int:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as problem:
            raise SettingError(f"cannot write into {path.parent}: {problem.strerror}") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(handle)
            raise InUse(f"{path.parent} is in use by {who}") from None
        except OSError as problem:
            os.close(handle)
            raise SettingError(f"cannot lock {path.parent}: {problem.strerror}; choose another place") from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)  # its owner has just removed it: there may be a new one by now
