"""The console and the style of all tables in the shell: colour on a terminal, plain lines in a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
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
    """Without a terminal the width does not matter."""
    (console if console.is_terminal else Console(width=160, **_LITERAL)).print(table)  # type: ignore[arg-type]


def shown_estimate(cell: Mapping[str, Any], seeds: int, percent: bool = True) -> str:
    """A mean over so many seeds, and the half-width of its interval: that of the cell, or else by its deviation."""
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
