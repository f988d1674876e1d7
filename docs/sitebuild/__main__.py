"""The command: gather the pages, run the notebooks, and let zensical write the site."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from sitebuild import generated, notebooks, pages

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Builds the site into site/; a broken link or reference is an error."""
    parser = argparse.ArgumentParser(prog="sitebuild", description=main.__doc__)
    parser.add_argument("--no-run", action="store_true", help="show the notebooks without running them: much quicker")
    arguments = parser.parse_args()
    gathered = ROOT / "build" / "docs"
    if gathered.exists():
        shutil.rmtree(gathered)
    try:
        pages.gather(ROOT, gathered, generated.parts(ROOT))
        notebooks.render_all(ROOT, gathered / "notebooks", run=not arguments.no_run)
        notebooks.add_plotly(gathered / "assets")
    except (pages.BrokenLinkError, notebooks.FailedNotebookError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    shutil.rmtree(ROOT / "site", ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", "zensical.toml"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
