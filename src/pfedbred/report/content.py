"""What the HTML page shows of a run, a sweep and a federation, from the files in their folders.

Numbers are checked and thinned out here, so that the page's script only draws. A metric is whatever metrics.jsonl has
a list over seeds for; which of them exist is decided where a run is evaluated and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pfedbred.errors import SettingError
from pfedbred.io.shapes import COUNT, FRACTION, NUMBER, Each, Maybe, Some, expect
from pfedbred.io.strict import parse_json, read_json, read_text
from pfedbred.runs.schema import DATA, METRIC_INFO, PLATFORM, read_sweep
from pfedbred.runs.statistics import mean_and_std

Content = dict[str, Any]
"""What the page embeds as JSON: a list for each kind of result."""

DEFAULT_METRIC = "accuracy"
_MODELS = {"G": "global", "P": "personal"}
_SPREAD = ("worst_decile", "client_std")  # stand beside the metrics: how the first of them spreads over the clients
_MOST_POINTS = 400  # of a curve
_MOST_CLIENTS = 1_000  # of a run

_SUMMARY = {
    "algorithm": str,
    "model": str,
    "seeds": COUNT,
    "seconds": {"round": NUMBER},
    "data": {"name": str},
    "experiment": {"algorithm": str, "settings": dict},
    "platform": PLATFORM,
}
_LINE = {"round": COUNT, **{model: {"train": {"loss": [Maybe(NUMBER)]}, "test": dict} for model in _MODELS.values()}}


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
    summary = read_json(folder / "summary.json")
    expect(summary, _SUMMARY, folder / "summary.json")
    lines = _read_lines(folder / "metrics.jsonl")
    kept = [lines[i] for i in _evenly(len(lines), _MOST_POINTS)]
    infos = _metric_infos(summary, _metric_names(lines[-1]), folder / "summary.json")
    diverged = {model: _diverged(summary, lines, model) for model in _MODELS.values()}
    names, shown = _clients(summary, lines[-1], folder, content)
    run: dict[str, Any] = {
        "name": summary["algorithm"],
        "dataset": summary["data"]["name"],
        "model": summary["model"],
        "seeds": summary["seeds"],
        "rounds": [line["round"] for line in kept],
        "milliseconds": 1000 * summary["seconds"]["round"],
        "rejected": _rejected(lines, folder / "metrics.jsonl"),
        "metrics": {info["name"]: _metric(info, lines, kept, diverged, shown) for info in infos},
        "clients": names,
        "diagnostics": _diagnostics(kept, folder / "metrics.jsonl"),
    }
    first = run["metrics"][infos[0]["name"]]
    for letter, model in _MODELS.items():
        worst = lines[-1][model]["test"].get("worst_decile")
        expect(worst, Maybe(Some(Maybe(NUMBER))), f"the last line of {folder / 'metrics.jsonl'}", "'worst_decile'")
        first[letter]["worst_tenth"] = None if worst is None else _number(_floats(worst).mean(), infos[0])
    content["metrics"] += [info for info in infos if info["name"] not in {each["name"] for each in content["metrics"]}]
    content["runs"].append(run)
    content["platforms"].append(platform_name(summary))
    run["reproduce"] = {
        "command": command(summary["experiment"]) if command else None,
        "settings": _settings(summary["experiment"]),
    }


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The evaluations of a run, all with the same metrics and seeds and, at the end, the same clients."""
    lines: list[dict[str, Any]] = []
    seeds: set[int] = set()
    for number, text in enumerate(read_text(path).split("\n"), 1):
        if not text.strip():
            continue
        line, where = parse_json(text, f"{path}, line {number}"), f"{path}, line {number}"
        expect(line, _LINE, where)
        lines.append(line)
        shape = {name: Some(Maybe(FRACTION if name == DEFAULT_METRIC else NUMBER)) for name in _metric_names(lines[0])}
        for model in _MODELS.values():
            expect(line[model]["test"], shape, where, f"'{model}'")
            seeds |= {len(line[model]["test"][name]) for name in shape}
    if not lines:
        raise SettingError(f"{path} is empty: the run has not been evaluated")
    if not _metric_names(lines[0]):
        raise SettingError(f"{path} is damaged, or of another version: its first line has no metric")
    last = {f"client_{name}": Some([Maybe(NUMBER)]) for name in _metric_names(lines[0])}
    clients: set[int] = set()
    for model in _MODELS.values():
        expect(lines[-1][model]["test"], last, f"the last line of {path}", f"'{model}'")
        clients |= {len(row) for name in last for row in lines[-1][model]["test"][name]}
    if len(seeds) != 1 or len(clients) != 1:
        raise SettingError(f"{path} is damaged: not all of its lines have the same seeds and clients")
    return lines


def _metric_names(line: Mapping[str, Any]) -> list[str]:
    """The metrics of an evaluation, the primary one first."""
    return [name for name in line["global"]["test"] if name not in _SPREAD and not name.startswith("client_")]


def _metric_infos(summary: Mapping[str, Any], names: Sequence[str], path: Path) -> list[dict[str, Any]]:
    """How to show each metric. Old runs do not say; they have accuracy and loss."""
    given = summary.get("metric_info") or {}
    expect(given, Each(METRIC_INFO), path, "'metric_info'")
    infos = []
    for name in names:
        usual = {"title": name, "percent": name == DEFAULT_METRIC, "higher_is_better": name == DEFAULT_METRIC}
        infos.append({"name": name, **{key: given.get(name, usual)[key] for key in usual}})
    return infos


def _diverged(summary: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], model: str) -> bool:
    """Whether the run ended without a usable model: it was stopped for that, or a training loss is not a number."""
    losses = (loss for line in lines for loss in line[model]["train"]["loss"])
    return bool(summary.get("diverged")) or any(loss is None for loss in losses)


def _metric(
    info: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    kept: Sequence[Mapping[str, Any]],
    diverged: Mapping[str, bool],
    shown: np.ndarray,
) -> dict[str, Any]:
    """One metric of both models: the best over the rounds, the curve, and the values of the clients shown."""
    found: dict[str, Any] = {}
    for letter, model in _MODELS.items():
        values = _floats([line[model]["test"][info["name"]] for line in lines])
        best = (np.fmax if info["higher_is_better"] else np.fmin).reduce(values, axis=0)  # ignores NaN
        mean, std = (None, None) if diverged[model] else mean_and_std(best)
        clients = _floats(lines[-1][model]["test"][f"client_{info['name']}"]).mean(axis=0)
        found[letter] = {
            "diverged": diverged[model],
            "best": _number(mean, info),
            "std": _number(std, info),
            **_over_seeds([line[model]["test"][info["name"]] for line in kept], info),
            "clients": [_number(each, info, digits=1) for each in clients[shown]],
        }
    return found


def _over_seeds(rows: Sequence[Sequence[float | None]], info: Mapping[str, Any]) -> dict[str, Any]:
    """A curve: mean, lowest and highest seed at each point."""
    values = _floats(rows)
    kinds = {"mean": values.mean(axis=1), "low": values.min(axis=1), "high": values.max(axis=1)}
    return {kind: [_number(each, info) for each in curve] for kind, curve in kinds.items()}


def _rejected(lines: Sequence[Mapping[str, Any]], path: Path) -> int:
    """How many updates the server rejected, over all rounds and seeds; ``left_out`` in runs of the first schema."""
    total = 0
    for line in lines:
        seeds = line.get("rejected", line.get("left_out", []))
        expect(seeds, [Each(COUNT)], path, "'rejected'")
        total += sum(sum(seed.values()) for seed in seeds)
    return total


def _diagnostics(lines: Sequence[Mapping[str, Any]], path: Path) -> dict[str, Any]:
    """What algorithms report about their training, by name: curves over the lines that have it."""
    seeds = len(lines[0]["global"]["test"][_metric_names(lines[0])[0]])
    rows: dict[str, list[Sequence[float | None]]] = {}
    for place, line in enumerate(lines):
        given = line.get("diagnostics") or {}
        expect(given, Each(Some(Maybe(NUMBER))), path, "'diagnostics'")
        for name, values in given.items():
            if len(values) != seeds:
                raise SettingError(f"{path} is damaged: the diagnostic {name!r} has {len(values)} seeds, not {seeds}")
            rows.setdefault(name, [[None] * seeds for _ in lines])[place] = values
    return {name: _over_seeds(values, {"percent": False}) for name, values in rows.items()}


def _clients(
    summary: Mapping[str, Any], line: Mapping[str, Any], folder: Path, content: Content
) -> tuple[list[str], np.ndarray]:
    """Names and places of the clients shown: those with test samples, evenly taken from very many."""
    own = read_federation(folder / "data.json") if (folder / "data.json").exists() else None
    if own:
        add_federations([own], content)
    scored = summary.get("scored")
    expect(scored, Maybe({"numbers": [COUNT]}), folder / "summary.json", "'scored'")
    first = f"client_{_metric_names(line)[0]}"
    g, p = (_floats(line[model]["test"][first]).mean(axis=0) for model in _MODELS.values())
    names = own["names"] if own and len(own["names"]) == own["clients"] else None  # else data.json lists some of them
    numbers = scored["numbers"] if scored else range(len(g))
    if names and max(numbers, default=0) >= len(names):
        raise SettingError(f"{folder / 'data.json'} does not belong to this run: it has {len(names)} clients")
    if len(numbers) != len(g):
        raise SettingError(f"{folder / 'summary.json'} is damaged: it scored {len(numbers)} clients, not {len(g)}")
    tested = np.flatnonzero(np.isfinite(g) & np.isfinite(p))
    shown = tested[_evenly(len(tested), _MOST_CLIENTS)]
    return [names[numbers[i]] if names else str(numbers[i]) for i in shown.tolist()], shown


def _evenly(count: int, most: int) -> np.ndarray:
    """At most so many of the places 0 to ``count - 1``, evenly spaced, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))


# Sweeps and data ---------------------------------------------------------------------------------------------


def add_sweep(path: Path, name: str, content: Content, command: Command | None) -> None:
    """Adds the sweep in a file."""
    facts = read_sweep(path)
    grid, experiment = list(facts["grid"]), facts["experiment"]
    points = [
        {
            **{key: point[key] for key in grid},
            **{letter: _number(point[model], {"percent": True}) for letter, model in _MODELS.items()},
        }
        for point in facts["points"]
    ]
    title = f"{facts['algorithm']} on {experiment['dataset']}, {experiment['model']} ({name})"
    content["platforms"].append(platform_name(facts))
    content["sweeps"].append({"name": title, "names": grid, "points": points, "best": facts["best"]})
    tried = {key: dict.fromkeys(point[key] for point in points) for key in grid}
    options = " ".join(f"--grid {key}={','.join(f'{each:g}' for each in tried[key])}" for key in grid)
    words = command(experiment, "sweep", without=grid) if command else None
    content["commands"].append(
        {"name": title, "command": words and f"{words} {options}", "settings": _settings(experiment)}
    )


def read_federation(path: Path) -> dict[str, Any]:
    """data.json, or a file like it: the samples of each client by label."""
    own = read_json(path)
    expect(own, DATA, path)
    for part in ("train", "test"):
        if len(own[part]) != len(own["names"]) or any(len(row) != len(own["labels"]) for row in own[part]):
            raise SettingError(f"{path} is damaged: its {part} table does not fit its clients and labels")
    return own


def add_federations(federations: Iterable[dict[str, Any]], content: Content) -> None:
    """Adds those that are not on the page yet."""
    for each in federations:
        if each not in content["federations"]:
            content["federations"].append(each)


def _settings(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """All options and settings side by side."""
    return {**{name: value for name, value in experiment.items() if name != "settings"}, **experiment["settings"]}


# Numbers -----------------------------------------------------------------------------------------------------


def _floats(values: Any) -> np.ndarray:
    """Nested lists as an array, with NaN for null."""
    return np.array(values, float)


def _number(value: float | None, info: Mapping[str, Any], digits: int = 3) -> float | None:
    """For the page: in percent where the metric is shown so, null if it is not a number."""
    if value is None or not np.isfinite(value):
        return None
    return round(100 * float(value), digits) if info["percent"] else float(f"{value:.5g}")
