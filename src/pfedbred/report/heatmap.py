"""heatmap.png: a sweep's accuracy, or RMSE, over its grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.report.console import counted
from pfedbred.report.curves import NAMES, literal, new_figure, save
from pfedbred.runs.figures import TITLES, Figure
from pfedbred.runs.schema import point_figures, sweep_figure, sweep_metric


class Points(NamedTuple):
    """The points of a sweep as arrays: their settings, the quoted figure of each model, and what it is.

    ``scales`` are those of the settings' axes; ``sign`` is 1 if the higher is the better, else -1.
    """

    names: tuple[str, ...]
    settings: np.ndarray
    scales: tuple[str, ...]
    values: Mapping[str, np.ndarray]
    best: Mapping[str, float]
    words: str
    sign: int


def points_of(facts: Mapping[str, Any]) -> Points:
    """The points of a sweep; NaN where one diverged."""
    names, metric = tuple(facts["grid"]), sweep_metric(facts)
    settings = np.array([[point[name] for name in names] for point in facts["points"]], float)
    plan = facts.get("plan") or {"grid": []}  # earlier sweeps have none
    ranges = {name.strip(): given.strip() for name, _, given in (text.partition("=") for text in plan["grid"])}
    scales = tuple(_scale(column, ranges.get(name, "")) for name, column in zip(names, settings.T, strict=True))
    figure, scale = sweep_figure(facts), 100 if metric["percent"] else 1
    values: dict[str, np.ndarray] = {
        model: scale * np.array([_quoted(point, model, figure) for point in facts["points"]]) for model in NAMES
    }
    words = f"test {metric['title']}, {TITLES[figure]}" + (" (%)" if metric["percent"] else "")
    return Points(names, settings, scales, values, facts["best"], words, 1 if metric["higher_is_better"] else -1)


def _quoted(point: Mapping[str, Any], model: str, figure: Figure) -> float:
    measured = point_figures(point, model)
    value = measured[figure]["mean"]
    return np.nan if value is None else value


def shown_range(values: np.ndarray, sign: int = 1) -> tuple[float, float]:
    """The values at both ends of the colour scale, the lower one first; a few failed points do not stretch it."""
    finite = sign * values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    best = float(finite.max())
    usual = max(1.0, 3 * (best - float(np.quantile(finite, 0.25))))
    low, high = sorted((sign * max(float(finite.min()), best - usual), sign * best))
    return low, high


def beyond(values: np.ndarray, low: float, high: float) -> str:
    """At which ends of the colour scale there are points beyond it, as Matplotlib says it."""
    return "min" if np.any(values < low) else "max" if np.any(values > high) else "neither"


def heading(facts: Mapping[str, Any]) -> str:
    """The title of a sweep's picture: what was swept, and the best point."""
    best = ", ".join(f"{name} = {value:.4g}" for name, value in facts["best"].items())
    seeds = facts.get("seeds") or facts["experiment"].get("seeds")  # earlier sweeps say it only in their experiment
    runs = [counted(facts["experiment"]["rounds"], "round"), *([counted(seeds, "seed")] if seeds else [])]
    return f"{facts['algorithm']}, {', '.join(runs)}; best P at {best}"


def draw_points(facts: Mapping[str, Any], path: Path, title: str | None = None) -> None:
    """Draws one setting as a curve and two as a map; of more, the first two, with the others at their best values.

    Points that are not on a grid are drawn where they are. The title is ``heading`` unless another is given.
    """
    points = points_of(facts)
    figure, panels = new_figure(2, 4.6)
    for axes, (model, name) in zip(panels, NAMES.items(), strict=True):
        if len(points.names) == 1:
            order = np.argsort(points.settings[:, 0])
            axes.plot(points.settings[order, 0], points.values[model][order], marker="o", color="#0072B2")
            axes.set_xlabel(literal(points.names[0]))
            axes.set_xscale(points.scales[0])
        elif not _is_grid(points.settings):
            _scatter(figure, axes, points, points.values[model])
        else:
            _map(figure, axes, points, points.values[model])
        axes.set_title(f"{name}: {points.words}", fontsize=11)
    figure.suptitle(title or literal(heading(facts)), fontsize=11)
    save(figure, path)


def _is_grid(settings: np.ndarray) -> bool:
    """Whether the points are all combinations of some values."""
    return math.prod(len(np.unique(column)) for column in settings.T) == len(settings)


def _scale(values: np.ndarray, given: str) -> str:
    """As the range was ``given``; of values, logarithmic if they differ by factors rather than by equal steps."""
    if ":" in given:
        return "log" if given.startswith("log") else "linear"
    steps = np.diff(np.unique(values))
    factors = values.min() > 0 and values.max() >= 10 * values.min()
    return "log" if factors and not np.allclose(steps, steps[0]) else "linear"


def _scatter(figure: Any, axes: Any, points: Points, values: np.ndarray) -> None:
    low, high = shown_range(values, points.sign)
    order = np.argsort(points.sign * values)  # the best in front
    x, y = points.settings[order, 1], points.settings[order, 0]
    dots = axes.scatter(x, y, c=values[order], cmap="viridis", vmin=low, vmax=high, s=46, plotnonfinite=True)
    figure.colorbar(dots, ax=axes, shrink=0.85, extend=beyond(values, low, high))
    axes.scatter(
        *([points.best[points.names[column]]] for column in (1, 0)), s=150, facecolors="none", edgecolors="#D55E00"
    )
    for column, label, scale in ((1, axes.set_xlabel, axes.set_xscale), (0, axes.set_ylabel, axes.set_yscale)):
        label(literal(points.names[column]))
        scale(points.scales[column])


def _map(figure: Any, axes: Any, points: Points, values: np.ndarray) -> None:
    chosen = np.full(len(values), True)
    for column, name in list(enumerate(points.names))[2:]:
        chosen &= points.settings[:, column] == points.best[name]
    rows, columns = (np.unique(points.settings[:, column]) for column in (0, 1))
    table = np.full((len(rows), len(columns)), np.nan)
    for point, value in zip(points.settings[chosen], values[chosen], strict=True):
        table[np.searchsorted(rows, point[0]), np.searchsorted(columns, point[1])] = value
    axes.grid(False)
    low, high = shown_range(table, points.sign)
    image = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis", vmin=low, vmax=high)
    figure.colorbar(image, ax=axes, shrink=0.85, extend=beyond(table, low, high))
    axes.set_xticks(range(len(columns)), [f"{each:.3g}" for each in columns], fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{each:.3g}" for each in rows], fontsize=8)
    axes.set_xlabel(literal(points.names[1]))
    axes.set_ylabel(literal(points.names[0]))
    if table.size <= 144:
        for (row, column), value in np.ndenumerate(table):
            words = f"{value:.1f}" if np.isfinite(value) else "diverged"
            colour = "white" if value < (low + high) / 2 else "black"
            axes.text(column, row, words, ha="center", va="center", fontsize=7, color=colour)
