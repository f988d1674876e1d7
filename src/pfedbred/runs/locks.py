"""The lock on a run folder: two processes never write into the same one."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from pfedbred.errors import SettingError

LOCK = ".lock"
"""Name of the lock file inside the folder."""


class InUse(SettingError):
    """Another process holds the lock."""


class _OtherFile(Exception):
    """The lock file has another name as well."""


@contextmanager
def locked(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Holds the folder's lock; raises ``InUse`` if another process still holds it after ``patience`` seconds.

    The operating system keeps the lock, so it is released however the process ends: the lock file of a killed process
    is taken over. Its content, who holds the lock, is only for error messages.
    """
    path = folder / LOCK
    if path.is_symlink():  # what it points to would be overwritten
        raise SettingError(f"cannot lock {folder}: {path} is a symbolic link; remove it")
    # Without the operating system's locks the library could fall back to the mere existence of the file, which a killed
    # process would leave behind.
    lock = FileLock(path, timeout=patience, mode=0o600, fallback_to_soft=False, on_acquired=_write_holder)
    try:
        lock.acquire()
    except Timeout:
        raise InUse(f"{folder} is in use by {_holder(path)}") from None
    except _OtherFile:
        raise SettingError(f"cannot lock {folder}: {path} is also another file; remove it") from None
    except OSError as problem:
        reason = problem.strerror or problem
        raise SettingError(f"cannot lock {folder}: {reason}; choose a folder on a writable file system") from None
    try:
        yield
    finally:
        # Removed while the lock is held, so that nobody else's file is removed. Windows cannot remove an open file:
        # there the release does it. The folder may also have become read-only, or be gone.
        with suppress(OSError):
            path.unlink()
        lock.release()


def _write_holder(descriptor: int) -> None:
    """Writes who holds the lock into the lock file, after one byte that Windows locks against reading."""
    if os.fstat(descriptor).st_nlink > 1:  # a hard link: the file would be overwritten under its other name
        raise _OtherFile
    holder = f" process {os.getpid()} on {socket.gethostname()} since {time.ctime()}\n"
    with suppress(OSError):  # a full disk hides the holder, but the lock is held all the same
        os.ftruncate(descriptor, 0)
        os.write(descriptor, holder.encode())


def _holder(path: Path) -> str:
    """Who holds the lock, according to the lock file."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(1)
            text = file.read(200)
    except OSError:  # just released
        text = b""
    return (text or b"").decode(errors="replace").strip() or "another process"
