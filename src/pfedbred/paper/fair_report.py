"""The page of the fair comparison: tables with intervals, average ranks, and a critical-difference picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from pfedbred.engine.metrics import METRICS
from pfedbred.errors import SettingError
from pfedbred.io.atomic import write_json, write_text
from pfedbred.report.curves import new_figure, save
from pfedbred.runs.statistics import Estimate, estimate, paired_difference

_LARGE = 1e4  # means from which powers of ten are shown: of models that diverged
_FEWEST = 3  # the fewest data sets that ranks are averaged over

RecordsByMethod = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Records by method and split."""


class FairData(Protocol):
    """What a table needs to know about its data."""

    @property
    def title(self) -> str:
        """Its heading."""

    @property
    def metric(self) -> str:
        """The metric that methods are compared by."""


class Ranks(NamedTuple):
    """Average ranks of methods over data sets, 1 for the best, and the critical difference between two ranks."""

    names: list[str]
    average: np.ndarray
    critical: float
    sets: int


def ranks(values: Mapping[str, Mapping[str, float]]) -> Ranks | None:
    r"""The ranks of methods from values by data set, higher is better; only data sets with all methods count.

    Two of k methods differ at 5 % if their average ranks over N data sets differ by more than q sqrt(k (k + 1) / (6 N))
    (Nemenyi's test; q is the quantile of the studentised range, divided by sqrt 2). None for fewer than three data
    sets.

    References: Demsar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 2006.
    """
    from scipy.stats import rankdata, studentized_range

    names = sorted({name for each in values.values() for name in each})
    complete = [each for each in values.values() if len(each) == len(names)]
    if len(complete) < _FEWEST or len(names) < 2:
        return None
    by_set = np.array([rankdata([-each[name] for name in names]) for each in complete])
    k, n = len(names), len(complete)
    critical = studentized_range.ppf(0.95, k, np.inf) / np.sqrt(2) * np.sqrt(k * (k + 1) / (6 * n))
    return Ranks(names, by_set.mean(axis=0), float(critical), n)


def write_report(
    out: Path, found: Mapping[str, tuple[FairData, RecordsByMethod]], splits: int, say: Callable[[str], None]
) -> None:
    """Writes ``fair.md``, ``fair.json`` and, with three complete data sets or more, ``fair.png``.

    A data set is complete if every method has a record of all ``splits``. Of another one the page says what is missing,
    and names no best method.
    """
    lines = [
        "# A fair comparison",
        "",
        "Every method has the same number of trials: settings drawn at random and judged on a fifth of each client's",
        "training samples. The best settings are then trained with several seeds on each split of the data, and the",
        "round is chosen on the same validation samples. Mean and 95 % interval over splits. **Bold**: the best P; ≈:",
        "not distinguishable from it (paired by split). Worst: the tenth of the clients with the worst P. New: P of",
        "clients held out from training, after they joined. NLL: with a temperature for each client. Coverage: of sets",
        "or intervals that promise 90 %. Reproduce with `pfedbred paper fair`.",
        "",
    ]
    scores: dict[str, dict[str, float]] = {}
    plain: dict[str, Any] = {}
    for key, (about, records) in found.items():
        measured = {row: by_split for row, by_split in records.items() if by_split}
        if not measured:
            continue
        missing = {row: splits - len(by_split) for row, by_split in records.items() if len(by_split) < splits}
        table, known = _table(about, measured, complete=not missing)
        if not missing:
            scores[key] = known
        lines += [f"## {about.title}", "", *_incomplete(missing, splits * len(records)), *table, ""]
        plain[key] = {row: {str(split): dict(each) for split, each in by.items()} for row, by in measured.items()}
    if not plain:
        raise SettingError(f"{out} has no records of the fair comparison")
    ranked = ranks(scores)
    if ranked:
        draw(ranked, out / "fair.png")
        order = np.argsort(ranked.average)
        lines += ["## Average ranks", "", "| method | average rank |", "|---|---|"]
        lines += [f"| {ranked.names[i]} | {ranked.average[i]:.2f} |" for i in order]
        lines += [
            "",
            f"Over {ranked.sets} data sets. Two methods differ at 5 % if their ranks differ by at least",
            f"{ranked.critical:.2f} (Nemenyi).",
            "",
            "![Average ranks](fair.png)",
            "",
        ]
    write_json(out / "fair.json", plain)
    write_text(out / "fair.md", "\n".join(lines))
    say("\n".join(["", *lines, f"table: {out / 'fair.md'}"]))


def _incomplete(missing: Mapping[str, int], records: int) -> list[str]:
    """What an incomplete data set lacks, in words."""
    if not missing:
        return []
    rows = [f"{row} ({count})" for row, count in missing.items()]
    return [
        f"Incomplete: {records - sum(missing.values())} of {records} records. Figures are over the splits that a",
        "method has, or over the seeds of its only one, and cannot be compared.",
        f"Splits that are missing: {', '.join(rows)}.",
        "",
    ]


def _table(about: FairData, records: RecordsByMethod, complete: bool) -> tuple[list[str], dict[str, float]]:
    """The table of one data set, and the score of each method, the higher the better."""
    metric = METRICS[about.metric]
    sign, scale = (1 if metric.higher_is_better else -1), 100 if metric.percent else 1

    def values(row: str, figure: str) -> np.ndarray:
        found = [each[figure] or [None] for each in records[row].values()]
        return np.array([[np.nan if value is None else value for value in seeds] for seeds in found], float)

    means = {row: sign * float(np.mean(values(row, "P"))) for row in records}
    known = {row: value for row, value in means.items() if np.isfinite(value)}
    best = max(known, key=lambda row: known[row]) if known and complete else None
    unit = f"{metric.title}{' (%)' if metric.percent else ''}"
    size = "labels in a set" if metric.task == "classification" else "interval width"
    lines = [
        f"| method | P, {unit} | difference to the best | G | worst | new | loss of P | NLL | coverage (%) | {size} |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(records, key=lambda row: -known.get(row, -np.inf)):
        own = estimate(values(row, "P"))
        mean, difference = shown(own, scale), ""
        if row == best:
            mean = f"**{mean}**"
        elif best is not None:
            less = paired_difference(values(row, "P"), values(best, "P"))
            difference = shown(less, scale) + (" ≈" if less.excludes_zero is False else "")
        rest = [shown(estimate(values(row, name)), scale, interval=False) for name in ("G", "worst", "new")]
        rest += [
            shown(estimate(values(row, name)), factor, interval=False)
            for name, factor in (("loss", 1), ("nll", 1), ("coverage", 100), ("size", 1))
        ]
        lines.append(f"| {row} | {mean} | {difference} | {' | '.join(rest)} |")
    return lines, known


def shown(value: Estimate, scale: float, interval: bool = True) -> str:
    """A mean, in percent with a scale of 100, with its interval."""
    if value.mean is None:
        return "-"
    digits = 2 if scale == 100 else 3
    mean = f"{scale * value.mean:.{digits}f}" if abs(value.mean) < _LARGE else f"{value.mean:.1e}"
    return f"{mean} ± {scale * value.half_width:.{digits}f}" if interval and value.half_width is not None else mean


def draw(found: Ranks, path: Path) -> None:
    """Draws average ranks on a line, with bars over methods that are not significantly different."""
    order = np.argsort(found.average)
    names, average = [found.names[i] for i in order], found.average[order]
    groups = _groups(average, found.critical)
    figure, panels = new_figure(1, 1.6 + 0.3 * len(names) / 2 + 0.12 * len(groups))
    axes = np.ravel(panels)[0]
    low, high = 1.0, float(len(names))
    axes.set_xlim(low - 0.45 * (high - low), high + 0.45 * (high - low))
    top = 0.5 + 0.18 * len(groups)
    depth = 0.55 * (len(names) + 1) // 2 + 0.6
    axes.set_ylim(-depth, top + 0.9)
    axes.axis("off")
    axes.plot([low, high], [top, top], color="black", lw=1.2)
    for tick in range(1, len(names) + 1):
        axes.plot([tick, tick], [top, top + 0.12], color="black", lw=1)
        axes.text(tick, top + 0.2, str(tick), ha="center", va="bottom", fontsize=9)
    axes.plot([low, low + found.critical], [top + 0.72] * 2, color="black", lw=2)
    axes.text(
        low + found.critical + 0.1, top + 0.72, f"critical difference {found.critical:.2f}", va="center", fontsize=9
    )
    half = (len(names) + 1) // 2
    for place, (name, rank) in enumerate(zip(names, average, strict=True)):
        left = place < half
        level = -0.5 * (place if left else len(names) - 1 - place) - 0.15
        edge = low - 0.05 * (high - low) if left else high + 0.05 * (high - low)
        axes.plot([rank, rank, edge], [top, level, level], color="0.35", lw=0.9)
        text = f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}"
        axes.text(edge, level, f" {text} ", ha="right" if left else "left", va="center", fontsize=9)
    for number, (first, last) in enumerate(groups):
        level = top - 0.16 * (number + 1)
        axes.plot([average[first] - 0.05, average[last] + 0.05], [level, level], color="tab:blue", lw=3, alpha=0.8)
    axes.set_title(f"Average rank of P over {found.sets} data sets (1 is best)", fontsize=11)
    save(figure, path)


def _groups(average: np.ndarray, critical: float) -> list[tuple[int, int]]:
    """The longest runs of two or more sorted ranks that differ by less than the critical difference."""
    found: list[tuple[int, int]] = []
    for first in range(len(average)):
        last = int(np.flatnonzero(average - average[first] < critical)[-1])
        if last > first and not any(start <= first and last <= end for start, end in found):
            found.append((first, last))
    return found
