"""Settings written as text: ``lam=30``."""

from __future__ import annotations

import re
from typing import Any

from pfedbred.errors import SettingError
from pfedbred.io.strict import parse_yaml
from pfedbred.settings.values import parse_number


def assignment(text: str) -> tuple[str, Any]:
    """The name and the value of a text such as ``lam=30``."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise SettingError(f"a setting is given as NAME=VALUE, such as lam=30, not {text!r}")
    number = parse_number(value)
    if number is not None:
        return name.strip(), number
    return name.strip(), parse_yaml(value, f"the value in {text!r}")


def assignments(text: str) -> dict[str, Any]:
    """Settings separated by spaces, ``lam=30 alpha={schedule: cosine, start: 0.1}``; values may contain spaces."""
    return dict(map(assignment, re.split(r"\s+(?=\w+=)", text.strip()))) if text.strip() else {}
