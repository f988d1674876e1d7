"""The Gaussian prior's Sigma from a file: the mathematics takes arrays only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfedbred.io.npy import read_npy


def is_path(sigma: Any) -> bool:
    """Whether ``sigma`` names a file."""
    return isinstance(sigma, str) and sigma != "learned"


def read_sigma(sigma: Any) -> Any:
    """The array in the .npy file if ``sigma`` is a path; anything else is returned unchanged."""
    return read_npy(Path(sigma), "sigma") if is_path(sigma) else sigma


def with_sigma(settings: Mapping[str, Any]) -> dict[str, Any]:
    """An algorithm's settings, with the array instead of the path if ``sigma`` is one."""
    return {name: read_sigma(value) if name == "sigma" else value for name, value in settings.items()}
