"""How sure calibrated models are: the table in the shell, and what the HTML page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfedbred.errors import SettingError
from pfedbred.report.console import new_table, print_table, shown_estimate, shown_number
from pfedbred.runs.calibration import FIGURES, FigureInfo, shown_figures

_LETTERS = {"G": "global", "P": "personal"}


def show_calibration(summaries: Sequence[Mapping[str, Any]]) -> None:
    """A row for each run and model: figures before and after calibration, and the coverage; nothing without any."""
    having = [each for each in summaries if each.get("calibration")]
    if not having:
        return
    first = having[0]["calibration"]
    shown = {name: info for name, info in shown_figures(first).items() if name != "brier"}  # a row must fit
    own = f"{sum(first['own'])} of {len(first['own'])} clients"
    arrow = "before → after calibration\n" if any(info.before for info in shown.values()) else ""
    table = new_table(
        f"calibrated for {100 * first['coverage']:g} % coverage, on the test samples, mean over clients",
        f"{arrow}calibrated alone: {own}, those with at least {first['own_samples']} validation samples\n"
        "worst tenth: coverage of the tenth of the clients for whom it is lowest",
    )
    table.add_column("algorithm")
    table.add_column("model")
    for info in shown.values():
        table.add_column(f"{info.title} (%)" if info.percent else info.title, justify="right")
        if info is FIGURES["coverage"]:
            table.add_column("worst tenth", justify="right")
    for summary in having:
        for letter, model in _LETTERS.items():
            figures, cells = summary["calibration"][model]["figures"], []
            for name, info in shown.items():
                if info.before:
                    cells.append(" → ".join(_mean(figures[each], info) for each in (f"{name}_before", name)))
                else:
                    cells.append(shown_estimate(figures[name]["mean"], summary["seeds"], info.percent))
                if info is FIGURES["coverage"]:
                    cells.append(shown_estimate(figures[name]["worst_tenth"], summary["seeds"], info.percent))
            table.add_row(summary["algorithm"] if letter == "G" else "", letter, *cells)
    print_table(table)


def _mean(figure: Mapping[str, Any], info: FigureInfo) -> str:
    mean = figure["mean"]["mean"]
    return "-" if mean is None else shown_number(mean, info.percent)


def page_content(summary: Mapping[str, Any], clients: np.ndarray) -> dict[str, Any] | None:
    """What the page shows: the figures, the reliability diagrams, and the coverage of the clients at these places."""
    found = summary.get("calibration")
    if found is None:
        return None
    if max(clients, default=-1) >= len(found["own"]):
        raise SettingError("summary.json is damaged: its calibration is not of the clients that were evaluated")
    return {
        "coverage": 100 * found["coverage"],
        "own": [found["own"][i] for i in clients.tolist()],
        "own_samples": found["own_samples"],
        **{letter: _of_model(found[model], shown_figures(found), clients) for letter, model in _LETTERS.items()},
    }


def _of_model(found: Mapping[str, Any], shown: Mapping[str, FigureInfo], clients: np.ndarray) -> dict[str, Any]:
    figures = found["figures"]
    return {
        "figures": [
            {
                "title": info.title,
                "percent": info.percent,
                "before": _percent(figures[f"{name}_before"]["mean"]["mean"], info) if info.before else None,
                "mean": _percent(figures[name]["mean"]["mean"], info),
                "worst_tenth": _percent(figures[name]["worst_tenth"]["mean"], info),
            }
            for name, info in shown.items()
        ],
        "clients": [_percent(figures["coverage"]["clients"][i], FIGURES["coverage"]) for i in clients.tolist()],
        "reliability": found["reliability"],
    }


def _percent(value: float | None, info: FigureInfo) -> float | None:
    return None if value is None else round(100 * value, 3) if info.percent else float(f"{value:.5g}")
