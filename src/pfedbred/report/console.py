"""The console and the style of all tables in the shell: colour on a terminal, plain lines in a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from pfedbred.errors import printable
from pfedbred.runs.statistics import half_width

_LITERAL = {"highlight": False, "markup": False, "emoji": False}  # names from data may look like rich's markup
console = Console(**_LITERAL)  # type: ignore[arg-type]


def new_table(title: str, caption: str) -> Table:
    """In the style of all tables."""
    frame = box.ROUNDED if console.is_terminal else box.ASCII2
    return Table(
        title=printable(title), caption=caption or None, title_justify="left", caption_justify="left", box=frame
    )


def print_table(table: Table) -> None:
    """No cell is cut: in a narrow terminal headings are wrapped, then the frame is left out, then rows become lists.

    Without a terminal the width does not matter.
    """
    if not console.is_terminal:
        Console(width=160, **_LITERAL).print(table)  # type: ignore[arg-type]
        return
    columns = table.columns
    cells = [max((cell_len(str(each)) for each in column.cells), default=0) for column in columns]
    whole = [max(cells[i], cell_len(str(column.header))) for i, column in enumerate(columns)]
    least = [max([cells[i], *map(cell_len, str(column.header).split())]) for i, column in enumerate(columns)]
    frame = 3 * len(columns) + 1
    if sum(whole) + frame > console.width:
        for column, width in zip(columns, least, strict=True):
            column.width = width
        if sum(least) + frame > console.width:
            table.box, table.padding, table.pad_edge = None, (0, 1, 0, 0), False
        if sum(least) + len(columns) > console.width:
            _print_rows(table)
            return
    console.print(table)


def _print_rows(table: Table) -> None:
    """Each row as lines of its own, one for each cell."""
    console.print(table.title, style="italic")
    for row in zip(*(column.cells for column in table.columns), strict=True):
        filled = [(column.header, cell) for column, cell in zip(table.columns, row, strict=True) if cell]
        for place, (header, cell) in enumerate(filled):
            console.print(f"{'- ' if place == 0 else '  '}{header}: {cell}")
    if table.caption:
        console.print(table.caption, style="dim italic")


def shown_estimate(cell: Mapping[str, Any], seeds: int, percent: bool = True) -> str:
    """A mean over ``seeds`` seeds, and the half-width of its interval: the cell's own, or else from its deviation."""
    if cell["mean"] is None:
        return "-"
    half = cell["half_width"] if "half_width" in cell else half_width(cell["std"], seeds)
    spread = "" if half is None else f" ± {shown_number(half, percent)}"
    return f"{shown_number(cell['mean'], percent)}{spread}"


def counted(number: int, what: str) -> str:
    """``1 round``, ``2 rounds``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def shown_number(value: float, percent: bool) -> str:
    """A number of any size, or a fraction in percent."""
    if percent:
        return f"{100 * value:.2f}"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.4g}"
