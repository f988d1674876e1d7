"""Errors for the user."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_LONGEST = 2_000


class SettingError(ValueError):
    """An invalid setting. Its message is one line: what was given, and what is allowed.

    Attributes:
      in_shell: the message that the command line prints, if its options have to be named otherwise than in Python.
    """

    def __init__(self, message: str, in_shell: str | None = None) -> None:
        super().__init__(_one_line(message))
        self.in_shell = str(self) if in_shell is None else _one_line(in_shell)


class NoSamples(SettingError):
    """A client without any data."""


def printable(text: str, most: int | None = None) -> str:
    """``text`` safe to print: characters that are not printable are escaped, as in ``\\x1b``.

    Names come from data and from other people's files. They could move a terminal's cursor or set its title, start a
    new line in a log, or fail to print at all (a lone surrogate).
    """
    shown = "".join(each if each.isprintable() else _escaped(each) for each in text[:most])
    return shown if most is None or len(text) <= most else f"{shown} ..."


def _one_line(message: str) -> str:
    return printable(" ".join(message.split()), _LONGEST)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def file_name(text: str, most: int = 80) -> str:
    """``text`` as a file or folder name on any system: a single part of a path that never leads elsewhere.

    It has at most ``most`` bytes, which leaves room for a prefix and a suffix.
    """
    kept = re.sub(r"[^\w.+-]+", "-", text).strip("-.")[:most].rstrip("-.")
    while len(kept.encode()) > most:
        kept = kept[:-1].rstrip("-.")
    return f"_{kept}" if _DEVICES.fullmatch(kept) else kept or "data"


def is_file_name(text: str) -> bool:
    """Whether :func:`file_name` would leave ``text`` unchanged."""
    return file_name(text) == text


def is_folder_name(text: str) -> bool:
    """Whether a folder of that name lies where it is made, such as a method's with settings: ``+server(yogi)``."""
    return is_file_name(re.sub(r"[()=, ]", "", text)) and not text.endswith(" ")


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the closest valid one, or all of them."""
    names = [str(each) for each in allowed]
    close = difflib.get_close_matches(str(name)[:200], names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose one of: {', '.join(names)}" if names else ""
