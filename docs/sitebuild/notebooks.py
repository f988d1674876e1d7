"""Runs the notebooks, which are kept as scripts, and writes them as pages with what they print and draw."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import plotly
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from sitebuild.pages import with_links

_PLOTLY = "application/vnd.plotly.v1+json"


class FailedNotebookError(Exception):
    """A cell of a notebook raised an error."""


def render_all(root: Path, target: Path, *, run: bool) -> None:
    """Every script in the repository's docs/notebooks as a page in ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    for script in sorted((root / "docs" / "notebooks").glob("*.py")):
        render(root, script, target, run=run)


def render(root: Path, script: Path, target: Path, *, run: bool) -> None:
    """One script as a page; with ``run`` it is executed, in an empty folder, and its outputs are shown."""
    notebook = jupytext.read(script)
    if run:
        with tempfile.TemporaryDirectory() as folder:
            client = NotebookClient(
                notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}
            )
            try:
                client.execute(env=_environment())
            except CellExecutionError as problem:
                raise FailedNotebookError(f"{script.name}: {problem}") from None
    pieces, heading = [], script.stem
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = (re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE) or [heading])[-1]
            pieces.append(with_links(root, script.relative_to(root).as_posix(), cell.source)[0])
        elif cell.source.strip():
            pieces.append(f"```python\n{cell.source}\n```")
            pieces += _outputs(cell.get("outputs", []), script.stem, target, heading)
    how = f"*This page is a notebook, kept as the script `docs/notebooks/{script.name}`"
    how += ", run when the site was built.*" if run else "; this build of the site did not run it.*"
    (target / f"{script.stem}.md").write_text("\n\n".join([*pieces, how]) + "\n")


def _environment() -> dict[str, str]:
    # Figures as data, without plotly.js in each of them.
    return {**os.environ, "PLOTLY_RENDERER": "plotly_mimetype"}


def _outputs(outputs: list[dict[str, Any]], name: str, target: Path, heading: str) -> Iterator[str]:
    """What a cell has printed, drawn or returned, as Markdown; ``heading`` describes its pictures."""
    for output in outputs:
        if output["output_type"] == "stream":
            if output["name"] == "stdout":
                yield _text(output["text"])
            continue
        data = output.get("data", {})
        number = len(list(target.glob(f"{name}-*")))
        if _PLOTLY in data:
            file = f"{name}-{number}.js"
            (target / file).write_text(f"showFigure({json.dumps(file)}, {json.dumps(data[_PLOTLY])});\n")
            height = data[_PLOTLY].get("layout", {}).get("height", 450)
            label = f'role="figure" aria-label="Interactive figure: {html.escape(heading)}"'
            yield f'<div class="figure" data-figure="{file}" {label} style="height: {height}px"></div>'
        elif "image/png" in data:
            file = f"{name}-{number}.png"
            (target / file).write_bytes(base64.b64decode(data["image/png"]))
            yield f"![Figure: {heading}]({file})"
        elif "text/plain" in data:
            yield _text(data["text/plain"])


def _text(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


def add_plotly(assets: Path) -> None:
    """plotly.js beside the pages, which load it where they have a figure."""
    shutil.copyfile(Path(plotly.__file__).parent / "package_data" / "plotly.min.js", assets / "plotly.min.js")
