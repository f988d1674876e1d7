"""Parallel coordinates of a sweep: a line for each point, through its settings to its accuracy, or RMSE."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.report.curves import NAMES, literal, new_figure, save
from pfedbred.report.heatmap import Points, heading, points_of, shown_range


def draw_points(facts: Mapping[str, Any], path: Path, title: str | None = None) -> None:
    """Draws G and P side by side; the better a point, the warmer its line, and the nearer to the front.

    The title is ``heading`` unless another is given.
    """
    from matplotlib import colormaps

    points = points_of(facts)
    figure, panels = new_figure(2, 4.6)
    for axes, (model, name) in zip(panels, NAMES.items(), strict=True):
        _draw(axes, points, points.values[model], colormaps["turbo"])
        axes.set_title(name, fontsize=11)
    figure.suptitle(title or literal(heading(facts)), fontsize=11)
    save(figure, path)


def _draw(axes: Any, points: Points, values: np.ndarray, colours: Any) -> None:
    names = (*map(literal, points.names), points.words)
    columns = [_evenly(values) for values in points.settings.T]
    low, high = shown_range(values, points.sign)
    heights = np.clip((values - low) / max(high - low, 1e-9), 0, 1)
    least = f"{low:.4g}" + (" or lower" if np.any(values < low) else "")
    most = f"{high:.4g}" + (" or higher" if np.any(values > high) else "")
    columns.append((heights, [(least, 0.0), (most, 1.0)]))
    places = np.column_stack([place for place, _ in columns])
    for row in np.argsort(points.sign * values):  # the best last, in front; NaN sorts to the end and is not drawn
        if np.isfinite(values[row]):
            strength = places[row, -1] if points.sign > 0 else 1 - places[row, -1]
            style = {"color": colours(strength), "alpha": 0.35 + 0.6 * strength, "linewidth": 1.4}
            axes.plot(range(len(names)), places[row], **style)
    axes.grid(False)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    for column, (_, marks) in enumerate(columns):
        axes.axvline(column, color="#555555", linewidth=1)
        for value, height in marks:
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
            axes.text(column + 0.02, height, value, fontsize=8, va="center", color="#333333", bbox=box)


def _evenly(values: np.ndarray) -> tuple[np.ndarray, list[tuple[str, float]]]:
    """The place of each value on its axis, and the tick marks; equally spaced, as settings often differ by factors."""
    tried = np.unique(values)
    steps = max(1, len(tried) - 1)
    return np.searchsorted(tried, values) / steps, [(f"{each:.4g}", i / steps) for i, each in enumerate(tried)]
