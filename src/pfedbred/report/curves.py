"""curves.png: accuracy by round, and client by client."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from pfedbred.errors import printable
from pfedbred.experiment.loop import Run

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C6D31")
_LINES = ("-", "--", "-.", ":")
NAMES: dict[Literal["global", "personal"], str] = {
    "global": "Global model (G)",
    "personal": "Personal models (P)",
}


def new_figure(columns: int, height: float = 4.2, width: float = 5.4) -> tuple[Any, Any]:
    """Panels side by side, in the style of all pictures."""
    # pyplot is left alone: it picks a window system and keeps figures alive
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(True, color="#dddddd", linewidth=0.6)
        each.set_axisbelow(True)
    return figure, axes


class Style(NamedTuple):
    """How a curve looks: the number of its colour and of its kind of line."""

    colour: int
    line: int = 0

    @classmethod
    def of(cls, index: int) -> Style:
        """Of the curve with that number among many: new kinds of line when the colours are used up."""
        return cls(index % len(_COLOURS), index // len(_COLOURS))


def literal(text: str) -> str:
    """A text from data as it is: between two dollar signs matplotlib would read a formula."""
    return printable(text).replace("$", r"\$")


def save(figure: Any, path: Path) -> None:
    """Writes a picture; a name may have letters that the font has not, which then are boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(path)


def colour(index: int) -> str:
    """Of the method with that number, for eyes that see few colours too."""
    return _COLOURS[index % len(_COLOURS)]


def _draw(axes: Any, run: Run, model: Literal["global", "personal"], label: str, index: int) -> None:
    """Mean over seeds as a line, lowest to highest seed as a band."""
    accuracy = 100 * run.accuracy(model)
    rounds = [point.round for point in run.points]
    mean, low, high = accuracy.mean(axis=1), accuracy.min(axis=1), accuracy.max(axis=1)
    draw_band(axes, rounds, mean, low, high, label, Style.of(index))


def draw_band(
    axes: Any,
    rounds: Sequence[int],
    mean: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    label: str,
    style: Style,
    *,
    crowded: bool = False,
) -> None:
    """A line with a band around it; where there are many, the bands are fainter, or they would hide the lines."""
    line, shade = _LINES[style.line % len(_LINES)], colour(style.colour)
    marker = "o" if len(rounds) == 1 else None
    axes.plot(rounds, mean, color=shade, linestyle=line, linewidth=1.2 if crowded else 1.8, label=label, marker=marker)
    if np.any(high > low):
        axes.fill_between(rounds, low, high, color=shade, alpha=0.07 if crowded else 0.14, linewidth=0)


def _finish(axes: Any, runs: Sequence[Run]) -> None:
    settle(axes, [100 * run.accuracy(model) for run in runs for model in NAMES])


def settle(axes: Any, curves: Sequence[np.ndarray]) -> None:
    """Labels, and a vertical range that shows the differences at the end rather than the climb at the start."""
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy (%)")
    settled = [values[len(values) // 20 :] for values in curves if np.isfinite(values[len(values) // 20 :]).any()]
    if not settled:
        return
    low, high = min(float(np.nanmin(each)) for each in settled), max(float(np.nanmax(each)) for each in settled)
    margin = max(1.0, 0.06 * (high - low))
    axes.set_ylim(max(0.0, low - margin), min(101.0, high + margin))


def _title(figure: Any, run: Run) -> None:
    experiment = run.experiment
    seeds = f"{experiment.seeds} seeds" if experiment.seeds > 1 else f"seed {experiment.seed}"
    federation = run.simulation.federation
    clients = federation.clients
    model = experiment.model if isinstance(experiment.model, str) else "custom model"
    averaged = f"{experiment.aggregated} of {clients:,} clients averaged a round"
    figure.suptitle(literal(f"{federation.name}, {model}: {averaged}, {seeds}"), fontsize=11)


def draw_run(run: Run, path: Path) -> None:
    """One run: G and P by round, and every client's accuracy under both."""
    figure, (left, right) = new_figure(2)
    for index, model in enumerate(NAMES):
        _draw(left, run, model, NAMES[model], index)
    _finish(left, [run])
    left.set_title(run.experiment.algorithm, fontsize=11)
    left.legend(framealpha=0.9, edgecolor="none", loc="lower right")
    _draw_clients(right, run)
    _title(figure, run)
    save(figure, path)


def _draw_clients(axes: Any, run: Run) -> None:
    """Who gains from personalising and who loses: each client's G and P accuracy, joined, in order of G."""
    last = run.points[-1].scores
    g, p = (100 * np.mean(model.test.client_accuracy, axis=0) for model in (last.global_, last.personal))
    have = np.isfinite(g)
    g, p = g[have], p[have]
    if not len(g):
        axes.set_title("no client has test samples", fontsize=11)
        return
    order = np.lexsort((p, g))
    g, p, place = g[order], p[order], np.arange(len(order))
    size = float(np.clip(400 / max(len(place), 1), 3, 28))
    axes.vlines(place, np.minimum(g, p), np.maximum(g, p), color="#bbbbbb", linewidth=min(1.2, size / 8), zorder=1)
    axes.scatter(place, g, s=size, color=_COLOURS[0], label="G on the client's test set", zorder=2)
    axes.scatter(place, p, s=size, color=_COLOURS[1], label="the client's own P", zorder=3)
    shown = "" if len(g) == run.simulation.federation.clients else f" ({len(g):,} of them)"
    axes.set_xlabel(f"client, in order of G{shown}")
    axes.set_ylabel("test accuracy (%)")
    axes.set_title(
        f"after round {run.points[-1].round}: {int(np.sum(p > g))} gain, {int(np.sum(p < g))} lose",
        fontsize=11,
    )
    axes.set_ylim(max(0.0, float(min(g.min(), p.min())) - 4), 102)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(framealpha=0.9, edgecolor="none", loc="lower right")


def draw_comparison(runs: Sequence[Run], path: Path) -> None:
    """Several runs side by side: G in one panel, P in the other, on the same scale."""
    figure, axes = new_figure(2)
    for panel, model in zip(axes, NAMES, strict=True):
        for index, run in enumerate(runs):
            best = 100 * run.accuracy(model).max(axis=0).mean()
            _draw(panel, run, model, f"{run.experiment.algorithm}  {'-' if np.isnan(best) else f'{best:.1f}'}", index)
        _finish(panel, runs)
        panel.set_title(NAMES[model], fontsize=11)
        panel.legend(
            framealpha=0.9,
            edgecolor="none",
            loc="lower right",
            title="best (%)",
            alignment="left",
            fontsize=9,
        )
    _title(figure, runs[0])
    save(figure, path)
