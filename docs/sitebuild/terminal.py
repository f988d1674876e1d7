"""Records a command in a terminal and draws it as an animated picture: `PYTHONPATH=docs python -m sitebuild.terminal`.

The command really runs, and what it prints is drawn as a terminal of that size would show it. Two things differ from
what one would see: the typing is made up, and the rest is played faster, in ``PLAYED`` seconds.
It needs a pseudo-terminal, and so Unix.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

COMMAND = "pfedbred compare --algorithms fedavg,ditto,mg-meta --validation 0.2 --seeds 5"
PICTURE = Path(__file__).resolve().parents[1] / "terminal.svg"
COLUMNS, LINES = 110, 50  # more lines than the command prints: nothing scrolls away
PLAYED = 15.0  # seconds from the first output to the last
STEP = 0.1  # seconds between two frames, at least
END = 8.0  # seconds for which the last frame stays

CELL, LINE, MARGIN = 8.4, 18, 14  # pixels
FOREGROUND, BACKGROUND = "#d8dee4", "#161b22"  # dark in itself: it reads alike on a light and on a dark page
NAMED = {  # the terminal's own colours, as pyte names them
    "black": "#6e7681",
    "red": "#ff7b72",
    "green": "#56d364",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#56d4dd",
    "white": "#f0f6fc",
}


class Run(NamedTuple):
    """Neighbouring characters of one style."""

    column: int
    text: str
    colour: str
    bold: bool
    italic: bool


Row = tuple[Run, ...]


class Frame(NamedTuple):
    """What is on the screen from a time on."""

    time: float
    rows: tuple[Row, ...]


def record(command: str, folder: Path) -> list[tuple[float, bytes]]:
    """Runs a command in a pseudo-terminal, and returns what it wrote and when, in seconds from its start."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    unset = ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES")
    environment = {name: value for name, value in os.environ.items() if name not in unset} | {"TERM": "xterm-256color"}
    start, written = time.monotonic(), []
    process = subprocess.Popen(shlex.split(command), cwd=folder, env=environment, stdin=its, stdout=its, stderr=its)
    os.close(its)
    while True:
        select.select([ours], [], [])
        try:
            read = os.read(ours, 65536)
        except OSError:  # so Linux says that nobody has the terminal open any more
            read = b""
        if not read:
            break
        written.append((time.monotonic() - start, read))
    os.close(ours)
    if process.wait():
        sys.exit(f"{command} failed:\n{b''.join(each for _, each in written).decode()}")
    return written


def in_time(written: Sequence[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """The same in ``PLAYED`` seconds, if it took longer."""
    factor = min(1.0, PLAYED / written[-1][0])
    return [(factor * moment, read) for moment, read in written]


def screens(written: Iterable[tuple[float, bytes]]) -> list[Frame]:
    """The screen after each ``STEP`` in which something was written."""
    import pyte

    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    frames = []
    for slot, chunks in itertools.groupby(written, key=lambda each: int(each[0] / STEP)):
        for _, chunk in chunks:
            stream.feed(chunk)
        cells = [[screen.buffer[line][column] for column in range(COLUMNS)] for line in range(LINES)]
        frames.append(Frame(slot * STEP, tuple(map(_row, cells))))
    return frames


def _row(cells: Sequence) -> Row:
    """A line of the screen as runs; what is blank is left out."""
    runs, column = [], 0
    for (colour, bold, italic), group in itertools.groupby(cells, key=lambda each: (each.fg, each.bold, each.italics)):
        text = "".join(each.data for each in group)
        if text.strip():
            indent = len(text) - len(text.lstrip())
            runs.append(Run(column + indent, text.strip(), _colour(colour), bold, italic))
        column += len(text)
    return tuple(runs)


def _colour(name: str) -> str:
    if name == "default":
        return FOREGROUND
    return NAMED[name.removeprefix("bright")] if not name.startswith("#") and len(name) != 6 else f"#{name}"


def typed(command: str) -> list[Frame]:
    """The command as it is typed."""
    ends = [*range(0, len(command), 2), len(command)]
    prompt = Run(0, "$", NAMED["green"], True, False)
    rows = [(prompt, Run(2, command[:end], FOREGROUND, True, False)) if end else (prompt,) for end in ends]
    return [Frame(0.5 + 0.06 * i, (row,)) for i, row in enumerate(rows)]


def scene(command: str, shown: Sequence[Frame]) -> list[Frame]:
    """The command being typed, and below it what it wrote."""
    typing = typed(command)
    start, (line,) = typing[-1].time + 0.4, typing[-1].rows
    return [*typing, *(Frame(start + frame.time, (line, *frame.rows)) for frame in shown)]


def drawn(title: str, frames: Sequence[Frame]) -> str:
    """Frames as an animated SVG that starts again at its end.

    Each line of the screen is drawn once for as long as it stays the same. Who asks the system for reduced motion sees
    the last frame.
    """
    total = frames[-1].time + END
    shown: dict[tuple[float, float], list[str]] = {}
    height = max(line + 1 for frame in frames for line, row in enumerate(frame.rows) if row)
    for line in range(height):
        changes = [(frame.time, frame.rows[line] if line < len(frame.rows) else ()) for frame in frames]
        same = [next(group) for _, group in itertools.groupby(changes, key=lambda each: each[1])]
        for (start, row), (end, _) in itertools.pairwise([*same, (total, ())]):
            if row:
                shown.setdefault((start, end), []).append(_drawn_row(line, row))
    styles, groups = [], []
    for i, ((start, end), rows) in enumerate(shown.items()):
        visible = f"{100 * start / total:.2f}%{{visibility:visible}}"
        hidden = f"{100 * end / total:.2f}%{{visibility:hidden}}" if end < total else ""
        styles.append(f"@keyframes k{i}{{0%{{visibility:hidden}}{visible}{hidden}}}")
        last = "" if end < total else " last"
        groups.append(f'<g class="s{last}" style="animation-name:k{i}">{"".join(rows)}</g>')
    width, height = COLUMNS * CELL + 2 * MARGIN, height * LINE + 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">',
            f"<title>{escape(title)}</title>",
            "<style>",
            f"text{{white-space:pre;font:{CELL / 0.602:.4g}px 'DejaVu Sans Mono',Menlo,Consolas,monospace}}",
            ".b{font-weight:bold}.i{font-style:italic}",
            f".s{{visibility:hidden;animation:{total:.2f}s step-end infinite}}",
            *styles,
            "@media(prefers-reduced-motion:reduce){.s{animation:none}.last{visibility:visible}}",
            "</style>",
            f'<rect width="{width:g}" height="{height:g}" rx="6" fill="{BACKGROUND}"/>',
            *groups,
            "</svg>\n",
        ]
    )


def _drawn_row(line: int, row: Row) -> str:
    y = MARGIN + (line + 0.75) * LINE
    return "".join(_drawn_run(y, run) for run in row)


def _drawn_run(y: float, run: Run) -> str:
    """A run as text of exactly its width, whatever font the reader has."""
    classes = " ".join(name for name, given in (("b", run.bold), ("i", run.italic)) if given)
    about = f' class="{classes}"' if classes else ""
    return (
        f'<text x="{MARGIN + run.column * CELL:.1f}" y="{y:g}" fill="{run.colour}"{about} '
        f'textLength="{len(run.text) * CELL:.1f}" xml:space="preserve">{escape(run.text)}</text>'
    )


def main() -> None:
    """Runs the command in an empty folder, and draws it."""
    with tempfile.TemporaryDirectory() as folder:
        frames = scene(COMMAND, screens(in_time(record(COMMAND, Path(folder)))))
    PICTURE.write_text(drawn(f"{COMMAND}, in a terminal", frames))
    print(f"picture: {PICTURE}, {PICTURE.stat().st_size / 1000:.0f} kB, {frames[-1].time + END:.0f} seconds")


if __name__ == "__main__":
    main()
