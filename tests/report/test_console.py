"""Tables in terminals of any width."""

import io

import pytest
from rich.console import Console

from pfedbred.report import console as console_

HEADS = ("algorithm", "model", "chosen round", "last round", "best on test")
ROWS = [("learned-prior", "G", "95.01 ± 0.31", "94.12 ± 0.42", "95.23 ± 0.33"), ("", "P", "-", "96.1", "97")]


@pytest.mark.parametrize(
    ("width", "shown"), [(100, "│"), (75, "│"), (65, "algorithm"), (40, "- algorithm: learned-prior")]
)
def test_no_cell_is_cut_in_a_narrow_terminal(width, shown, monkeypatch):
    screen = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(console_, "console", screen)
    table = console_.new_table("digits: test accuracy in %", "a caption")
    for name in HEADS:
        table.add_column(name)
    for row in ROWS:
        table.add_row(*row)
    console_.print_table(table)
    lines = screen.file.getvalue().splitlines()
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "…" not in text
    assert ("│" in text) == (width >= 75)
    for cell in (*ROWS[0], *ROWS[1], shown, "a caption", "digits: test accuracy in %"):
        assert cell in text
