"""curves.png: accuracy, or another metric, by round, and client by client."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.engine.history import Which
from pfedbred.errors import printable
from pfedbred.io.atomic import replacing
from pfedbred.runs.figures import TITLES
from pfedbred.runs.record import RunRecord

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C6D31")
_LINES = ("-", "--", "-.", ":")
_CROWDED = 10  # runs; with more, lines are thinner and bands fainter
_FEW_METRICS = 4  # with more, the picture of a run has two in a row
_LEGEND_LINE = 0.17  # inches
NAMES: dict[Which, str] = {
    "global": "Global model (G)",
    "personal": "Personal models (P)",
}


def new_figure(
    columns: int, height: float = 4.2, width: float = 5.4, rows: int | None = None, sharex: bool = False
) -> tuple[Any, Any]:
    """Panels side by side, in the style of all pictures; in rows, if a number of these is given."""
    # not pyplot, which picks a window system and keeps figures alive
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows or 1, columns, squeeze=False, sharex=sharex)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(True, color="#dddddd", linewidth=0.6)
        each.set_axisbelow(True)
    return figure, axes[0] if rows is None else axes


class Style(NamedTuple):
    """How a curve looks: which colour and which line style."""

    colour: int
    line: int = 0

    @classmethod
    def of(cls, index: int) -> Style:
        """The style of one curve among many: another line style when the colours are used up."""
        return cls(index % len(_COLOURS), index // len(_COLOURS))


def literal(text: str) -> str:
    """A text from data, verbatim: matplotlib would read a formula between two dollar signs."""
    return printable(text).replace("$", r"\$")


def save(figure: Any, path: Path) -> None:
    """Writes a picture; letters that the font lacks become boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        with replacing(path) as file:
            figure.savefig(file, format=path.suffix[1:])


def colour(index: int) -> str:
    """The colour of one method among many, from a colour-blind safe palette."""
    return _COLOURS[index % len(_COLOURS)]


def _draw(
    axes: Any, run: RunRecord, metric: str, model: Which, label: str, index: int, *, crowded: bool = False
) -> None:
    """Mean over seeds as a line, lowest to highest seed as a band, and the chosen round of each seed as a circle."""
    values = run.curve(metric, model) * (100 if run.metrics[metric]["percent"] else 1)
    rounds = [point.round for point in run.points]
    mean, low, high = values.mean(axis=1), values.min(axis=1), values.max(axis=1)
    style = Style.of(index)
    draw_band(axes, rounds, mean, low, high, label, style, crowded=crowded)
    if "chosen" in run.figures:
        places = run.places("chosen", metric, model)
        at, reached = [rounds[place] for place in places], values[places, np.arange(len(places))]
        axes.scatter(at, reached, s=42, facecolors="none", edgecolors=colour(style.colour), linewidths=1.4, zorder=4)


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
    """A line with a band around it; fainter bands where there are many, so that they do not hide the lines."""
    line, shade = _LINES[style.line % len(_LINES)], colour(style.colour)
    marker = "o" if len(rounds) == 1 else None
    axes.plot(rounds, mean, color=shade, linestyle=line, linewidth=1.2 if crowded else 1.8, label=label, marker=marker)
    if np.any(high > low):
        axes.fill_between(rounds, low, high, color=shade, alpha=0.07 if crowded else 0.14, linewidth=0)


def _trained(run: RunRecord, metric: str, model: Which) -> bool:
    """Whether a model changes during a run: of ``local``, which has no global model, G stays as it was at the start."""
    values = run.curve(metric, model)
    return len(values) < 2 or bool(np.any(values != values[0]))


def _axis_label(info: Mapping[str, Any]) -> str:
    return f"test {literal(info['title'])}" + (" (%)" if info["percent"] else "")


def _finish(axes: Any, runs: Sequence[RunRecord], metric: str) -> None:
    """Labels; the metric that tables show also has its own range."""
    info = runs[0].metrics[metric]
    if metric != runs[0].primary:
        _mark_axes(axes, _axis_label(info))
        return
    scale = 100 if info["percent"] else 1
    drawn = [(run, model) for run in runs for model in NAMES if len(runs) == 1 or _trained(run, metric, model)]
    curves = [scale * run.curve(metric, model) for run, model in drawn]
    settle(axes, curves, _axis_label(info), percent=info["percent"])


def _mark_axes(axes: Any, value: str) -> None:
    axes.set_xlabel("round")
    axes.set_ylabel(value)
    axes.xaxis.get_major_locator().set_params(integer=True)


def settle(axes: Any, curves: Sequence[np.ndarray], label: str = "test accuracy (%)", *, percent: bool = True) -> None:
    """Labels, and a vertical range that shows the differences at the end rather than the climb at the start."""
    _mark_axes(axes, label)
    settled = [values[len(values) // 20 :] for values in curves if np.isfinite(values[len(values) // 20 :]).any()]
    if not settled:
        return
    low, high = min(float(np.nanmin(each)) for each in settled), max(float(np.nanmax(each)) for each in settled)
    margin = max(1.0 if percent else 0.01 * abs(high), 0.06 * (high - low)) or 1.0
    axes.set_ylim(*(max(0.0, low - margin), min(101.0, high + margin)) if percent else (low - margin, high + margin))


def _title(figure: Any, run: RunRecord) -> None:
    experiment, data = run.experiment, run.summary["data"]
    seeds = f"{experiment['seeds']} seeds" if experiment["seeds"] > 1 else f"seed {experiment['seed']}"
    averaged = f"{experiment['aggregated']} of {data['clients']:,} clients averaged per round"
    figure.suptitle(literal(f"{data['name']}, {run.summary['model']}: {averaged}, {seeds}"), fontsize=11)


def draw_run(run: RunRecord, path: Path) -> None:
    """One run: a row for each metric but the loss, with G and P by round, and each client's values under both.

    With many metrics, two share a row.
    """
    metrics = (run.primary, *run.other_metrics)
    beside = 1 if len(metrics) <= _FEW_METRICS else 2
    rows = math.ceil(len(metrics) / beside)
    figure, panels = new_figure(2 * beside, (4.2 + 2 * _LEGEND_LINE) * rows, rows=rows)
    pairs = panels.reshape(-1, 2)
    for metric, (left, right) in zip(metrics, pairs, strict=False):
        _draw_metric(left, run, metric)
        _draw_clients(right, run, metric)
        info = run.metrics[metric]
        better = "higher" if info["higher_is_better"] else "lower"
        left.set_title(f"{literal(info['title'])} ({better} is better)", fontsize=11)
    pairs[0, 0].set_title(literal(run.algorithm), fontsize=11)
    _legend_below(pairs[0, 0], title="circles: round chosen on validation" if "chosen" in run.figures else None)
    for axes in pairs[len(metrics) :].flat:
        axes.set_axis_off()
    _title(figure, run)
    save(figure, path)


def _legend_below(axes: Any, title: str | None = None, columns: int = 2) -> None:
    """Below the panel: inside it, a legend would hide curves."""
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13), "ncols": columns}
    look = {"edgecolor": "none", "alignment": "left", "fontsize": 8, "title_fontsize": 9, "columnspacing": 1.2}
    axes.legend(**place, **look, title=title)


def _draw_metric(axes: Any, run: RunRecord, metric: str) -> None:
    for index, model in enumerate(NAMES):
        _draw(axes, run, metric, model, NAMES[model], index)
    _finish(axes, [run], metric)


def _draw_clients(axes: Any, run: RunRecord, metric: str) -> None:
    """Which clients gain from personalising: each one's metric under G and P, joined, in order of G."""
    last, info = run.points[-1].scores, run.metrics[metric]
    scale = 100 if info["percent"] else 1
    g, p = (scale * np.mean(model.test.clients[metric], axis=0) for model in (last.global_, last.personal))
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
    shown = "" if len(g) == run.summary["data"]["clients"] else f" ({len(g):,} clients)"
    axes.set_xlabel(f"rank of the client by G{shown}")
    axes.set_ylabel(_axis_label(info))
    above, below = int(np.sum(p > g)), int(np.sum(p < g))
    gain, lose = (above, below) if info["higher_is_better"] else (below, above)
    axes.set_title(f"after round {run.points[-1].round}: {gain} gain, {lose} lose", fontsize=11)
    if info["percent"]:
        axes.set_ylim(max(0.0, float(min(g.min(), p.min())) - 4), 102)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _legend_below(axes)


def draw_comparison(runs: Sequence[RunRecord], path: Path) -> None:
    """Several runs side by side: G in one panel, P in the other; a row of panels for each metric."""
    metrics = (runs[0].primary, *runs[0].other_metrics)
    columns = _legend_columns(runs)
    lines = math.ceil(len(runs) / columns) + 1
    figure, panels = new_figure(2, (4.2 + _LEGEND_LINE * lines) * len(metrics), rows=len(metrics))
    for row, metric in zip(panels, metrics, strict=True):
        for panel, model in zip(row, NAMES, strict=True):
            _draw_compared(panel, [run for run in runs if metric in run.metrics], metric, model, columns)
        if metric != runs[0].primary:
            _share_range(row)
    _title(figure, runs[0])
    save(figure, path)


def _legend_columns(runs: Sequence[RunRecord]) -> int:
    """How many columns of a legend a panel is wide enough for."""
    longest = max(len(literal(run.algorithm)) for run in runs)
    return min(max(84 // (longest + 12), 1), 3)


def _draw_compared(axes: Any, runs: Sequence[RunRecord], metric: str, model: Which, columns: int) -> None:
    percent = runs[0].metrics[metric]["percent"]
    scale, digits = (100, 1) if percent else (1, 3)
    figure = runs[0].figures[0]
    every = list(enumerate(runs))
    for index, run in [each for each in every if _trained(each[1], metric, model)] or every:
        best = scale * run.figure(figure, metric, model).mean()
        label = literal(f"{run.algorithm}  {'-' if np.isnan(best) else f'{best:.{digits}f}'}")
        _draw(axes, run, metric, model, label, index, crowded=len(runs) > _CROWDED)
    _finish(axes, runs, metric)
    axes.set_title(NAMES[model], fontsize=11)
    if figure == "chosen":
        title = f"at the chosen round{', in %' if percent else ''} (circles: each seed's chosen round)"
    else:
        title = TITLES[figure] + (" (%)" if percent else "")
    _legend_below(axes, title, columns)


def _share_range(panels: Sequence[Any]) -> None:
    """G and P on the same scale."""
    low, high = (pick(axes.get_ylim()[i] for axes in panels) for i, pick in ((0, min), (1, max)))
    for axes in panels:
        axes.set_ylim(low, high)
