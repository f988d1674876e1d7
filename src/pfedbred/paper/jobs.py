"""Several cells of a table at once, each in its own process: one compiles while another uses the GPU."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias

from pfedbred.data.sources.hub import cache_folder
from pfedbred.engine import keep_programs, use_all_cores
from pfedbred.engine.devices import is_out_of_memory
from pfedbred.errors import SettingError
from pfedbred.experiment.callbacks import Interruption, Stopped
from pfedbred.paper.records import Request
from pfedbred.report.terminal import progress_lines

_POLL = 0.5  # seconds between checks whether to stop


class _JobEnd(NamedTuple):
    """What a process did, as plain values: exceptions with custom arguments cannot be pickled back."""

    lines: list[str]
    problems: list[str]
    stopped: tuple[str, str] | None


Job: TypeAlias = Callable[[Request], list[SettingError]]
"""Some cells of a table: runs what is missing of them, and returns why some cannot be run. It can be pickled."""


def run_jobs(jobs: Sequence[Job], request: Request) -> list[SettingError]:
    """Runs the jobs, as many at a time as the request says; returns why some cells cannot be run."""
    if request.jobs == 1:
        return [problem for job in jobs for problem in job(request)]
    share_memory()
    context = multiprocessing.get_context("spawn")  # a fork of a process that runs JAX may hang
    stop, problems, stopped = context.Event(), list[SettingError](), list[Stopped]()
    interruption = request.interruption or Interruption()
    plain = dataclasses.replace(request, interruption=None, say=print, progress=progress_lines)
    listening = interruption.listening() if request.interruption else nullcontext()
    start = (stop, interruption.end)
    with listening, ProcessPoolExecutor(request.jobs, context, _prepare, start) as pool:
        waiting: set[Future[_JobEnd]] = {pool.submit(_work, each, plain) for each in jobs}
        while waiting:
            done, waiting = wait(waiting, _POLL, FIRST_COMPLETED)
            if interruption.check():
                stop.set()
            for future in done:
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    stop.set()
                    raise SettingError(
                        "a process ended unexpectedly, perhaps for lack of memory: use fewer --jobs, and run the same "
                        "command again"
                    ) from None
                for line in outcome.lines:
                    request.say(line)
                problems += map(SettingError, outcome.problems)
                stopped += [Stopped(*outcome.stopped)] if outcome.stopped else []
    if stopped:
        for each in stopped[:-1]:
            request.say(str(each))
        reason = interruption.reason or stopped[-1].reason
        raise Stopped(reason, str(stopped[-1]))
    return problems


def share_memory() -> None:
    """Lets several processes share a GPU; by default JAX gives the first one most of its memory."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


class _Follower(Interruption):
    """Stops when the process that started this one stops or is gone."""

    def __init__(self, stop: Any, end: float | None) -> None:
        super().__init__()
        self.end, self._stop = end, stop

    def check(self, needed: float = 0.0) -> str | None:
        """Why to stop now."""
        parent = multiprocessing.parent_process()
        if self.reason is None and (self._stop.is_set() or not (parent and parent.is_alive())):
            self.reason = "interrupted"
        return super().check(needed)


_following: list[_Follower] = []  # this process's follower, if it runs jobs for another process


def _prepare(stop: Any, end: float | None) -> None:
    """Prepares a new process as the command line does its own; only the parent listens for signals."""
    for each in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(each, signal.SIG_IGN)
    use_all_cores()
    keep_programs(cache_folder() / "compiled")
    _following.append(_Follower(stop, end))


def _work(job: Job, request: Request) -> _JobEnd:
    """Runs a job in this process."""
    lines: list[str] = []
    request = dataclasses.replace(request, say=lines.append, interruption=_following[0])
    try:
        problems = list(map(str, job(request)))
    except Stopped as stopped:
        return _JobEnd(lines, [], (stopped.reason, str(stopped)))
    except Exception as problem:
        if not is_out_of_memory(problem):
            raise
        problems = ["out of memory: use fewer --jobs, and run the same command again"]
        lines += problems  # the other jobs may still run
    return _JobEnd(lines, problems, None)
