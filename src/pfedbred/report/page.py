"""report.html: one self-contained page about finished runs, to open in any browser without a network.

The page is ``assets/page.html`` with its style, its scripts, plotly.js and the results as JSON. Text that comes from
data is embedded as JSON only, and the scripts turn it into text, never into markup.

Runs, comparisons and sweeps are built in. Other kinds of result are contributed by the caller, each as a
:class:`Section`; ``pfedbred.paper.page`` is one.
"""

from __future__ import annotations

import html
import json
import string
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pfedbred._version import __version__
from pfedbred.errors import SettingError, is_file_name, printable
from pfedbred.io.shapes import expect
from pfedbred.io.strict import read_json
from pfedbred.report.content import Command, Content, add_run, add_sweep

_COUNTED = {"runs": "run", "sweeps": "sweep"}


class Section(NamedTuple):
    """A kind of result that the page can show besides runs, comparisons and sweeps.

    Attributes:
      name: what an error message calls it, such as "paper result".
      gather: adds what it finds in a folder to the content, and returns whether it found anything.
      lists: the lists of the content that it fills, with the word for one entry of each.
      script: JavaScript that calls ``addSection``; it shares the scope of ``assets/base.js``.
    """

    name: str
    gather: Callable[[Path, Content], bool]
    lists: Mapping[str, str]
    script: str = ""


def write_page(
    folders: Sequence[Path], path: Path, sections: Sequence[Section] = (), command: Command | None = None
) -> None:
    """Writes the page of these folders.

    Args:
      folders: of runs, comparisons, sweeps and what ``sections`` know.
      path: of the page.
      sections: further kinds of result.
      command: gives the command line that reproduces an experiment; without it the page lists settings only.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise SettingError("the page needs plotly: pip install 'pfedbred[report]'") from None
    content = gather(folders, sections, command)
    names = [*(run["dataset"] for run in content["runs"]), *(folder.resolve().name for folder in folders)]
    page = string.Template(_asset("page.html")).substitute(
        title=html.escape(printable(f"pfedbred: {', '.join(dict.fromkeys(names))}")),
        subtitle=html.escape(printable(_subtitle(content, sections))),
        footer=html.escape(printable(f"pfedbred {__version__}: pfedbred report {' '.join(map(str, folders))}")),
        css=_asset("page.css"),
        script=_script(sections),
        plotly=get_plotlyjs(),
        content=embedded(content),
    )
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as problem:
        raise SettingError(f"cannot write {path}: {problem.strerror}") from None


def _asset(name: str) -> str:
    return (resources.files("pfedbred.report") / "assets" / name).read_text(encoding="utf-8")


def _script(sections: Sequence[Section]) -> str:
    """All scripts in one scope, in the order of the sections on the page."""
    before, after = ("base.js", "curves.js", "runs.js"), ("sweeps.js", "data.js", "settings.js")
    parts = [*map(_asset, before), *(each.script for each in sections), *map(_asset, after)]
    return "\n".join(['"use strict";', "(() => {", *parts, "showPage();", "})();"])


def embedded(content: Any) -> str:
    """JSON that cannot end the script element around it."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _subtitle(content: Content, sections: Sequence[Section]) -> str:
    kinds = {**_COUNTED, **{many: one for each in sections for many, one in each.lists.items()}}
    counts = [(len(content[many]), one, many) for many, one in kinds.items() if content[many]]
    counted = ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts)
    platforms = dict.fromkeys(content["platforms"])
    return counted + (f"; measured on {'; '.join(platforms)}" if platforms else "")


def gather(folders: Sequence[Path], sections: Sequence[Section] = (), command: Command | None = None) -> Content:
    """What the page shows, from the files of the folders."""
    names = ("runs", "metrics", "federations", "sweeps", "commands", "platforms")
    content: Content = {name: [] for name in (*names, *(name for each in sections for name in each.lists))}
    for folder in folders:
        if not folder.is_dir():
            raise SettingError(f"there is no folder {folder}")
        try:
            found = [_gather_runs(folder, content, command), *(each.gather(folder, content) for each in sections)]
        except SettingError:
            raise
        except OSError as problem:
            raise SettingError(f"cannot read {folder}: {problem.strerror}") from None
        if not any(found):
            *kinds, last = ("finished run", "comparison", "sweep", *(each.name for each in sections))
            raise SettingError(f"{folder} contains no {', '.join(kinds)} or {last}")
    _tell_apart(content["runs"])
    runs = [{"name": run["name"], **run.pop("reproduce")} for run in content["runs"]]
    content["commands"] = runs + content["commands"]
    return content


def _gather_runs(folder: Path, content: Content, command: Command | None) -> bool:
    """A run, the runs of a comparison, a sweep: what of them the folder holds."""
    found = False
    if (folder / "summary.json").exists():
        add_run(folder, content, command)
        found = True
    if (folder / "table.json").exists():
        summaries = read_json(folder / "table.json")
        expect(summaries, [{"algorithm": str}], folder / "table.json")
        for summary in summaries:
            if not is_file_name(summary["algorithm"]):  # it names a folder here, and must not lead elsewhere
                raise SettingError(f"{folder / 'table.json'} is damaged: {summary['algorithm']!r} is not an algorithm")
            add_run(folder / summary["algorithm"], content, command)
        found = True
    if (folder / "sweep.json").exists():
        add_sweep(folder / "sweep.json", folder.name, content, command)
        found = True
    return found


def _tell_apart(runs: Sequence[dict[str, Any]]) -> None:
    """Adds data and model, and then a number, to the names of runs of the same method."""
    names = [run["name"] for run in runs]
    for run in runs:
        if names.count(run["name"]) > 1:
            run["name"] = f"{run['name']} on {run['dataset']}, {run['model']}"
    seen: dict[str, int] = {}
    for run in runs:
        seen[run["name"]] = seen.get(run["name"], 0) + 1
        if seen[run["name"]] > 1:
            run["name"] = f"{run['name']} ({seen[run['name']]})"
