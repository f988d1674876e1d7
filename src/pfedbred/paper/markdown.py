"""A table of the paper as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pfedbred.paper.cells import Cell, Difference
from pfedbred.paper.columns import ALL, Column
from pfedbred.paper.rows import Table

_ABOUT = (
    "Test accuracy in percent, mean ± standard deviation over seeds: the best over the rounds, as in the paper, and",
    "the last round. The mean over clients and the mean over the worst tenth of them are those of the last round.",
)
_ABOUT_SPLITS = "Deviations are those over all seeds on all splits of the data."
_ABOUT_CHOSEN = "The chosen round is the one that is best on validation samples, held out of training."
_ABOUT_COMPARED = (
    "Differences from another row are paired by split and seed, with an interval of 95 %: over splits if there are",
    "several, else over seeds. They are bold where the interval excludes 0.",
)
_FIGURES = {"best": "best", "final": "last round", "chosen": "chosen round"}


def markdown(table: Table, cells: Sequence[Cell], rows: Collection[str] | None = None) -> str:
    """A section for each column, with measured and printed figures and their difference, and what is missing.

    Missing are those of the table's rows, or of the given ``rows``, that the column has no cells of.
    """
    lines = [f"# {table.title}", "", *((*table.about, "") if table.about else ()), *_ABOUT]
    lines += [_ABOUT_SPLITS] if len(table.splits) > 1 else []
    lines += [_ABOUT_CHOSEN] if any(cell.chosen is not None for cell in cells) else []
    lines += _ABOUT_COMPARED if table.compared else ()
    lines.append("")
    for name in dict.fromkeys(cell.column for cell in cells):
        column = ALL[name]
        lines += [f"## {column.title}", ""]
        if column.not_compared:
            lines += [f"({_sentence(column.not_compared)}. The printed figures are for orientation only.)", ""]
        own = [cell for cell in cells if cell.column == name]
        for note in column.notes({cell.row: cell.data for cell in own}):
            lines += [f"({_sentence(note)}.)", ""]
        lines += [*_grid([_line(cell, column, table.shows_seconds) for cell in own]), ""]
        missing = not_recorded(table.rows if rows is None else rows, [cell.row for cell in own])
        lines += [f"{_sentence(missing)}.", ""] if missing else []
        if any(cell.paired for cell in own):
            lines += [*_grid([_compared(cell) for cell in own if cell.paired]), ""]
    if table.shows_fit:
        lines += ["## Distance from the printed figures", "", *_fit(table, cells), ""]
    return "\n".join(lines)


def not_recorded(rows: Iterable[str], recorded: Collection[str]) -> str | None:
    """Which rows of a column are missing, in words; None if none is."""
    missing = [row for row in rows if row not in recorded]
    return f"not recorded: {', '.join(missing)}" if missing else None


def _grid(lines: Sequence[dict[str, str]]) -> list[str]:
    """A Markdown table, without optional columns that are empty in every line."""
    names = [name for name in lines[0] if name not in _OPTIONAL or any(line[name] for line in lines)]
    rows = [names, ["---"] * len(names), *([line[name] for name in names] for line in lines)]
    return [f"| {' | '.join(row)} |" if place != 1 else f"|{'|'.join(row)}|" for place, row in enumerate(rows)]


_OPTIONAL = ("chosen round", "splits", "seconds")


def _line(cell: Cell, column: Column, with_seconds: bool) -> dict[str, str]:
    difference = column.difference(cell.mean, cell.paper)
    return {
        "method": cell.row,
        "": cell.model,
        "best": mean_and_std_text(cell.mean, cell.std),
        "printed": _number(cell.paper),
        "difference": "" if difference is None else f"{difference:+.2f}",
        "last round": ""
        if cell.last is None and cell.mean is not None
        else mean_and_std_text(cell.last, cell.last_std),
        "chosen round": "" if cell.chosen is None else mean_and_std_text(cell.chosen, cell.chosen_std),
        "splits": "" if cell.splits == 1 else str(cell.splits),
        "seeds": str(cell.n),
        "rounds": str(cell.rounds),
        "best round": str(cell.best_round),
        "client mean": _number(cell.client_mean),
        "worst tenth": _number(cell.worst_decile),
        "seconds": f"{cell.seconds:.0f}" if with_seconds else "",
    }


def _compared(cell: Cell) -> dict[str, str]:
    found = {title: cell.paired.get(figure) for figure, title in _FIGURES.items()}
    return {
        "method": cell.row,
        "": cell.model,
        "compared with": cell.compared_with or "",
        **{title: "" if each is None else _interval(each) for title, each in found.items()},
    }


def _interval(difference: Difference) -> str:
    if difference.mean is None:
        return ""
    if difference.half_width is None:
        return f"{difference.mean:+.2f}"
    text = f"{difference.mean:+.2f} ± {difference.half_width:.2f}"
    return f"**{text}**" if abs(difference.mean) > difference.half_width else text


def _fit(table: Table, cells: Sequence[Cell]) -> list[str]:
    """How far each row is from the printed figures: the mean absolute difference over the columns."""
    lines = []
    for row in table.rows:
        line, columns = {"method": row}, set[str]()
        for figure, title in (("mean", "best"), ("last", "last round")):
            for model in "PG":
                differences = {
                    cell.column: difference
                    for cell in cells
                    if (cell.row, cell.model) == (row, model)
                    and (difference := ALL[cell.column].difference(getattr(cell, figure), cell.paper)) is not None
                }
                columns |= differences.keys()
                line[f"{model}, {title}"] = f"{np.mean(np.abs(list(differences.values()))):.2f}" if differences else ""
        if columns:
            lines.append({**line, "columns": str(len(columns))})
    about = "The mean over the columns of the absolute difference between measured and printed figure."
    return [about, "", *_grid(lines)] if lines else [about]


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def mean_and_std_text(mean: float | None, std: float | None) -> str:
    """Mean and standard deviation, such as 89.90 ± 0.12."""
    return "diverged" if mean is None else f"{mean:.2f} ± {std:.2f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
