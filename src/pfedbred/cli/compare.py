"""``pfedbred compare``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from pfedbred import algorithms as algorithms_
from pfedbred import settings as settings_
from pfedbred.cli import options as options_
from pfedbred.cli.help_pages import DATA, METHOD
from pfedbred.cli.options import File, RunOptions
from pfedbred.cli.run import Around, finish, opened, read_options, run_each, show
from pfedbred.data.federation import Federation
from pfedbred.data.population import Population
from pfedbred.engine import Simulated
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment import references
from pfedbred.experiment.building import Built, build, load_data
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.resume import open_folder
from pfedbred.experiment.task import has_norms
from pfedbred.io.atomic import write_json, writing_into
from pfedbred.report import curves
from pfedbred.report.outcomes import show_differences
from pfedbred.runs import layout
from pfedbred.runs.comparison import comparison, pooled
from pfedbred.runs.config_file import write_config
from pfedbred.runs.record import RunRecord

_NEEDS_NORMS = "fedbn"
"""Of all algorithms, the one for models with normalisation layers only."""


@options_.with_options([*options_.options_of(RunOptions), *options_.experiment_options(without=("algorithm",))])
def compare_command(
    file: File = None,
    *,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="names or import paths separated by commas, or 'all' [default: fedavg,pfedme,mg-meta]",
            rich_help_panel=METHOD,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="algorithm to compare the others with; by default the best", rich_help_panel=METHOD),
    ] = None,
    split_seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="run on N splits of the data, with seeds from --split-seed on",
            metavar="N",
            rich_help_panel=DATA,
        ),
    ] = None,
    **options: Any,
) -> None:
    """Compare algorithms on the same data, in one table.

    The table has intervals and paired differences over seeds, or over splits of the data.

    \b
    pfedbred compare --algorithms fedavg,ditto,mg-meta --seeds 5
    pfedbred compare --dataset fashion-mnist --split 'dirichlet(0.1)' --split-seeds 3 --validation 0.2
    """
    how, around, given = read_options(file, {"algorithms": algorithms, "split_seeds": split_seeds, **options})
    in_file = [given.pop(name) for name in ("algorithms", "algorithm") if name in given]
    asked = in_file[0] if in_file else "fedavg,pfedme,mg-meta"
    names = _algorithm_names(asked)
    if baseline is not None and baseline not in names:
        raise SettingError(f"the baseline {baseline!r} is not compared{nearest(baseline, names)}")
    count = given.pop("split_seeds", None)
    several = count if count is None else settings_.check("split_seeds", count, settings_.Count)
    shared = given.pop("settings", {})
    experiments = [
        Experiment.from_mapping({**given, "algorithm": name, "settings": own})
        for name, own in zip(names, _settings_of_each(names, shared), strict=True)
    ]
    splits = [None] if several is None else _split_seeds(experiments[0], several)
    federation = _load(experiments, splits[0])
    if asked in ("all", ["all"]) and not has_norms(experiments[0], federation):
        names.remove(_NEEDS_NORMS)
        experiments = [each for each in experiments if each.algorithm in names]
    built = _build_alike(experiments, splits[0], federation)
    options_.note_ignored(experiments[0], built[0].experiment)
    if how.dry_run:
        print(yaml.safe_dump([each.experiment.plain() for each in built], sort_keys=False), end="")
        return
    common = {k: value for k, value in built[0].experiment.plain().items() if k not in ("algorithm", "settings")}
    plain = {"algorithms": names, **common, "settings": dict(shared)}
    whole = plain if several is None else {**plain, "split_seeds": several}
    command = "compare" if baseline is None else f"compare --baseline {shlex.quote(baseline)}"
    records: dict[str, list[RunRecord]] = {name: [] for name in names}
    with opened(how, built[0], whole, "compare") as folder:
        with writing_into(folder):
            write_config(folder / layout.CONFIG, whole, "compare")
        for seed in splits:
            if seed not in (None, splits[0]):
                built = _build_alike(experiments, seed, _load(experiments, seed))
            methods = dict(zip(names, built, strict=True))
            if seed is None:
                found = _run_methods(folder, methods, how, around, command)
            else:
                found = _run_split(folder, seed, methods, how, around, command, plain)
            for name, record in found.items():
                records[name].append(record)
        together = [pooled(each) for each in records.values()]
        compared = comparison(records, None if several is None else [seed or 0 for seed in splits], baseline)
        _write(folder, together, compared, table=several is None)
        show(together)
        show_differences(compared)
        if baseline is not None and len(names) > 1 and max(several or 1, together[0].summary["seeds"]) < 2:
            options_.note(
                "--baseline compares methods over seeds or splits, and there is one: add --seeds or --split-seeds"
            )
    finish(folder, together)


def _write(folder: Path, records: Sequence[RunRecord], compared: Mapping[str, Any], table: bool) -> None:
    """Writes the outcome of a comparison; ``table`` is whether its runs are directly in this folder."""
    with writing_into(folder):
        write_json(folder / layout.COMPARISON, compared)
        if table:
            write_json(folder / layout.TABLE, [record.summary for record in records])
        curves.draw_comparison(records, folder / layout.CURVES)


def _run_methods(
    folder: Path, built: Mapping[str, Built[Simulated]], how: RunOptions, around: Around, command: str, below: str = ""
) -> dict[str, RunRecord]:
    """Runs each method into its folder; its record is called as the method was given, which may be an import path."""
    found = run_each(
        folder, {layout.method_folder(name): each for name, each in built.items()}, how, around, command, below
    )
    return {
        name: RunRecord({**record.summary, "algorithm": name}, record.points)
        for name, record in zip(built, found, strict=True)
    }


def _run_split(
    folder: Path,
    seed: int,
    built: Mapping[str, Built[Simulated]],
    how: RunOptions,
    around: Around,
    command: str,
    plain: Mapping[str, Any],
) -> dict[str, RunRecord]:
    """A comparison on one split, in its own subfolder."""
    below = layout.split_name(seed)
    print(f"split {seed}", flush=True)
    with open_folder(folder / below, overwrite=how.overwrite, resume=how.resume):
        with writing_into(folder / below):
            write_config(folder / below / layout.CONFIG, {**plain, "split_seed": seed}, "compare")
        found = _run_methods(folder, built, how, around, command, below)
        _write(folder / below, [*found.values()], comparison({name: [each] for name, each in found.items()}), True)
    return found


def _split_seeds(experiment: Experiment, count: int) -> list[int]:
    first = experiment.split_seed or 0
    return list(range(first, first + count))


def _load(experiments: Sequence[Experiment], split_seed: int | None) -> Federation | Population:
    """The data of all runs, split by that seed if there is one."""
    first = experiments[0]
    return load_data(first if split_seed is None else first.replaced(split_seed=split_seed))


def _build_alike(
    experiments: Sequence[Experiment], split_seed: int | None, federation: Federation | Population
) -> list[Built[Simulated]]:
    """The experiments on the same data, which is split by that seed if there is one.

    If one of them must keep its clients off the device, all do: runs that are compared evaluate the same clients.
    """
    if split_seed is not None:
        experiments = [each.replaced(split_seed=split_seed) for each in experiments]
    built = [build(each, federation) for each in experiments]
    stores = {each.backend.store for each in built}
    if len(stores) == 1:
        return built
    store: Any = "file" if "file" in stores else "memory"
    return [build(each.experiment.replaced(store=store), federation) for each in built]


def _algorithm_names(given: Any) -> list[str]:
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise SettingError(f"algorithms must be names such as fedavg,pfedme, not {given!r}")
    names = [name.strip() for name in names]
    if names == ["all"]:
        return list(algorithms_.ALGORITHMS)
    if len({*map(layout.method_folder, names)}) != len(names):
        raise SettingError(f"an algorithm is named twice: {', '.join(names)}")
    return names


def _settings_of_each(names: Sequence[str], shared: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each algorithm takes the shared settings it has; a setting that none of them has is a mistake."""
    known = [algorithms_.declared(references.resolve(name, "algorithm")) for name in names]
    for setting in shared:
        if not any(setting in each for each in known):
            every = sorted({name for each in known for name in each})
            raise SettingError(f"none of these algorithms has a setting {setting!r}{nearest(setting, every)}")
    return [{name: value for name, value in shared.items() if name in each} for each in known]
