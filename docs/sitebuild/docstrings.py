"""Docstrings as Markdown, for the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe


def as_markdown(text: str) -> str:
    """A docstring whose roles in Sphinx's notation are plain code, and whose example is a section of examples.

    An inner product in the text is not taken for an HTML tag.

    >>> as_markdown("see :func:`~pfedbred.run` and :mod:`pfedbred.data`")
    'see `run` and `pfedbred.data`'
    >>> print(as_markdown("sup_s <x, s> - g(s), and `<x, s>`"))
    sup_s &lt;x, s> - g(s), and `<x, s>`
    """

    def name(match: re.Match[str]) -> str:
        return f"`{match[2].rpartition('.')[2] if match[1] else match[2]}`"

    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)  # the heading that griffe knows
    text = re.sub(r":\w+:`(~?)([^`]+)`", name, text)
    code = r"(?P<code>^ .*?$|(?P<ticks>`+).+?(?P=ticks))"  # what is indented is a section or code
    return re.sub(code + r"|<(?=[a-zA-Z])", lambda match: match["code"] or "&lt;", text, flags=re.MULTILINE)


class MarkdownDocstrings(griffe.Extension):
    """Applies it to every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each object."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
