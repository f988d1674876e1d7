"""Checks the links of the written site: every file and every section that a page links to must be there."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse


class _Page(HTMLParser):
    """What a page links to and shows, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes a link, a picture or a script, and the name of an element."""
        given = {name: value for name, value in attrs if value}
        link = given.get("href") if tag == "a" else given.get("src")
        self.links |= {link} if link else set()
        self.places |= {given[name] for name in ("id", "name") if name in given}


def broken(site: Path) -> list[str]:
    """One line for each link that leads nowhere. Addresses elsewhere are not looked up."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        for link in sorted(page.links):
            address, place = urldefrag(link)
            if urlparse(address).scheme:
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{path.relative_to(site)}: there is no {link}")
            elif place and target in pages and unquote(place) not in pages[target].places:
                found.append(f"{path.relative_to(site)}: there is no such section: {link}")
    return found
