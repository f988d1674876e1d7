"""report.html: one page with everything in it, to open in any browser without a network.

The page is ``assets/page.html`` with its style, its script, plotly.js and the results as JSON. Text that comes from
data is only ever put there as JSON, from which the script makes text and never markup.
"""

from __future__ import annotations

import dataclasses
import html
import json
import shlex
import string
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred import algorithms
from pfedbred import settings as settings_
from pfedbred._version import __version__
from pfedbred.errors import SettingError, is_file_name, printable
from pfedbred.experiment.configuration import Experiment
from pfedbred.io.shapes import COUNT, Maybe, expect
from pfedbred.io.strict import parse_json, read_json, read_text
from pfedbred.paper.columns import ALL
from pfedbred.paper.page import TITLES, gather_deviation, gather_table, measured_on
from pfedbred.runs.records import DATA, LAST_LINE, METRICS_LINE, SUMMARY, read_sweep

_POINTS = 400  # of a curve
_CLIENTS = 1_000  # of a run
_OPTIONS_OF_NO_INTEREST = ("settings", "algorithm", "data_dir", "store_dir")


def write_page(folders: Sequence[Path], path: Path) -> None:
    """Writes the page of some run, comparison, sweep and paper folders."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise SettingError("the page needs plotly: pip install 'pfedbred[report]'") from None
    content = gather(folders)
    names = [*(run["dataset"] for run in content["runs"]), *(folder.resolve().name for folder in folders)]
    parts = resources.files("pfedbred.report") / "assets"
    page = string.Template((parts / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(printable(f"pfedbred: {', '.join(dict.fromkeys(names))}")),
        subtitle=html.escape(printable(_subtitle(content))),
        footer=html.escape(printable(f"Made by pfedbred {__version__}: pfedbred report {' '.join(map(str, folders))}")),
        css=(parts / "page.css").read_text(encoding="utf-8"),
        script=(parts / "page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
        content=embedded(content),
    )
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as problem:
        raise SettingError(f"cannot write {path}: {problem.strerror}") from None


def embedded(content: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _subtitle(content: Mapping[str, Any]) -> str:
    kinds = {"runs": "run", "sweeps": "sweep", "tables": "table", "deviations": "deviation"}
    counts = [(len(content[many]), one, many) for many, one in kinds.items() if content[many]]
    counted = ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts)
    platforms = dict.fromkeys(content["platforms"])
    return counted + (f"; measured on {'; '.join(platforms)}" if platforms else "")


def gather(folders: Sequence[Path]) -> dict[str, Any]:
    """What the page shows, from the files of the folders."""
    content: dict[str, Any] = {
        name: [] for name in ("runs", "federations", "sweeps", "tables", "deviations", "commands", "platforms")
    }
    for folder in folders:
        if not folder.is_dir():
            raise SettingError(f"there is no folder {folder}")
        try:
            if not _gather_one(folder, content):
                raise SettingError(f"{folder} holds no finished run, comparison, sweep or result of the paper")
        except SettingError:
            raise
        except OSError as problem:
            raise SettingError(f"cannot read {folder}: {problem.strerror}") from None
    _tell_apart(content["runs"])
    content["commands"] = [{"name": run["name"], **run.pop("command")} for run in content["runs"]] + content["commands"]
    return content


def _gather_one(folder: Path, content: dict[str, Any]) -> bool:
    found = False
    if (folder / "summary.json").exists():
        _add_run(folder, content)
        found = True
    if (folder / "table.json").exists():
        summaries = read_json(folder / "table.json")
        expect(summaries, [{"algorithm": str}], folder / "table.json")
        for summary in summaries:
            if not is_file_name(summary["algorithm"]):  # it is the name of a folder here, and must not lead elsewhere
                raise SettingError(f"{folder / 'table.json'} is damaged: {summary['algorithm']!r} is not an algorithm")
            _add_run(folder / summary["algorithm"], content)
        found = True
    if (folder / "sweep.json").exists():
        _add_sweep(read_sweep(folder / "sweep.json"), folder.name, content)
        found = True
    for name in TITLES:
        if (folder / f"{name}.json").exists():
            gather_table(folder, name, content)
            found = True
    for file in sorted(folder.glob("hyper-*.json")):
        _add_sweep(read_sweep(file), file.stem, content)
        found = True
    for column in sorted((folder / "cells" / "deviation").glob("*")):
        found = gather_deviation(column, content) or found
    datasets = [_data(file) for file in sorted(folder.glob("noniid-*.json"))]
    content["federations"] += [own for own in datasets if own not in content["federations"]]
    first = {column.dataset: name for name, column in reversed(ALL.items())}
    columns = [first[own["name"]] for own in datasets if own["name"] in first]
    if columns:
        words = f"pfedbred paper noniid --columns {','.join(columns)} --out {shlex.quote(folder.resolve().name)}"
        content["commands"].append({"name": "Who has what", "command": words, "settings": {}})
    return found or bool(datasets)


def _metrics(path: Path) -> list[dict[str, Any]]:
    """The evaluations of a run, all of the same seeds and, at the end, of the same clients."""
    lines = []
    for number, text in enumerate(read_text(path).split("\n"), 1):
        if text.strip():
            lines.append(parse_json(text, f"{path}, line {number}"))
            expect(lines[-1], METRICS_LINE, f"{path}, line {number}")
    if not lines:
        raise SettingError(f"{path} is empty: the run has not been evaluated")
    expect(lines[-1], LAST_LINE, f"the last line of {path}")
    models = ("global", "personal")
    seeds = {len(line[model]["test"]["accuracy"]) for line in lines for model in models}
    clients = {len(row) for model in models for row in lines[-1][model]["test"]["client_accuracy"]}
    if len(seeds) != 1 or len(clients) != 1:
        raise SettingError(f"{path} is damaged: its numbers are not of the same seeds and clients everywhere")
    return lines


def _data(path: Path) -> dict[str, Any]:
    own = read_json(path)
    expect(own, DATA, path)
    for part in ("train", "test"):
        if len(own[part]) != len(own["names"]) or any(len(row) != len(own["labels"]) for row in own[part]):
            raise SettingError(f"{path} is damaged: its {part} table is not one of its clients and labels")
    return own


def _add_run(folder: Path, content: dict[str, Any]) -> None:
    summary = read_json(folder / "summary.json")
    expect(summary, SUMMARY, folder / "summary.json")
    lines = _metrics(folder / "metrics.jsonl")
    keep = np.unique(np.linspace(0, len(lines) - 1, min(_POINTS, len(lines))).round().astype(int))
    kept = [lines[i] for i in keep]
    run: dict[str, Any] = {
        "name": summary["algorithm"],
        "dataset": summary["data"]["name"],
        "model": summary["model"],
        "seeds": summary["seeds"],
        "rounds": [line["round"] for line in kept],
        "milliseconds": 1000 * summary["seconds"]["round"],
    }
    for letter, model in (("G", "global"), ("P", "personal")):
        accuracy = np.array([line[model]["test"]["accuracy"] for line in kept], float)
        best = summary[model]["best_accuracy"]
        diverged = summary.get("diverged") or any(
            value is None for line in lines for value in line[model]["train"]["loss"]
        )
        run[letter] = {
            "best": None if diverged else _percent(best["mean"]),
            "std": None if diverged else _percent(best["std"]),
            "worst_tenth": _percent(summary[model]["final_worst_decile"]["mean"]),
            **{name: _percents(each) for name, each in _over_seeds(accuracy).items()},
        }
    own = _data(folder / "data.json") if (folder / "data.json").exists() else None
    scored = summary.get("scored")
    expect(scored, Maybe({"numbers": [COUNT]}), folder / "summary.json", "'scored'")
    names = own["names"] if own and len(own["names"]) == own["clients"] else None  # else data.json has a part of them
    numbers = scored["numbers"] if scored else range(len(lines[-1]["global"]["test"]["client_accuracy"][0]))
    if names and max(numbers, default=0) >= len(names):
        raise SettingError(f"{folder / 'data.json'} does not belong to the run: it has {len(names)} clients")
    run["clients"] = _clients(lines[-1], names, numbers, folder)
    content["runs"].append(run)
    if own and own not in content["federations"]:
        content["federations"].append(own)
    run["command"] = {"command": command(summary["experiment"]), "settings": _settings(summary)}
    content["platforms"].append(measured_on(summary))


def _over_seeds(accuracy: np.ndarray) -> dict[str, np.ndarray]:
    return {"mean": accuracy.mean(axis=1), "low": accuracy.min(axis=1), "high": accuracy.max(axis=1)}


def _clients(
    line: Mapping[str, Any], names: Sequence[str] | None, numbers: Sequence[int], folder: Path
) -> dict[str, Any] | None:
    """Accuracy of each client at the end, mean over seeds; of at most a thousand clients."""
    g, p = (
        100 * np.array(line[model]["test"]["client_accuracy"], float).mean(axis=0) for model in ("global", "personal")
    )
    if len(numbers) != len(g):
        raise SettingError(f"{folder / 'summary.json'} is damaged: it scored {len(numbers)} clients, not {len(g)}")
    have = np.flatnonzero(np.isfinite(g) & np.isfinite(p))
    if not len(have):
        return None
    shown = have[np.unique(np.linspace(0, len(have) - 1, min(_CLIENTS, len(have))).round().astype(int))]
    return {
        "g": [round(float(each), 1) for each in g[shown]],
        "p": [round(float(each), 1) for each in p[shown]],
        "names": [names[numbers[i]] if names else str(numbers[i]) for i in shown.tolist()],
    }


def _add_sweep(facts: Mapping[str, Any], name: str, content: dict[str, Any]) -> None:
    grid = list(facts["grid"])
    points = [
        {**{key: point[key] for key in grid}, "G": _percent(point["global"]), "P": _percent(point["personal"])}
        for point in facts["points"]
    ]
    title = f"{facts['algorithm']} on {facts['experiment']['dataset']}, {facts['experiment']['model']} ({name})"
    content["platforms"].append(measured_on(facts))
    content["sweeps"].append({"name": title, "names": grid, "points": points, "best": facts["best"]})
    values = (f"--grid {key}={','.join(f'{each:g}' for each in dict.fromkeys(p[key] for p in points))}" for key in grid)
    words = command(facts["experiment"], "sweep", without=grid)
    settings = {**facts["experiment"], **facts["experiment"]["settings"]}
    settings.pop("settings")
    content["commands"].append({"name": title, "command": f"{words} {' '.join(values)}", "settings": settings})


def _settings(summary: Mapping[str, Any]) -> dict[str, Any]:
    experiment = dict(summary["experiment"])
    return {**{name: value for name, value in experiment.items() if name != "settings"}, **experiment["settings"]}


def command(experiment: Mapping[str, Any], verb: str = "run", without: Sequence[str] = ()) -> str:
    """The command that makes a run again: its options and settings that are not the defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(Experiment)}
    parts = [f"pfedbred {verb}", f"--algorithm {experiment['algorithm']}"]
    for name, value in experiment.items():
        if name in defaults and name not in _OPTIONS_OF_NO_INTEREST and value is not None and value != defaults[name]:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            parts.append(f"--{name.replace('_', '-')} {shlex.quote(text)}")
    try:
        known = settings_.declared(algorithms.factory(experiment["algorithm"]))
    except SettingError:
        known = {}
    for name, value in experiment["settings"].items():
        if name not in without and value is not None and (name not in known or known[name].default != value):
            parts.append(f"--set {shlex.quote(f'{name}={value}')}")
    return " ".join(parts)


def _tell_apart(runs: Sequence[dict[str, Any]]) -> None:
    """Runs of one method on several data, or twice on the same: names that say which."""
    names = [run["name"] for run in runs]
    for run in runs:
        if names.count(run["name"]) > 1:
            run["name"] = f"{run['name']} on {run['dataset']}, {run['model']}"
    seen: dict[str, int] = {}
    for run in runs:
        seen[run["name"]] = seen.get(run["name"], 0) + 1
        if seen[run["name"]] > 1:
            run["name"] = f"{run['name']} ({seen[run['name']]})"


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 3)


def _percents(values: np.ndarray) -> list[float | None]:
    return [round(float(100 * each), 3) if np.isfinite(each) else None for each in values]
