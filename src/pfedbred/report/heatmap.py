"""heatmap.png: a sweep's accuracy over its grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.report.curves import new_figure
from pfedbred.sweep import Sweep

_NAMES = {"global": "Global model (G)", "personal": "Personal models (P)"}


def draw_sweep(sweep: Sweep, path: Path) -> None:
    """Two settings as a map with a number in every cell, one as a curve; of more, the first two at the best others."""
    figure, panels = new_figure(2, 4.6)
    for axes, (model, title) in zip(panels, _NAMES.items(), strict=True):
        values = 100 * sweep.best_accuracy(model)
        if len(sweep.names) == 1:
            _curve(axes, sweep, values)
        else:
            _map(figure, axes, sweep, values)
        axes.set_title(f"{title}: best test accuracy (%)", fontsize=11)
    best = ", ".join(f"{name} = {value:.4g}" for name, value in sweep.best_point().items())
    experiment = sweep.experiment
    figure.suptitle(f"{experiment.algorithm}, {experiment.rounds} rounds; best P at {best}", fontsize=11)
    figure.savefig(path)


def _curve(axes: Any, sweep: Sweep, values: np.ndarray) -> None:
    axes.plot(sweep.points[:, 0], values, marker="o", color="#0072B2")
    axes.set_xlabel(sweep.names[0])


def _map(figure: Any, axes: Any, sweep: Sweep, values: np.ndarray) -> None:
    chosen = np.full(len(values), True)
    best = sweep.points[int(np.nanargmax(sweep.best_accuracy("personal")))]
    for column in range(2, len(sweep.names)):
        chosen &= sweep.points[:, column] == best[column]
    rows, columns = (np.unique(sweep.points[:, column]) for column in (0, 1))
    table = np.full((len(rows), len(columns)), np.nan)
    for point, value in zip(sweep.points[chosen], values[chosen], strict=True):
        table[np.searchsorted(rows, point[0]), np.searchsorted(columns, point[1])] = value
    axes.grid(False)
    image = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis")
    figure.colorbar(image, ax=axes, shrink=0.85)
    axes.set_xticks(range(len(columns)), [f"{each:.3g}" for each in columns], fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{each:.3g}" for each in rows], fontsize=8)
    axes.set_xlabel(sweep.names[1])
    axes.set_ylabel(sweep.names[0])
    if table.size <= 144:
        middle = np.nanmean([np.nanmin(table), np.nanmax(table)])
        for (row, column), value in np.ndenumerate(table):
            if np.isfinite(value):
                colour = "white" if value < middle else "black"
                axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=7, color=colour)
