"""The repository's ``results``: its records belong to the current settings, and its pages match its records."""

import json
import re
import runpy
import shutil
from itertools import product
from pathlib import Path

import pytest

from pfedbred.paper import columns, fair, tables
from pfedbred.paper.cells import read_cells
from pfedbred.paper.markdown import markdown
from pfedbred.paper.records import Request, fingerprint

RESULTS = Path(__file__).resolve().parents[2] / "results"
MEASURED = {name: table for name, table in tables.TABLES.items() if name != "precision"}  # which waits for a GPU


@pytest.mark.parametrize("table", MEASURED.values(), ids=MEASURED)
def test_the_records_in_the_repository_are_of_these_settings(table):
    """A record that the current settings would not reproduce is stale, and one of no row is left over."""
    files = set((RESULTS / "cells" / table.name).glob("*/*.json"))
    assert files
    for column, row, split in product(columns.ALL, table.rows, table.splits):
        file = table.record_file(RESULTS, column, row, split)
        files.discard(file)
        if file.exists():
            said = json.loads(file.read_text())["fingerprint"]
            asked = table.rows[row].experiment(columns.ALL[column], seeds=said["seeds"], rounds=said["rounds"])
            assert said == fingerprint(asked.checked()) | ({} if split is None else {"split_seed": split}), file
    assert not files


@pytest.mark.parametrize("table", MEASURED.values(), ids=MEASURED)
def test_the_tables_are_those_of_the_records(table):
    """They are generated: ``pfedbred paper NAME --no-run --out results`` writes them again."""
    assert (RESULTS / f"{table.name}.md").read_text() == markdown(table, read_cells(table, RESULTS))


_SHORT = {"mg": "mg-meta"}  # names of README.md that are not simply those of the rows


@pytest.mark.parametrize(("model", "rows"), [("P", 11), ("G", 12)])
def test_the_readme_shows_the_figures_of_the_records(model, rows):
    measured = {(cell.column, cell.row): cell for cell in read_cells(tables.TABLE2, RESULTS) if cell.model == model}
    keys = {column.title: name for name, column in columns.ALL.items()}
    text = (RESULTS / "README.md").read_text()
    table = text[text.index(f"| {model} | MNIST, MCLR |") :].partition("\n\n")[0]
    titles, _, *shown = ([each.strip() for each in line.strip("|").split("|")] for line in table.splitlines())
    assert (len(titles), len(shown)) == (6, rows)
    for name, *said in shown:
        method, plus, variant = name.lower().partition("+")
        for title, figure in zip(titles[1:], said, strict=True):
            cell = measured.get((keys[title], _SHORT.get(method, method) + plus + variant))
            if cell is None:
                assert figure == "not measured", (name, title)
                continue
            compared = "" if cell.paper is None else f" ({cell.mean - cell.paper:+.2f})"
            assert figure == f"{cell.mean:.2f}{compared}", (name, title)


_INTERVAL = re.compile(r"\d+\.\d\d\s±\s\d+\.\d\d")


def test_the_page_of_the_fair_comparison_is_that_of_its_records(tmp_path):
    """It is generated: ``pfedbred paper fair --no-run --out results`` writes it again."""
    shutil.copytree(RESULTS / "cells" / "fair", tmp_path / "cells" / "fair")
    fair.run_fair(Request(tmp_path, columns.Federations(), run=False))
    assert (tmp_path / "fair.md").read_text() == (RESULTS / "fair.md").read_text()


def test_the_differences_in_the_readme_are_those_of_the_records():
    """Every mean with its interval is one that ``benchmarks/claims.py`` computes, or of the fair comparison.

    But for those of the sweep.
    """
    claims = runpy.run_path(str(RESULTS.parent / "benchmarks" / "claims.py"))
    computed = {
        claims["shown"](claims["difference"](RESULTS, claim, key)).strip("+-≈ ")
        for claim in claims["CLAIMS"]
        for key in claim.keys
    }
    for name in ("fair.md", "eta.md"):
        computed |= set(_INTERVAL.findall((RESULTS / name).read_text()))
    text = (RESULTS / "README.md").read_text().partition("Accuracy by eta and lambda")[0]
    said = [" ".join(each.split()) for each in _INTERVAL.findall(text)]
    assert len(said) > 20
    assert set(said) <= computed
