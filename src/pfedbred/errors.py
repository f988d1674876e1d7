"""Errors for the person who made the mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SettingError(ValueError):
    """A setting that cannot work. Its message is one line: what was given, and what is allowed."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the closest valid one, or all of them."""
    names = [str(each) for each in allowed]
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose one of: {', '.join(names)}" if names else ""
