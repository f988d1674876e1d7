"""The command: gather the pages, run the notebooks, and let zensical write the site."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from sitebuild import generated, notebooks, pages, writing

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
    return writing.write(ROOT, gathered)


if __name__ == "__main__":
    sys.exit(main())
