"""heatmap.png: a sweep's accuracy over its grid."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.report.curves import NAMES, literal, new_figure, save


class Points(NamedTuple):
    """The points of a sweep as arrays: their settings, and the best accuracy of each model in percent."""

    names: tuple[str, ...]
    settings: np.ndarray
    accuracy: Mapping[str, np.ndarray]


def points_of(facts: Mapping[str, Any]) -> Points:
    """The points of a sweep; NaN where one diverged."""
    names = tuple(facts["grid"])
    settings = np.array([[point[name] for name in names] for point in facts["points"]], float)
    accuracy: dict[str, np.ndarray] = {
        model: 100 * np.array([np.nan if point[model] is None else point[model] for point in facts["points"]])
        for model in NAMES
    }
    return Points(names, settings, accuracy)


def shown_range(accuracy: np.ndarray) -> tuple[float, float]:
    """The accuracies at both ends of the colour scale; a few failed points do not stretch it."""
    finite = accuracy[np.isfinite(accuracy)]
    best = float(finite.max())
    usual = max(1.0, 3 * (best - float(np.quantile(finite, 0.25))))
    return max(float(finite.min()), best - usual), best


def heading(facts: Mapping[str, Any]) -> str:
    """The title of a sweep's picture: what was swept, and the best point."""
    best = ", ".join(f"{name} = {value:.4g}" for name, value in facts["best"].items())
    return f"{facts['algorithm']}, {facts['experiment']['rounds']} rounds; best P at {best}"


def draw_points(facts: Mapping[str, Any], path: Path) -> None:
    """Draws one setting as a curve and two as a map; of more, the first two, with the others at their best values."""
    points = points_of(facts)
    figure, panels = new_figure(2, 4.6)
    for axes, (model, title) in zip(panels, NAMES.items(), strict=True):
        if len(points.names) == 1:
            axes.plot(points.settings[:, 0], points.accuracy[model], marker="o", color="#0072B2")
            axes.set_xlabel(literal(points.names[0]))
        else:
            _map(figure, axes, points, points.accuracy[model])
        axes.set_title(f"{title}: best test accuracy (%)", fontsize=11)
    figure.suptitle(literal(heading(facts)), fontsize=11)
    save(figure, path)


def _map(figure: Any, axes: Any, points: Points, values: np.ndarray) -> None:
    chosen = np.full(len(values), True)
    best = points.settings[int(np.nanargmax(points.accuracy["personal"]))]
    for column in range(2, len(points.names)):
        chosen &= points.settings[:, column] == best[column]
    rows, columns = (np.unique(points.settings[:, column]) for column in (0, 1))
    table = np.full((len(rows), len(columns)), np.nan)
    for point, value in zip(points.settings[chosen], values[chosen], strict=True):
        table[np.searchsorted(rows, point[0]), np.searchsorted(columns, point[1])] = value
    axes.grid(False)
    low, high = shown_range(table)
    image = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis", vmin=low, vmax=high)
    figure.colorbar(image, ax=axes, shrink=0.85, extend="min" if np.nanmin(table) < low else "neither")
    axes.set_xticks(range(len(columns)), [f"{each:.3g}" for each in columns], fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{each:.3g}" for each in rows], fontsize=8)
    axes.set_xlabel(literal(points.names[1]))
    axes.set_ylabel(literal(points.names[0]))
    if table.size <= 144:
        for (row, column), value in np.ndenumerate(table):
            words = f"{value:.1f}" if np.isfinite(value) else "diverged"
            colour = "white" if value < (low + high) / 2 else "black"
            axes.text(column, row, words, ha="center", va="center", fontsize=7, color=colour)
