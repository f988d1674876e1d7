"""Tables of the figures of runs, and of methods side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfedbred.report.console import counted, new_table, print_table, shown_estimate, shown_number
from pfedbred.runs.figures import EXPLAINED, SUMMARY_KEYS, TITLES, Figure
from pfedbred.runs.schema import primary_info, primary_metric

_LETTERS = {"global": "G", "personal": "P"}


def show_figures(summaries: Sequence[Mapping[str, Any]], explained: str = "") -> None:
    """Two rows for each run, of G and of P: the figures of the first metric, the worst-off clients, a round's time.

    Without validation samples, these are the best on test and the last round.
    """
    first = summaries[0]
    metric, info = primary_metric(first), primary_info(first)
    unit = " in %" if info["percent"] else ""
    chosen = "chosen_round" in first["personal"]
    figures: list[Figure] = ["chosen", "last", "best"] if chosen else ["best", "last"]
    words = "\n".join(f"{TITLES[figure]}: {EXPLAINED[figure]}" for figure in figures if figure != "last")
    words += "" if chosen else "\nlast round: that of the models that 'pfedbred export' writes"
    table = new_table(
        f"{first['data']['name']}, {first['model']}, {rounds_words(summaries)}: test {info['title']}{unit}",
        f"{interval_words(first)}{words}\nworst tenth: P of the worst-off tenth of the clients "
        f"at the last round{explained}",
    )
    worst = "final_worst_decile" in first["personal"]
    for name in ("algorithm", "model"):
        table.add_column(name)
    heads = [TITLES[figure] for figure in figures]
    for name in (*heads, *(["round chosen"] if chosen else []), *(["worst tenth"] if worst else []), "ms/round"):
        table.add_column(name, justify="right")
    sign = 1 if info["higher_is_better"] else -1
    means = [_cell(summary, "personal", metric, figures[0])["mean"] for summary in summaries]
    best = max((sign * mean for mean in means if mean is not None), default=None)
    for summary, mean in zip(summaries, means, strict=True):
        leads = len(summaries) > 1 and mean is not None and sign * mean == best
        for model, letter in _LETTERS.items():
            cells = [_cell(summary, model, metric, figure) for figure in figures]
            tenth = summary[model]["final_worst_decile"] if worst and model == "personal" else None
            table.add_row(
                summary["algorithm"] if model == "global" else "",
                letter,
                *(shown_estimate(cell, summary["seeds"], info["percent"]) for cell in cells),
                *([_range(summary[model]["chosen_round"])] if chosen else []),
                *([shown_estimate(tenth, summary["seeds"], info["percent"]) if tenth else ""] if worst else []),
                f"{1000 * summary['seconds']['round']:.1f}" if model == "global" else "",
                style="bold" if leads and model == "personal" else None,
            )
    print_table(table)


def _cell(summary: Mapping[str, Any], model: str, metric: str, figure: Figure) -> Mapping[str, Any]:
    """A figure of a model's first metric; an earlier version may not have written that of the last round."""
    if figure == "chosen":
        return summary[model]["metrics"][metric]["chosen"]
    return summary[model].get(f"{SUMMARY_KEYS[figure]}_{metric}") or {"mean": None}


def _range(rounds: Sequence[int]) -> str:
    return str(rounds[0]) if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"


def rounds_words(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The number of rounds that runs had, and of how many, if some finished early."""
    planned, ends = summaries[0]["rounds"], [_end(summary) for summary in summaries]
    last = max(ends)
    words = counted(planned, "round") if last == planned else f"{last} of {counted(planned, 'round')}"
    apart = min(ends) < last or ("splits" in summaries[0] and last < planned)
    return f"up to {words}" if apart else words


def _end(summary: Mapping[str, Any]) -> int:
    early = summary.get("finished_early")
    return early["round"] if early else summary["rounds"]


def interval_words(summary: Mapping[str, Any], end: str = "\n") -> str:
    """What is shown beside the means of a run with several seeds, or on several splits."""
    over = "splits" if "splits" in summary else "seeds"
    return f"mean ± half-width of its 95 % interval over {over}{end}" if summary["seeds"] > 1 else ""


def show_differences(comparison: Mapping[str, Any]) -> None:
    """A row for each method: its paired difference to the best, or to the baseline; nothing for a single run.

    What is not significantly different from the best is marked.
    """
    methods, splits = comparison["methods"], comparison["splits"]
    units = len(splits) if splits else comparison["seeds"]
    if len(methods) < 2 or units < 2:
        return
    figure = comparison["figures"][0]
    metric, info = next(iter(comparison["metric_info"].items()))
    other = comparison["baseline"] or "the best method"
    pairs = f"{len(splits)} splits" if splits else f"{comparison['seeds']} seeds"
    unit = " in %" if info["percent"] else ""
    table = new_table(
        f"paired differences to {other} over {pairs}: {info['title']}{unit}, {TITLES[figure]}",
        "mean ± half-width of its 95 % interval\n≈: not significantly different from the best",
    )
    table.add_column("algorithm")
    for letter in _LETTERS.values():
        table.add_column(letter, justify="right")
    for method in methods:
        cells = (_difference(method[model][metric][figure], info["percent"]) for model in _LETTERS)
        table.add_row(method["algorithm"], *cells)
    print_table(table)


def _difference(found: Mapping[str, Any], percent: bool) -> str:
    if found["mean"] is None:
        return "-"
    mark = "best" if found["best"] else "≈" if found["told_from_best"] is False else ""
    difference = found["difference"]
    if difference is None:  # it is the method that the others are compared with
        return mark if found["best"] else f"baseline {mark}".rstrip()
    if difference["mean"] is None:
        return "-"
    sign = "" if difference["mean"] < 0 else "+"
    half = shown_number(difference["half_width"] or 0.0, percent)
    text = f"{sign}{shown_number(difference['mean'], percent)} ± {half}"
    return f"{text} {mark}".rstrip()
