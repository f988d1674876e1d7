"""The recorded terminal: what a screen shows, how it is drawn, and that the pages show the command it is of."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    from sitebuild import terminal

    return terminal


def texts(row):
    return [(run.column, run.text) for run in row]


def test_frames_are_what_a_terminal_shows(terminal):
    pytest.importorskip("pyte")
    first, second = terminal.screens(
        [(0.01, b"one\r\n"), (0.05, b"\x1b[1;32mtwo\x1b[0m  three"), (0.35, b"\r\x1b[2K\x1b[1A\x1b[38;5;197mfour")]
    )
    assert [texts(row) for row in first.rows[:2]] == [[(0, "one")], [(0, "two"), (5, "three")]]
    assert first.rows[1][0].bold
    assert first.rows[1][0].colour == terminal.NAMED["green"]
    assert second.time == pytest.approx(0.3)
    assert [texts(row) for row in second.rows[:2]] == [[(0, "four")], []]
    assert second.rows[0][0].colour == "#ff005f"


def test_each_line_is_drawn_for_as_long_as_it_is_shown(terminal):
    def row(text):
        return (terminal.Run(0, text, "#ffffff", False, False),)

    frames = [
        terminal.Frame(time, rows)
        for time, rows in [(1.0, (row("a"),)), (2.0, (row("a"), row("<b>"))), (4.0, (row("a"), row("c")))]
    ]
    picture = ElementTree.fromstring(terminal.drawn("title", frames))
    total = 4.0 + terminal.END
    drawn = {text.text: group for group in picture.iter(f"{SVG}g") for text in group}
    assert set(drawn) == {"a", "<b>", "c"}
    styles = picture.find(f"{SVG}style").text
    for text, start, end in (("a", 1, None), ("<b>", 2, 4), ("c", 4, None)):
        name = drawn[text].get("style").removeprefix("animation-name:")
        hidden = f"{100 * end / total:.2f}%{{visibility:hidden}}" if end else ""
        keyframes = f"{{0%{{visibility:hidden}}{100 * start / total:.2f}%{{visibility:visible}}{hidden}}}\n"
        assert f"@keyframes {name}{keyframes}" in styles
        assert ("last" in drawn[text].get("class").split()) == (end is None)


def test_a_long_recording_is_played_faster(terminal):
    assert terminal.in_time([(6.0, b"a"), (60.0, b"b")]) == [(terminal.PLAYED / 10, b"a"), (terminal.PLAYED, b"b")]
    assert terminal.in_time([(1.0, b"a")]) == [(1.0, b"a")]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_pages_name_the_command_that_the_picture_shows(terminal, page):
    picture = ElementTree.parse(terminal.PICTURE).getroot()
    assert picture.find(f"{SVG}title").text.startswith(terminal.COMMAND)
    text = (ROOT / page).read_text()
    assert f"`{terminal.COMMAND}`" in text
    assert "terminal.svg)" in text
    assert terminal.PICTURE.stat().st_size < 500_000


@pytest.mark.full
def test_a_command_runs_in_a_terminal(terminal, tmp_path):
    written = terminal.record("""python -c 'import os; print(os.isatty(1), *os.get_terminal_size())'""", tmp_path)
    assert b"".join(read for _, read in written).split() == b"True 110 50".split()
