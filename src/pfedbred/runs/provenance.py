"""Provenance recorded with every result: version, revision, platform."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import jax

from pfedbred._version import __version__


def provenance() -> dict[str, Any]:
    """The provenance recorded with every result."""
    return {"version": __version__, "revision": revision(), "platform": platform_facts()}


@functools.cache
def revision() -> str | None:
    """The commit this runs from, if it runs from a checkout of its own repository; asked once in a process."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists() or not (root / "pyproject.toml").exists():
        return None
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or a repository that it refuses to read: the version still identifies the code
    return found.stdout.strip()


def platform_facts() -> dict[str, Any]:
    """The machine and the software."""
    device = jax.devices()[0]
    return {
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "devices": jax.device_count(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "jax": jax.__version__,
    }
