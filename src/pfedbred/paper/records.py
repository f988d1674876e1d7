"""What to reproduce, and the records of what was measured; nothing is run twice with the same settings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedbred import algorithms
from pfedbred import settings as settings_
from pfedbred.data.federation import Federation
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment.callbacks import Interruption, Stopped
from pfedbred.experiment.configuration import Experiment, field_names, plain_defaults
from pfedbred.experiment.sweep import sweep
from pfedbred.io.atomic import write_text
from pfedbred.io.folders import ensure_folder
from pfedbred.io.shapes import expect
from pfedbred.io.strict import finite_or_none, read_json
from pfedbred.paper.columns import Column, Federations
from pfedbred.runs.provenance import provenance
from pfedbred.runs.schema import SWEEP, check_sweep


@contextmanager
def _silently(what: str) -> Iterator[Callable[[int, int], None]]:
    yield lambda done, total: None


@dataclass(frozen=True)
class Request:
    """What to make: the output folder, the data, columns, rows and length; how to report progress; when to stop."""

    out: Path
    federations: Federations
    columns: Sequence[str] | None = None
    rows: Sequence[str] | None = None
    seeds: int = 5
    rounds: int | None = None
    run: bool = True  # run what is missing; else show only what is recorded
    jobs: int = 1  # trainings run in parallel
    track: Sequence[str] = ()  # the names of trackers
    say: Callable[[str], None] = print
    progress: Callable[[str], AbstractContextManager[Callable[[int, int], None]]] = _silently
    interruption: Interruption | None = None

    def stop_if_wanted(self, name: str) -> None:
        """Raises ``Stopped`` before ``name`` starts if the time is up or the user wants to stop."""
        reason = self.interruption.check() if self.interruption else None
        if reason:
            raise Stopped(reason, f"{name}: not started ({reason})")


def record_file(out: Path, *names: str) -> Path:
    """The file of a record in the output folder."""
    return out.joinpath("cells", *names[:-1], f"{names[-1]}.json")


def chosen(what: str, known: Sequence[str] | Mapping[str, Any], asked: Sequence[str] | None) -> list[str]:
    """The requested names, checked; all known names if none are requested."""
    for name in asked or ():
        if name not in known:
            raise SettingError(f"there is no {what} {name!r}{nearest(name, list(known))}")
    return list(asked) if asked else list(known)


def load_or_measure(
    file: Path, wanted: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]], shape: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    """The record in a file; if there is none, that of what ``measure`` returns, which is then written.

    A record of other settings is refused and never overwritten: it may hold hours of work.

    Args:
      file: the record's file.
      wanted: the settings that decide the figures.
      measure: makes the record's content.
      shape: what the record must contain.

    Returns:
      The record, and whether it is new.
    """
    done = read_measured(file, shape)
    if done is not None:
        made = done["fingerprint"]
        other = sorted(name for name in {*wanted, *made} if made.get(name) != wanted.get(name))
        if other:
            words = ", ".join(f"{name} {made.get(name)}, not {wanted.get(name)}" for name in other)
            raise SettingError(f"{file} was made with other settings ({words}): choose another --out, or remove it")
        return done, False
    started = time.perf_counter()
    measured = measure()
    seconds = round(time.perf_counter() - started, 1)
    record = {"seconds": seconds, **measured, "fingerprint": wanted, **provenance()}
    write_record(file, record)
    return record, True


def load_or_sweep(
    file: Path,
    name: str,
    column: Column,
    experiment: Experiment,
    grid: Mapping[str, list[float]],
    federation: Callable[[], Federation],
    request: Request,
    choose_on_test: bool = False,
    **more: Any,
) -> tuple[dict[str, Any], bool]:
    """The record of a sweep, as from :func:`load_or_measure`; ``more`` is part of its settings.

    Points are chosen on the federation's validation samples, or on test samples with ``choose_on_test``.
    """

    def measure() -> dict[str, Any]:
        request.stop_if_wanted(name)
        samples = federation()
        with request.progress(name) as advance:
            found = sweep(
                column.fitted(experiment, samples),
                grid,
                federation=samples,
                choose_on_test=choose_on_test,
                observe=advance,
            )
            return found.record()

    wanted = {**fingerprint(experiment.checked()), "grid": grid, **more}
    facts, new = load_or_measure(file, wanted, measure, SWEEP)
    check_sweep(facts, file)
    return facts, new


def read_measured(file: Path, shape: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record in a file, checked against ``shape``; None if there is no file."""
    if not file.exists():
        return None
    try:
        record = read_json(file)
        expect(record, {"fingerprint": dict, **shape}, file)
    except SettingError as problem:
        raise SettingError(f"{file} is damaged: remove it and run the command again ({problem})") from None
    return record


def read_swept(file: Path) -> dict[str, Any] | None:
    """The record of a sweep in a file; None if there is no file."""
    facts = read_measured(file, SWEEP)
    if facts is not None:
        check_sweep(facts, file)
    return facts


def write_record(file: Path, record: Mapping[str, Any]) -> None:
    """Writes a record, one line per entry."""
    lines = (f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in record.items())
    ensure_folder(file.parent)
    write_text(file, "{\n" + ",\n".join(lines) + "\n}\n")


def fingerprint(experiment: Experiment) -> dict[str, Any]:
    """The settings that decide a cell's figures, regardless of where the data is and how the program runs."""
    plain = {name: value for name, value in experiment.plain().items() if name in field_names(identifies=True)}
    usual = plain_defaults()
    for name in field_names(later=True):  # records older than the option do not mention it
        if plain[name] == usual[name]:
            del plain[name]
    # The number of clients is known only with the data, so records have the value for few clients.
    plain["settings"] = settings_.settled(algorithms.builder(experiment.algorithm), plain["settings"], clients=1)
    return plain


def rounded(values: Iterable[float | None], digits: int = 3) -> list[float | None]:
    """Rounded values for JSON, which has no NaN."""
    return [None if each is None else round(each, digits) for each in map(finite_or_none, values)]
