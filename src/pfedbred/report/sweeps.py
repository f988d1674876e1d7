"""The table of a sweep in the shell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pfedbred.report.console import counted, new_table, print_table, shown_estimate, shown_number
from pfedbred.runs.figures import EXPLAINED

_MODELS = {"global": "G", "personal": "P"}


def show_sweep(facts: Mapping[str, Any], most: int = 10) -> None:
    """The best points of a sweep's record, by what they are chosen by, with every figure of G and P."""
    names, points, seconds = facts["grid"], facts["points"], facts["seconds"]
    metric, figures = facts["metric"], list(points[0]["measured"]["figures"]["personal"])
    sign = 1 if metric["higher_is_better"] else -1
    ranked = sorted(points, key=lambda point: _rank(point, sign), reverse=True)
    shown = ranked[:most]
    words = (
        f"the best {len(shown)} of {len(points)} points" if len(points) > len(shown) else counted(len(points), "point")
    )
    unit = " in %" if metric["percent"] else ""
    validated, score = facts["chosen_on"] == "validation", "P validation"
    rounds = counted(facts["experiment"]["rounds"], "round")
    table = new_table(
        f"{facts['algorithm']}, {rounds}: {words} by P on {facts['chosen_on']} samples; test {metric['title']}{unit}",
        "\n".join(
            [
                *([f"{score}: the best over the rounds, by which points are ordered"] if validated else []),
                *(f"{figure}: {EXPLAINED[figure]}" for figure in figures),
                f"{seconds['total']:.1f} s in all, {seconds['compile']:.1f} s of it compiling",
            ]
        ),
    )
    stopped = any(point["measured"]["rounds"] < facts["experiment"]["rounds"] for point in points)
    heads = [f"{letter} {figure}" for letter in _MODELS.values() for figure in figures]
    for name in (*names, *(["rounds"] if stopped else []), *([score] if validated else []), *heads):
        table.add_column(name, justify="right")
    for point in shown:
        table.add_row(
            *(f"{point[name]:.4g}" for name in names),
            *([str(point["measured"]["rounds"])] if stopped else []),
            *([_score(point, metric["percent"])] if validated else []),
            *(
                shown_estimate(point["measured"]["figures"][model][figure], facts["seeds"], metric["percent"])
                for model in _MODELS
                for figure in figures
            ),
        )
    print_table(table)


def _score(point: Mapping[str, Any], percent: bool) -> str:
    score = point["measured"]["score"]["personal"]
    return "-" if score is None else shown_number(score, percent)


def _rank(point: Mapping[str, Any], sign: int) -> float:
    score = point["measured"]["score"]["personal"]
    return float("-inf") if score is None else sign * score
