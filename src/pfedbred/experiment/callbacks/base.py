"""What a callback is: everything that happens around rounds, with a method for each moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pfedbred.engine.history import Point
from pfedbred.errors import SettingError
from pfedbred.experiment.progress import Progress

if TYPE_CHECKING:
    from pfedbred.experiment.result import Run
    from pfedbred.experiment.sweep_result import Sweep
    from pfedbred.experiment.sweeping import Sweeping

_UNLIMITED = 2**30


class Callback:
    """Around the rounds of a run, or of the points of a sweep. Every method does nothing by default.

    A sweep has methods of its own, since its state is not that of a run: many points, each at its own round.

    Example:
      >>> import pfedbred
      >>> class PrintLoss(pfedbred.Callback):
      ...     def on_evaluation(self, progress, point):
      ...         print(point.round, round(float(point.scores.personal.train.loss[0]), 2))
      >>> result = pfedbred.run(rounds=2, clients=10, callbacks=[PrintLoss()])  # doctest: +ELLIPSIS
      1 ...
      2 ...
    """

    @contextmanager
    def running(self, progress: Progress[Any]) -> Iterator[None]:
        """A context that is open while the run trains, for example to open and close files."""
        yield

    def most_rounds(self, progress: Progress[Any]) -> int:
        """How many rounds may pass before ``finish_reason``, ``stop_reason`` and ``on_pause`` are called again."""
        return _UNLIMITED

    def on_evaluation(self, progress: Progress[Any], point: Point) -> None:
        """After every evaluation."""

    def stop_reason(self, progress: Progress[Any]) -> str | None:
        """Between rounds: why the run should be interrupted now, to be resumed later; None if it should not."""
        return None

    def finish_reason(self, progress: Progress[Any]) -> str | None:
        """Between rounds: why the run is complete before its last round; None if it is not."""
        return None

    def on_pause(self, progress: Progress[Any], stopping: str | None) -> None:
        """Between rounds, after that; ``stopping`` is the reason if the run is about to stop."""

    def on_end(self, run: Run[Any]) -> None:
        """When the run has ended: completed, interrupted or diverged, but not by an exception."""

    def on_point(self, sweep: Sweep, number: int) -> None:
        """Of a sweep: when that point has ended; of a resumed sweep, for all that have."""

    @contextmanager
    def running_sweep(self, sweeping: Sweeping) -> Iterator[None]:
        """A context that is open while the sweep runs."""
        yield

    def sweep_stop_reason(self, sweeping: Sweeping) -> str | None:
        """After every evaluation: why the sweep should be interrupted now, to be resumed later."""
        return None

    def on_sweep_pause(self, sweeping: Sweeping, stopping: str | None) -> None:
        """After that; ``stopping`` is the reason if the sweep is about to stop."""

    def on_sweep_end(self, sweep: Sweep) -> None:
        """When all points have ended."""


def check_callbacks(given: Any) -> None:
    """Rejects what is not a list of callbacks, before anything is run or written."""
    if isinstance(given, Callback) or not isinstance(given, Sequence):
        raise SettingError(f"callbacks takes a list, such as callbacks=[pfedbred.Patience(3)], not {given!r}")
    for each in given:
        if not isinstance(each, Callback):
            advice = f"; give an object: {each.__name__}(...)" if isinstance(each, type) else ""
            raise SettingError(f"a callback must be a pfedbred.Callback, not {each!r}{advice}")
