"""Lets zensical write the gathered pages as the site."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_COMMAND = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", "zensical.toml"]

# Zensical finds the files to build with the watcher of `zensical serve`, which no option turns off. In a build, its
# thread ends once nothing has happened for 100 ms. On a busy machine that can be before it was told of all the files,
# and the build ends with this line. Another try is all it takes.
_TOO_LATE = "RuntimeError: Watcher disconnected"
_TRIES = 3

# Where the system has no inotify instance or watch left for the watcher, zensical writes no page and reports success.
# A watcher that polls needs neither.
_POLLING = {"ZENSICAL_POLL_WATCHER": "1"}


def write(root: Path, gathered: Path) -> int:
    """Writes site/ in ``root`` from its zensical.toml and the gathered pages; the exit code."""
    for tries_left in reversed(range(_TRIES)):
        done = subprocess.run(
            _COMMAND, cwd=root, env={**os.environ, **_POLLING}, stderr=subprocess.PIPE, text=True, check=False
        )
        if not (done.returncode and tries_left and done.stderr.rstrip().endswith(_TOO_LATE)):
            break
        print("zensical's watcher ended before the build: trying again", file=sys.stderr)
    sys.stderr.write(done.stderr)
    if not done.returncode and (absent := sorted(_absent(gathered, root / "site"))):
        print(f"error: zensical wrote no page for {', '.join(absent)}", file=sys.stderr)
        return 1
    return done.returncode


def _absent(gathered: Path, site: Path) -> Iterable[str]:
    """The gathered pages that the site does not have."""
    pages = (path.relative_to(gathered) for path in gathered.rglob("*.md"))
    return (page.as_posix() for page in pages if not (site / page.with_suffix(".html")).is_file())
