"""When to stop before the end: a person or a batch queue asks for it, or the time is up."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pfedbred.errors import SettingError

CODES = {"interrupted": 128 + signal.SIGINT, "terminated": 128 + signal.SIGTERM, "time limit": 75}
"""Why a run stopped, and with which code the command then ends; 75 is the usual one for "try again later"."""


class Stopped(Exception):
    """Something was stopped before its end; what is said is how far it came."""

    def __init__(self, reason: str, how_far: str) -> None:
        """``reason`` is one of CODES."""
        super().__init__(how_far)
        self.reason = reason


class Stopping:
    """Asked between rounds whether it is time to stop.

    Attributes:
      reason: why, one of CODES; None as long as nobody wants it.
    """

    def __init__(self, time_limit: float | None = None, begun: float | None = None) -> None:
        """``time_limit`` is in seconds from ``begun``, a time of ``time.monotonic``; now, if not given."""
        self.reason: str | None = None
        self._end = None if time_limit is None else (time.monotonic() if begun is None else begun) + time_limit

    def wanted(self, needed: float = 0.0) -> str | None:
        """Why to stop now, if what would come before the next question takes ``needed`` seconds."""
        if self.reason is None and self._end is not None and time.monotonic() + needed >= self._end:
            self.reason = "time limit"
        return self.reason

    @contextmanager
    def listening(self, saving: str = ", then saving") -> Iterator[Stopping]:
        """Ctrl-C, and the signal by which queues end a job, are noted; the second Ctrl-C ends the process at once."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # only the main thread hears signals
            return

        def note(number: int, frame: Any) -> None:
            told, self.reason = self.reason, "interrupted" if number == signal.SIGINT else "terminated"
            again = ""
            if number == signal.SIGINT:  # queues may well repeat theirs
                signal.signal(number, signal.SIG_DFL)
                again = "; again to stop at once"
            cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it, and may not come to show it
            if told is None or again:
                os.write(2, f"{cursor}\npfedbred: finishing the round{saving}{again}\n".encode())

        heard = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) != signal.SIG_IGN]
        before = {number: signal.signal(number, note) for number in heard}  # whom others made deaf stays so
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def process_begun() -> float:
    """When this process began, as a time of ``time.monotonic``; now, if the system does not tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.monotonic()
    return time.monotonic() - age


def seconds(text: str) -> float:
    """A time such as 90, 90s, 30m, 1h30m or 1:30:00, in seconds."""
    plain = text.strip().lower()
    clock = re.fullmatch(r"(?:(\d+):)?(\d+):(\d+)", plain)
    words = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", plain)
    found = clock or words
    parts = [float(each or 0) for each in found.groups()] if found else [0.0]
    total = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    if total <= 0:
        raise SettingError(f"a time limit is such as 90s, 30m or 1h30m, not {text!r}")
    return total
