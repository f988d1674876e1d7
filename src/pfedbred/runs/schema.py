"""What the readers of run folders expect to find in their files: shapes for :func:`pfedbred.io.shapes.expect`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfedbred.errors import SettingError
from pfedbred.io.shapes import COUNT, FRACTION, NUMBER, Each, Maybe, Some, expect
from pfedbred.io.strict import read_json
from pfedbred.runs.calibration import check_content
from pfedbred.runs.figures import TITLES, Figure

PLATFORM = {"device": str, "backend": str, "jax": str}
_OVER_SEEDS = {"mean": Maybe(FRACTION), "std": Maybe(FRACTION)}
_ANY_OVER_SEEDS = {"mean": Maybe(NUMBER), "std": Maybe(NUMBER)}
_JOINED = {"global": _ANY_OVER_SEEDS, "personal": Some(_ANY_OVER_SEEDS)}
_EXPERIMENT = {"algorithm": str, "settings": dict}

FINISHED = {
    "algorithm": str,
    "model": str,
    "rounds": COUNT,
    "seeds": COUNT,
    "seconds": {"round": NUMBER},
    "data": {"name": str},
    "global": dict,
    "personal": dict,
    "newcomers": Maybe({"clients": COUNT, **_JOINED}),
    "scored": Maybe({"clients": COUNT, "took_part": Some(COUNT)}),
    "rejected": [Each(COUNT)],
    "skipped_rounds": [COUNT],
    "diverged": Maybe(COUNT),
    "experiment": _EXPERIMENT,
    "platform": PLATFORM,
}
METRIC = {"final": _ANY_OVER_SEEDS, "best": _ANY_OVER_SEEDS, "best_round": [COUNT]}
_CHOSEN = {"chosen_round": Some(COUNT), "metrics": Each({"chosen": _ANY_OVER_SEEDS})}
METRIC_INFO = {"title": str, "percent": bool, "higher_is_better": bool}
_ENSEMBLE = {"metrics": Each({"value": Maybe(NUMBER), "clients": [Maybe(NUMBER)]}), "worst_tenth": Maybe(NUMBER)}
_FIRST_METRICS = {
    "accuracy": {"title": "accuracy", "percent": True, "higher_is_better": True},
    "loss": {"title": "loss", "percent": False, "higher_is_better": False},
}
DATA = {"name": str, "clients": COUNT, "names": [str], "labels": [str], "train": [[COUNT]], "test": [[COUNT]]}
PLAN = {"grid": [str], "points": Maybe(COUNT), "sampler": Maybe(str), "halving": bool, "choose_on_test": bool}
SWEEP = {
    "algorithm": str,
    "grid": Some(str),
    "best": dict,
    "points": Some({"global": Maybe(NUMBER), "personal": Maybe(NUMBER)}),
    "experiment": {**_EXPERIMENT, "dataset": str, "model": str, "rounds": COUNT},
    "platform": PLATFORM,
}


_ESTIMATE = {"mean": Maybe(NUMBER), "half_width": Maybe(NUMBER)}
_COMPARED = {**_ESTIMATE, "difference": Maybe(_ESTIMATE), "best": bool, "told_from_best": Maybe(bool)}
COMPARISON = {
    "seeds": COUNT,
    "splits": Maybe(Some(COUNT)),
    "baseline": Maybe(str),
    "figures": Some(str),
    "metric_info": Each(METRIC_INFO),
    "methods": Some({"algorithm": str, "global": dict, "personal": dict}),
}


def read_summary(path: Path) -> dict[str, Any]:
    """summary.json of a finished run, also of earlier versions."""
    summary = read_json(path)
    expect(summary, dict, path)
    if "left_out" in summary:
        summary["rejected"] = summary.pop("left_out")  # its name before version 2 of metrics.jsonl
    expect(summary, FINISHED, path)
    joined = summary["newcomers"] or {}
    expect(joined.get("metrics", {}), Each(_JOINED), path, "'newcomers'")  # earlier versions had the first one's alone
    summary.setdefault("metric_info", _FIRST_METRICS)  # version 1 knew no others
    expect(summary["metric_info"], {"loss": METRIC_INFO}, path, "'metric_info'")
    expect(summary["metric_info"], Each(METRIC_INFO), path, "'metric_info'")
    first = primary_metric(summary)
    over_seeds = _OVER_SEEDS if first == "accuracy" else _ANY_OVER_SEEDS
    check_content(summary.get("calibration"), path)
    expect(summary.get("ensemble"), Maybe(_ENSEMBLE), path, "'ensemble'")
    expect(summary.get("finished_early"), Maybe({"reason": str, "round": COUNT}), path, "'finished_early'")
    models = ("global", "personal")
    chosen = any("chosen_round" in summary[model] for model in models)  # there are validation samples
    for model in models:
        expect(summary[model], {f"best_{first}": over_seeds, "final_worst_decile": over_seeds}, path, f"{model!r}")
        expect(summary[model].get(f"final_{first}"), Maybe(over_seeds), path, f"{model!r}")
        expect(summary[model].get("metrics", {}), Each(METRIC), path, f"{model!r}")
        if chosen:
            expect(summary[model], _CHOSEN, path, f"{model!r}")
    return summary


def primary_metric(summary: Mapping[str, Any]) -> str:
    """The name of the metric that tables and pictures of a run show: the first of those that were evaluated."""
    return next(iter(summary.get("metric_info", _FIRST_METRICS)))


def primary_info(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """How to show that metric."""
    return summary.get("metric_info", _FIRST_METRICS)[primary_metric(summary)]


def read_comparison(path: Path) -> dict[str, Any]:
    """comparison.json."""
    facts = read_json(path)
    expect(facts, COMPARISON, path)
    for figure in facts["figures"]:
        if figure not in TITLES:
            raise SettingError(f"{path} is damaged, or of another version: there is no figure {figure!r}")
    every = {metric: dict.fromkeys(facts["figures"], _COMPARED) for metric in facts["metric_info"]}
    expect(facts["methods"], [dict.fromkeys(("global", "personal"), every)], path, "'methods'")
    return facts


def read_sweep(path: Path) -> dict[str, Any]:
    """What sweep.json says, or a file like it."""
    facts = read_json(path)
    check_sweep(facts, path)
    return facts


def sweep_metric(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """How to show what a sweep measured; earlier ones measured accuracy."""
    return facts.get("metric") or {"name": "accuracy", **_FIRST_METRICS["accuracy"]}


def sweep_figure(facts: Mapping[str, Any]) -> Figure:
    """The figure to quote of a sweep's points; earlier ones had the best on test only."""
    return "chosen" if "metric" in facts and "chosen" in point_figures(facts["points"][0], "personal") else "best"


def point_figures(point: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """The figures of a point of a sweep, of G or of P."""
    return point["measured"]["figures"][model] if "measured" in point else {"best": {"mean": point[model]}}


def point_score(point: Mapping[str, Any], model: str) -> float | None:
    """What a point of a sweep is chosen by."""
    return point["measured"]["score"][model] if "measured" in point else point[model]


def check_sweep(facts: Any, where: Path) -> None:
    """Rejects what is not the record of a sweep."""
    expect(facts, SWEEP, where)
    expect(facts.get("plan"), Maybe(PLAN), where, "'plan'")
    values = dict.fromkeys(facts["grid"], NUMBER)
    expect(facts, {"best": values, "points": [values]}, where)
    if "metric" in facts or any("measured" in point for point in facts["points"]):  # else it is an earlier one
        expect(facts, {"metric": dict}, where)
        expect(facts["metric"], {"name": str, **METRIC_INFO}, where, "'metric'")
        expect(facts, {"chosen_on": str, "seeds": COUNT, "seconds": {"total": NUMBER, "compile": NUMBER}}, where)
        models = ("global", "personal")
        expect(facts["points"], [{"measured": {"figures": dict.fromkeys(models, dict)}}], where, "'points'")
        figures = dict.fromkeys({sweep_figure(facts), "last", "best"}, _ESTIMATE)
        scores = dict.fromkeys(models, Maybe(NUMBER))
        shape = {"figures": dict.fromkeys(models, figures), "score": scores, "rounds": COUNT}
        expect(facts["points"], [{"measured": shape}], where, "'points'")
