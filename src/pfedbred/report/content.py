"""What the HTML page shows of a run, a sweep and a federation, from the files in their folders.

Numbers are thinned out and rounded here, so that the page's script only draws. A metric is whatever the record of a
run has; which of them exist is decided where a run is evaluated and nowhere else.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pfedbred.algorithms.strength import is_strength
from pfedbred.engine.history import Which
from pfedbred.errors import SettingError, is_folder_name
from pfedbred.io.shapes import COUNT, Maybe, expect
from pfedbred.io.strict import finite_or_none, read_json
from pfedbred.report.distribution import in_order
from pfedbred.report.uncertainty import page_content
from pfedbred.runs.comparison import pooled
from pfedbred.runs.figures import SUMMARY_KEYS, TITLES, Figure, diverged_seeds
from pfedbred.runs.layout import DATA, SUMMARY, method_folder, split_name
from pfedbred.runs.record import RunRecord
from pfedbred.runs.schema import DATA as DATA_SHAPE
from pfedbred.runs.schema import point_figures, point_score, read_comparison, read_sweep, sweep_figure, sweep_metric
from pfedbred.runs.statistics import estimate, evenly_spaced, mean_and_std

Content = dict[str, Any]
"""What the page embeds as JSON: a list for each kind of result."""

_MODELS: dict[str, Which] = {"G": "global", "P": "personal"}
_MOST_POINTS = 400  # of a curve
_MOST_CLIENTS = 1_000  # of a run
_MOST_CELLS = 100  # of a map of clients and rounds, along each side


class Command(Protocol):
    """Returns the command line that reproduces an experiment: see ``pfedbred.experiment.command``."""

    def __call__(self, experiment: Mapping[str, Any], verb: str = "run", without: Sequence[str] = ()) -> str | None:
        """For ``pfedbred VERB``, leaving out the settings ``without``."""
        ...


def platform_name(record: Mapping[str, Any]) -> str:
    """The hardware and JAX version that a record was measured with."""
    facts = record["platform"]
    return f"{facts['device']} ({facts['backend']}), jax {facts['jax']}"


# Runs --------------------------------------------------------------------------------------------------------


def add_run(folder: Path, content: Content, command: Command | None) -> None:
    """Adds a finished run: its curves and outcome by metric, its clients, its data and how to reproduce it."""
    run = RunRecord.read(folder)
    add_record(run, *_clients(run, folder, content), content, command)


def add_record(
    run: RunRecord, names: Sequence[str], clients: np.ndarray, content: Content, command: Command | None
) -> None:
    """Adds a run whose clients of these names and places are shown."""
    kept = evenly_spaced(len(run.points), _MOST_POINTS)
    metrics = {
        name: {letter: _metric(run, name, model, kept, clients) for letter, model in _MODELS.items()}
        for name in run.metrics
    }
    for letter, model in _MODELS.items():
        worst = run.points[-1].scores.of(model).test.values.get("worst_decile")
        percent = run.metrics[run.primary]["percent"]
        metrics[run.primary][letter]["worst_tenth"] = None if worst is None else _number(worst.mean(), percent)
    shown = {each["name"] for each in content["metrics"]}
    content["metrics"] += [{"name": name, **info} for name, info in run.metrics.items() if name not in shown]
    content["platforms"].append(platform_name(run.summary))
    content["runs"].append(
        {
            "name": run.algorithm,
            "dataset": run.summary["data"]["name"],
            "tests": _tests(run),
            "model": run.summary["model"],
            "seeds": run.summary["seeds"],
            "rounds": [run.points[i].round for i in kept],
            "milliseconds": 1000 * run.summary["seconds"]["round"],
            "rejected": sum(sum(seed.values()) for point in run.points for seed in point.rejections.rejected),
            "metrics": metrics,
            "clients": list(names),
            "diagnostics": _diagnostics(run, kept),
            "described": _described(run, names, clients),
            "uncertainty": page_content(run.summary, clients),
            "ensemble": _ensemble(run),
            "reproduce": {
                "command": command(run.experiment) if command else None,
                "settings": _settings(run.experiment),
            },
        }
    )


def _tests(run: RunRecord) -> dict[str, Any]:
    """What tells the test samples of one run from those of another: only values on the same ones are comparable."""
    of_training = ("train_samples", "validation_samples", "validation")
    facts = {name: value for name, value in run.summary["data"].items() if name not in of_training}
    return {**facts, "splits": run.summary.get("splits")}


def _metric(run: RunRecord, name: str, model: Which, kept: np.ndarray, clients: np.ndarray) -> dict[str, Any]:
    """One metric of one model: its figures, the curve, the chosen rounds, and the values of the clients shown."""
    percent = run.metrics[name]["percent"]
    mean, std = mean_and_std(run.best(name, model))
    of_clients = run.points[-1].scores.of(model).test.clients[name].mean(axis=0) if len(clients) else clients
    return {
        "diverged": bool(diverged_seeds(run.points, model, run.diverged is not None).any()),
        "best": _number(mean, percent),
        "std": _number(std, percent),
        "figures": {figure: _estimate(run, figure, name, model) for figure in run.figures},
        "chosen": _chosen(run, name, model) if "chosen" in run.figures else None,
        **_over_seeds(run.curve(name, model)[kept], percent),
        "clients": [_number(each, percent, digits=1) for each in of_clients[clients]],
    }


def _ensemble(run: RunRecord) -> dict[str, Any] | None:
    """The ensembles of the run's seeds, each metric's value and the worst tenth of the first one's."""
    found = run.summary.get("ensemble")
    if not found:
        return None
    values = {name: _number(found["metrics"][name]["value"], info["percent"]) for name, info in run.metrics.items()}
    return {"values": values, "worst_tenth": _number(found["worst_tenth"], run.metrics[run.primary]["percent"])}


def _estimate(run: RunRecord, figure: Figure, name: str, model: Which) -> dict[str, float | None]:
    """A figure's mean and the half-width of its interval: from the summary, if that covers several splits."""
    percent = run.metrics[name]["percent"]
    found = estimate(run.figure(figure, name, model))._asdict()
    if "splits" in run.summary:
        found = run.summary[model]["metrics"][name][SUMMARY_KEYS[figure]]
    return {"mean": _number(found["mean"], percent), "half": _number(found["half_width"], percent)}


def _chosen(run: RunRecord, name: str, model: Which) -> dict[str, Any]:
    """For each seed, the chosen round and the value there."""
    places, percent = run.places("chosen", name, model), run.metrics[name]["percent"]
    values = run.curve(name, model)[places, np.arange(len(places))]
    return {
        "rounds": [run.points[place].round for place in places],
        "values": [_number(each, percent) for each in values],
    }


def _over_seeds(values: np.ndarray, percent: bool) -> dict[str, Any]:
    """A curve: mean, lowest and highest seed at each point."""
    kinds = {"mean": values.mean(axis=1), "low": values.min(axis=1), "high": values.max(axis=1)}
    return {kind: [_number(each, percent) for each in curve] for kind, curve in kinds.items()}


def _diagnostics(run: RunRecord, kept: np.ndarray) -> dict[str, Any]:
    """What algorithms report about their training, by name: curves with gaps where a point does not have it."""
    found = [run.points[i].diagnostics for i in kept]
    missing = np.full_like(run.points[0].scores.global_.test.loss, np.nan)
    return {
        name: _over_seeds(np.stack([each.get(name, missing) for each in found]), percent=False)
        for name in dict.fromkeys(name for each in found for name in each)
    }


def _described(run: RunRecord, names: Sequence[str], clients: np.ndarray) -> dict[str, Any] | None:
    """What describes clients at each evaluation, as maps: a row for each client, means over seeds.

    Strengths of priors are averaged and shown as logarithms. Clients are sorted by their last values: the same way in
    all maps of strengths, and in a map of anything else, whose unit is its own, by that alone.
    """
    found = [(point.round, point.described) for point in run.points if point.described]
    if not found or not len(clients):
        return None
    kept = [found[i] for i in evenly_spaced(len(found), _MOST_CELLS)]
    shown = evenly_spaced(len(clients), _MOST_CELLS)

    def rows(name: str) -> np.ndarray:
        own = [each[name] for _, each in kept]
        means = [(_logarithm(each) if is_strength(name) else each).mean(axis=0) for each in own]
        return np.stack([each[clients[shown]] for each in means], axis=1)

    def described_by(name: str, rows: np.ndarray, last: np.ndarray) -> dict[str, Any]:
        order = np.argsort(last, kind="stable")
        values = 10**rows if is_strength(name) else rows
        return {
            "name": name,
            "strength": is_strength(name),
            "clients": [names[shown[i]] for i in order],
            "rows": [[_number(each, percent=False) for each in row] for row in values[order]],
        }

    maps = {name: rows(name) for name in kept[-1][1]}
    strengths = [rows[:, -1] for name, rows in maps.items() if is_strength(name)]
    together = np.mean(strengths, axis=0) if strengths else None
    return {
        "rounds": [round_ for round_, _ in kept],
        "maps": [
            described_by(name, rows, together if together is not None and is_strength(name) else rows[:, -1])
            for name, rows in maps.items()
        ],
    }


def _logarithm(values: np.ndarray) -> np.ndarray:
    """To base 10; NaN for what has none."""
    return np.log10(values, where=values > 0, out=np.full_like(values, np.nan))


def _clients(run: RunRecord, folder: Path, content: Content) -> tuple[list[str], np.ndarray]:
    """Names and places of the clients shown: those with test samples, evenly taken from very many."""
    own = read_federation(folder / DATA) if (folder / DATA).exists() else None
    if own:
        add_federations([own], content)
    scored = run.summary["scored"]
    expect(scored, Maybe({"numbers": [COUNT]}), folder / SUMMARY, "'scored'")
    g, p = (run.points[-1].scores.of(model).test.clients[run.primary].mean(axis=0) for model in _MODELS.values())
    names = own["names"] if own and len(own["names"]) == own["clients"] else None  # else data.json lists some of them
    numbers = scored["numbers"] if scored else range(len(g))
    if names and max(numbers, default=0) >= len(names):
        raise SettingError(f"{folder / DATA} does not belong to this run: it has {len(names)} clients")
    if len(numbers) != len(g):
        raise SettingError(f"{folder / SUMMARY} is damaged: it scored {len(numbers)} clients, not {len(g)}")
    tested = np.flatnonzero(np.isfinite(g) & np.isfinite(p))
    shown = tested[evenly_spaced(len(tested), _MOST_CLIENTS)]
    return [names[numbers[i]] if names else str(numbers[i]) for i in shown.tolist()], shown


# Comparisons ---------------------------------------------------------------------------------------------------


def add_comparison(path: Path, content: Content, command: Command | None) -> None:
    """Adds the comparison in a file, and the runs of one on several splits, those of a method as one."""
    facts = read_comparison(path)
    names = [method["algorithm"] for method in facts["methods"]]
    for name in names if facts["splits"] else ():
        below = method_folder(name)
        if not is_folder_name(below):  # it must not lead elsewhere
            raise SettingError(f"{path} is damaged: {name!r} is not an algorithm")
        runs = [RunRecord.read(path.parent / split_name(seed) / below) for seed in facts["splits"]]
        add_record(pooled(runs), [], np.zeros(0, int), content, command)
    if len(names) < 2:
        return
    metrics = facts["metric_info"]
    content["comparisons"].append(
        {
            "name": path.parent.resolve().name,
            "over": _counted(len(facts["splits"]), "split") if facts["splits"] else _counted(facts["seeds"], "seed"),
            "to": facts["baseline"],
            "figures": [{"name": figure, "title": TITLES[figure]} for figure in facts["figures"]],
            "metrics": [{"name": name, **info} for name, info in metrics.items()],
            "methods": [
                {
                    "name": method["algorithm"],
                    **{
                        letter: {
                            metric: {
                                figure: _compared(method[model][metric][figure], info["percent"])
                                for figure in facts["figures"]
                            }
                            for metric, info in metrics.items()
                        }
                        for letter, model in _MODELS.items()
                    },
                }
                for method in facts["methods"]
            ],
        }
    )


def _counted(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def _compared(found: Mapping[str, Any], percent: bool) -> dict[str, Any]:
    """A figure of a method beside the others."""
    difference = found["difference"] or {}
    return {
        "mean": _number(found["mean"], percent),
        "half": _number(found["half_width"], percent),
        "difference": _number(difference.get("mean"), percent),
        "difference_half": _number(difference.get("half_width"), percent),
        "best": found["best"],
        "told": found["told_from_best"],
    }


# Sweeps and data ---------------------------------------------------------------------------------------------


def add_sweep(path: Path, name: str, content: Content, command: Command | None) -> None:
    """Adds the sweep in a file."""
    facts = read_sweep(path)
    grid, experiment, metric = list(facts["grid"]), facts["experiment"], sweep_metric(facts)
    quoted, percent = sweep_figure(facts), metric["percent"]
    points = [
        {
            **{key: point[key] for key in grid},
            **{letter: _point_figures(point, model, quoted, percent) for letter, model in _MODELS.items()},
            "score": _number(point_score(point, "personal"), percent),
            "rounds": point["measured"]["rounds"] if "metric" in facts else None,
        }
        for point in facts["points"]
    ]
    title = f"{facts['algorithm']} on {experiment['dataset']}, {experiment['model']} ({name})"
    content["platforms"].append(platform_name(facts))
    content["sweeps"].append(
        {
            "name": title,
            "names": grid,
            "points": points,
            "best": facts["best"],
            "metric": dict(metric),
            "figures": list(TITLES) if quoted == "chosen" else ["best"],
            "chosen_on": facts.get("chosen_on", "test"),
        }
    )
    options = _tried(facts, grid)
    words = command(experiment, "sweep", without=grid) if command else None
    content["commands"].append(
        {"name": title, "command": words and f"{words} {options}", "settings": _settings(experiment)}
    )


def _point_figures(point: Mapping[str, Any], model: Which, quoted: Figure, percent: bool) -> dict[str, Any]:
    """The figures of a point; ``value`` is the one to quote."""
    figures = {figure: _number(each["mean"], percent) for figure, each in point_figures(point, model).items()}
    return {"value": figures[quoted], **figures}


def _tried(facts: Mapping[str, Any], grid: Sequence[str]) -> str:
    """The options of the command line that try the same points."""
    plan = facts.get("plan")
    if plan is None:  # an earlier sweep, of a grid, and chosen on test samples
        tried = {key: dict.fromkeys(point[key] for point in facts["points"]) for key in grid}
        values = [f"{key}={','.join(f'{each:g}' for each in tried[key])}" for key in grid]
        plan = {"grid": values, "choose_on_test": facts.get("chosen_on", "test") == "test"}
    words = [f"--grid {shlex.quote(each)}" for each in plan["grid"]]
    words += [
        f"--{name} {shlex.quote(str(plan[name]))}" for name in ("points", "sampler") if plan.get(name) is not None
    ]
    words += [f"--{name.replace('_', '-')}" for name in ("halving", "choose_on_test") if plan.get(name)]
    return " ".join(words)


def read_federation(path: Path) -> dict[str, Any]:
    """data.json, or a file like it: the samples of each client by label."""
    own = read_json(path)
    expect(own, DATA_SHAPE, path)
    if "validation" in own:
        expect(own["validation"], DATA_SHAPE["test"], path, "'validation'")
    for part in [part for part in ("train", "validation", "test") if part in own]:
        if len(own[part]) != len(own["names"]) or any(len(row) != len(own["labels"]) for row in own[part]):
            raise SettingError(f"{path} is damaged: its {part} table does not fit its clients and labels")
    return own


def add_federations(federations: Iterable[dict[str, Any]], content: Content) -> None:
    """Adds those that are not on the page yet, their clients in the order of the pictures."""
    for federation in federations:
        order = in_order(federation["names"])
        by_client = [name for name in ("names", "train", "validation", "test") if name in federation]
        each = federation | {name: [federation[name][i] for i in order] for name in by_client}
        if each not in content["federations"]:
            content["federations"].append(each)


def _settings(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """All options and settings side by side."""
    return {**{name: value for name, value in experiment.items() if name != "settings"}, **experiment["settings"]}


def _number(value: float | None, percent: bool, digits: int = 3) -> float | None:
    """For the page: in percent where the metric is shown so, null if it is not a number."""
    number = finite_or_none(value)
    if number is None:
        return None
    return round(100 * number, digits) if percent else float(f"{number:.5g}")
