"""Stopping before the last round: a signal, a time limit, or no progress."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedbred.engine import metrics
from pfedbred.engine.history import Point, Which
from pfedbred.errors import SettingError
from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.callbacks.checkpointing import rounds_in_a_second
from pfedbred.experiment.progress import Progress

if TYPE_CHECKING:
    from pfedbred.experiment.sweeping import Sweeping

_SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
if hasattr(signal, "SIGHUP"):  # not on Windows
    _SIGNALS[signal.SIGHUP] = "hung up"  # the terminal was closed

EXIT_CODES = {**{reason: 128 + number for number, reason in _SIGNALS.items()}, "time limit": 75}
"""Why a run stopped, and the exit code of the command; 75 is the usual one for "try again later"."""


class Stopped(Exception):
    """A sweep, or a table of the paper, was stopped before its end; the message says how far it got."""

    def __init__(self, reason: str, message: str) -> None:
        """``reason`` is one of EXIT_CODES."""
        super().__init__(message)
        self.reason = reason


class Interruption(Callback):
    """Stops at Ctrl-C, when a job scheduler ends the job, when the terminal is closed, and before a time limit.

    Attributes:
      reason: why to stop, one of EXIT_CODES; None while there is none.
      end: when to stop by, a time of ``time.monotonic``; None without a time limit.
    """

    def __init__(self, time_limit: float | str | None = None, started: float | None = None) -> None:
        """``time_limit`` is in seconds, or a text such as ``1h30m``, from ``started``, a time of ``time.monotonic``.

        By default it is from now.
        """
        if isinstance(time_limit, str):
            time_limit = parse_seconds(time_limit)
        self.reason: str | None = None
        self._listening = False
        self._asked = time.monotonic()
        self.end = None if time_limit is None else (time.monotonic() if started is None else started) + time_limit

    @contextmanager
    def running(self, progress: Progress[Any]) -> Iterator[None]:
        """Listens for signals while the run trains, unless it does already."""
        with nullcontext() if self._listening else self.listening():
            yield

    @contextmanager
    def running_sweep(self, sweeping: Sweeping) -> Iterator[None]:
        """The same while a sweep runs."""
        with nullcontext() if self._listening else self.listening():
            yield

    def check(self, needed: float = 0.0) -> str | None:
        """Why to stop now, if what comes before the next check takes ``needed`` seconds."""
        if self.reason is None and self.end is not None and time.monotonic() + needed >= self.end:
            self.reason = "time limit"
        return self.reason

    def most_rounds(self, progress: Progress[Any]) -> int:
        """About one second's worth of rounds."""
        self._asked = time.monotonic()
        return rounds_in_a_second(progress)

    def stop_reason(self, progress: Progress[Any]) -> str | None:
        """Leaves time for as many rounds again, and for a checkpoint."""
        return self.check(needed=1.5 * (time.monotonic() - self._asked + progress.save_seconds) + 1)

    def sweep_stop_reason(self, sweeping: Sweeping) -> str | None:
        """Once there is a reason: the evaluations of a sweep take unequal times, which cannot be foreseen."""
        return self.check()

    @contextmanager
    def listening(self, saving: str = ", then saving") -> Iterator[Interruption]:
        """While open, signals are noted; a second Ctrl-C ends the process at once."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # only the main thread receives signals
            return

        def note(number: int, frame: Any) -> None:
            noted, self.reason = self.reason, _SIGNALS[signal.Signals(number)]
            again = ""
            if number == signal.SIGINT:  # schedulers may repeat their signal
                signal.signal(number, signal.SIG_DFL)
                again = "; press Ctrl-C again to stop at once"
            cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it, and may not restore it
            if noted is None or again:
                with suppress(OSError):  # standard error may be closed
                    os.write(2, f"{cursor}\npfedbred: finishing the round{saving}{again}\n".encode())

        heard = [each for each in _SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
        before = {number: signal.signal(number, note) for number in heard}  # an ignored signal stays ignored
        self._listening = True
        try:
            yield self
        finally:
            self._listening = False
            for number, handler in before.items():
                signal.signal(number, handler)


class Patience(Callback):
    """Finishes a run early when a metric has not improved for a number of evaluations, in any seed.

    It watches the validation samples if there are any, else the test samples.

    Example:
      >>> import pfedbred
      >>> stop = pfedbred.Patience(3, metric="loss", model="global")
      >>> result = pfedbred.run(rounds=50, clients=10, callbacks=[stop])
      >>> result.round <= 50
      True
    """

    def __init__(self, evaluations: int, *, metric: str | None = None, model: Which = "personal") -> None:
        """Watches this metric of this model; by default the one that tables show, such as accuracy."""
        if not isinstance(evaluations, int) or evaluations < 1:
            raise SettingError(f"patience must be a whole number of evaluations >= 1, not {evaluations!r}")
        self._evaluations, self._model = evaluations, model
        self._metric = None if metric is None else metrics.get(metric)
        self._best: np.ndarray | None = None
        self._since = 0

    @contextmanager
    def running(self, progress: Progress[Any]) -> Iterator[None]:
        """Starts from the evaluations of a resumed run."""
        self._best, self._since = None, 0
        for point in progress.points:
            self.on_evaluation(progress, point)
        yield

    def on_evaluation(self, progress: Progress[Any], point: Point) -> None:
        """Compares with the best so far."""
        scores = point.scores.of(self._model)
        values = (scores.validation or scores.test).values
        if self._metric is None:
            self._metric = progress.backend.plan.metrics[0]
        if self._metric.name not in values:
            raise SettingError(f"patience watches {self._metric.name}, which is not evaluated: add it to metrics")
        now = values[self._metric.name] * (1 if self._metric.higher_is_better else -1)
        best = np.full(now.shape, np.nan) if self._best is None else self._best
        if self._best is None or np.any((now > best) | (np.isnan(best) & ~np.isnan(now))):
            self._best, self._since = np.fmax(best, now), 0
        else:
            self._since += 1

    def finish_reason(self, progress: Progress[Any]) -> str | None:
        """Once the patience is used up."""
        if self._metric is None or self._since < self._evaluations:
            return None
        return f"{self._metric.title} has not improved for {self._evaluations} evaluations"


_LONGEST = 100 * 365 * 24 * 3600.0


def process_started() -> float:
    """When this process began, as a time of ``time.monotonic``; now, if the system does not report it.

    psutil's create_time is a time of day, which changes when the clock is set.
    """
    try:
        ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.monotonic()
    return time.monotonic() - age


def parse_seconds(text: str) -> float:
    """A time such as 90, 90s, 30m, 1h30m or 1:30:00, in seconds.

    pytimeparse reads these too, but has had no release since 2018, and returns None for what it cannot parse.
    """
    plain = text.strip().lower()
    clock = re.fullmatch(r"(?:(\d+):)?(\d+):(\d+)", plain)
    words = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", plain)
    found = clock or words
    parts = [float(each or 0) for each in found.groups()] if found else [0.0]
    total = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
    if total <= 0:
        raise SettingError(f"a time limit must look like 90s, 30m or 1h30m, not {text!r}")
    if total > _LONGEST:
        raise SettingError(f"a time limit must be at most 100 years, not {text!r}")
    return total
