"""Gathers the site's pages from the repository, with links that lead to the gathered files.

Pages in the repository link to each other, and to files, as they lie in the repository, so that the links work where it
is browsed. On the site a page may lie elsewhere, and a linked source file is a page of its own.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path


class BrokenLinkError(Exception):
    """A link in the repository leads nowhere."""


MOVED = {
    "results/README.md": "results/index.md",
    "benchmarks/README.md": "benchmarks.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
}
"""Files of the repository that are elsewhere on the site. Links to README lead to the home page."""

PICTURES = (".png", ".svg", ".gif", ".jpg")

# Code is matched before links, so that what looks like a link in it stays as it is.
_CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```|^~~~.*?^~~~|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))|(?P<text>!?\[[^\]]*\])\((?P<to>[^)\s]+)\)",
    re.DOTALL | re.MULTILINE,
)


def place(path: str) -> str:
    """Where a file of the repository, given by its path, is on the site."""
    return MOVED.get(path, path.removeprefix("docs/"))


def sources(root: Path) -> list[str]:
    """The pages of the repository that are on the site, by their paths."""
    found = [*(root / "docs").glob("*.md"), *(root / "results").glob("*.md")]
    more = [path for path in MOVED if path not in ("README.md", "results/README.md")]
    return sorted([path.relative_to(root).as_posix() for path in found] + more)


def gather(root: Path, target: Path, parts: Mapping[str, Callable[[], str]]) -> None:
    """Writes all pages, and the files they show or link to, into ``target``.

    Args:
      root: the repository.
      target: the folder for the gathered pages.
      parts: by name, what replaces ``<!-- generated: NAME -->`` in a page.
    """
    linked: set[str] = set()
    for source in sources(root):
        text = (root / source).read_text()
        text, used = with_links(root, source, text)
        linked |= used
        text = re.sub(r"<!-- generated: (\S+) -->", lambda match: parts[match[1]](), text)
        _write(target / place(source), text)
    for path in sorted(linked):
        file = root / path
        if file.suffix in PICTURES:
            (target / place(path)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / place(path))
        elif file.suffix != ".md":
            _write(target / code_page(path), f"# {file.name}\n\n`{path}`\n\n```python\n{file.read_text()}```\n")
    shutil.copytree(root / "docs" / "assets", target / "assets", dirs_exist_ok=True)


def with_links(root: Path, source: str, text: str) -> tuple[str, set[str]]:
    """The text of a page with its links as they are on the site, and the files of the repository they lead to."""
    used: set[str] = set()

    def rewrite(match: re.Match[str]) -> str:
        if match["code"]:
            return match[0]
        path, mark, anchor = match["to"].partition("#")
        if re.match(r"[a-z]+:", path) or not path:
            return match[0]
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (root / aim).exists():
            raise BrokenLinkError(f"{source}: there is no {path}")
        if aim.startswith("docs/notebooks/"):
            there = place(aim).removesuffix(".py") + ".md"
        elif (root / aim).is_dir():  # the map of the code says what is in a folder
            there, mark, anchor = "contributing.md", "#", "the-tree"
        elif aim.endswith((".md", *PICTURES)):
            there = place(aim)
            used.add(aim)
        else:
            there = code_page(aim)
            used.add(aim)
        relative = posixpath.relpath(there, posixpath.dirname(place(source)) or ".")
        return f"{match['text']}({relative}{mark}{anchor})"

    return _CODE_OR_LINK.sub(rewrite, text), used


def code_page(path: str) -> str:
    """The page that shows a source file."""
    return f"code/{path.replace('/', '-')}.md"


def in_nav(entries: Iterable[object]) -> list[str]:
    """The pages that a navigation of nested lists and mappings names."""
    found: list[str] = []
    for entry in entries:
        values = entry.values() if isinstance(entry, dict) else [entry]
        for value in values:
            found += [value] if isinstance(value, str) else in_nav(value)
    return found


def _write(path: Path, text: str) -> None:
    os.makedirs(path.parent, exist_ok=True)
    path.write_text(text)
