"""Resuming a run from its folder."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pfedbred.engine.backend import Saved
from pfedbred.engine.history import has_validation
from pfedbred.errors import SettingError
from pfedbred.experiment import names
from pfedbred.experiment.building import Built
from pfedbred.experiment.configuration import field_names, plain_defaults
from pfedbred.experiment.progress import Progress
from pfedbred.io.folders import ensure_folder
from pfedbred.io.shapes import COUNT, NUMBER, Maybe, expect
from pfedbred.runs import checkpoints, layout, locks
from pfedbred.runs.chosen import ChosenRounds, load_models
from pfedbred.runs.config_file import read_config
from pfedbred.runs.metrics_file import digest, read_points, size_of
from pfedbred.settings.schedules import spans_all_rounds

S = TypeVar("S")


@contextmanager
def open_folder(
    folder: Path, *, overwrite: bool = False, resume: bool = False, patience: float = 0.0
) -> Iterator[Path]:
    """A folder to run into, locked against other processes; a new one, unless a run in it is to be resumed.

    A process that holds the lock is waited for, for ``patience`` seconds.
    """
    with locks.locked(ensure_folder(folder), patience):
        yield folder if resume and layout.started(folder) else layout.new_folder(folder, overwrite)


def recorded_options(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the run in a folder, and those that are given in their place; settings one by one."""
    before = read_config(folder / layout.CONFIG)
    algorithm = names.recorded(given.get("algorithm", before.get("algorithm")), "algorithm")
    old = before.get("settings") if names.same(before.get("algorithm"), algorithm, "algorithm") else {}
    if old is not None and not isinstance(old, dict):
        raise SettingError(f"{folder / layout.CONFIG}: settings must map names to values, not {old!r}")
    return {**before, **given, "settings": {**(old or {}), **given.get("settings", {})}}


def check_unchanged(
    folder: Path, options: Mapping[str, Any], before: Mapping[str, Any] | None = None, *, more_rounds: bool = False
) -> None:
    """Rejects other options than those of the run in the folder (``before``, by default its config.yaml).

    With ``more_rounds`` there may be more of them, unless that would have changed the run from the start.
    """
    if before is None:
        before = read_config(folder / layout.CONFIG)
    if more_rounds and has_more_rounds(before, options):
        spanning = [name for name, value in options["settings"].items() if spans_all_rounds(value)]
        if spanning:
            raise SettingError(
                f"{folder} cannot be given more rounds: the schedule of {spanning[0]} spans all rounds, and "
                "would change"
            )
        before = {**before, "rounds": options["rounds"]}
    changed = changed_options(before, options)
    if changed:
        raise SettingError(f"{folder} was run with other settings: {'; '.join(changed)}")


_FORMER: dict[str, dict[str, Any]] = {"per-fedavg": {"adapt_steps": 2}}
"""What methods did before they had such a setting, for records that do not mention it."""


def changed_options(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How two recorded experiments differ, in words, apart from options that cannot change the results."""
    free = field_names(result=False)
    before, now = ({**plain_defaults(), **each} for each in (before, now))
    changed = [
        f"{name} {before.get(name)!r}, now {now.get(name)!r}"
        for name in dict.fromkeys([*before, *now])
        if name not in (*free, "settings") and not names.same(before.get(name), now.get(name), name)
    ]
    old, new = (each.get("settings") or {} for each in (before, now))
    alike = names.same(before.get("algorithm"), now.get("algorithm"), "algorithm")
    if alike and isinstance(old, dict) and isinstance(new, dict):
        old = {**_FORMER.get(str(now["algorithm"]).partition("+")[0], {}), **old}
        changed += [
            f"{name} {old.get(name)!r}, now {new.get(name)!r}"
            for name in dict.fromkeys([*old, *new])
            if not names.same(old.get(name), new.get(name), name)
        ]
    return changed


def has_more_rounds(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether an experiment is recorded with fewer rounds than it has now."""
    return isinstance(before.get("rounds"), int) and before["rounds"] < now["rounds"]


_FACTS = {
    "experiment": dict,
    "data": Maybe(dict),
    "metrics": COUNT,
    "metrics_sha256": Maybe(str),
    "seconds": NUMBER,
    "compile_seconds": NUMBER,
    "round_seconds": NUMBER,
}


def _current(facts: Any, path: Path) -> dict[str, Any]:
    """A checkpoint's facts in the current format; earlier servers kept the time of every round."""
    expect(facts, {"experiment": dict}, path)
    facts = {"data": None, "compile_seconds": 0.0, "metrics_sha256": None, **facts}
    if isinstance(facts.get("round_seconds"), list):
        expect(facts["round_seconds"], [NUMBER], path)
        facts["round_seconds"] = statistics.median(facts["round_seconds"]) if facts["round_seconds"] else 0.0
    expect(facts, _FACTS, path)
    return facts


def latest_checkpoint(folder: Path, warn: Callable[[str], None]) -> checkpoints.Checkpoint | None:
    """The newest intact checkpoint that fits the metrics in the folder; None if there are none."""

    def fits(found: checkpoints.Checkpoint) -> None:
        facts = _current(found.facts, found.path)
        if facts["metrics"] > size_of(folder):
            raise checkpoints.Misfit(f"metrics.jsonl is shorter than when {found.path} was written")
        if facts["metrics_sha256"] not in (None, digest(folder, facts["metrics"]).hexdigest()):
            raise checkpoints.Misfit(f"metrics.jsonl has been changed since {found.path} was written")

    return checkpoints.latest(folder, warn, fits)


def what_is_saved(folder: Path) -> str:
    """What is saved of a run that has just failed: how far it could be resumed now."""
    try:
        found = latest_checkpoint(folder, lambda message: None)
    except SettingError:
        found = None
    return f"the run is saved up to round {found.round}" if found and found.round else "nothing of the run is saved"


def check_data(folder: Path, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
    """Refuses to resume on other data than ``before``, which is None where earlier versions did not record it."""
    if before not in (None, now):
        raise SettingError(f"{folder} was run on other data: {before}, now {now}")


def load_progress(folder: Path, built: Built[S], found: checkpoints.Checkpoint) -> tuple[Progress[S], int]:
    """The run as the checkpoint left it, and how many bytes of metrics.jsonl belong to it."""
    facts, (experiment, backend, _) = _current(found.facts, found.path), built
    check_unchanged(folder, experiment.plain(), facts["experiment"], more_rounds=True)
    check_data(folder, facts["data"], backend.federation.facts)
    points = read_points(folder, facts["metrics"])
    progress = Progress(
        experiment,
        backend,
        backend.load(Saved(found.arrays, found.facts), experiment.seeds),
        found.round,
        points,
        facts["seconds"],
        facts["compile_seconds"],
        [facts["round_seconds"]] if facts["round_seconds"] else [],
        chosen=ChosenRounds(models=load_models(found.arrays)) if has_validation(points) else None,
    )
    return progress, facts["metrics"]
