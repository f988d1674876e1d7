"""Every example in the documentation runs."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import typer

import pfedbred
from pfedbred import cli, means, models, priors

ROOT = Path(__file__).parent.parent
SOURCE = Path(pfedbred.__file__).parent
WITH_EXAMPLES = sorted(file.relative_to(SOURCE.parent) for file in SOURCE.rglob("*.py") if ">>>" in file.read_text())
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("file", WITH_EXAMPLES, ids=str)
def test_docstring_examples(file):
    result = doctest.testmod(importlib.import_module(".".join(file.with_suffix("").parts).removesuffix(".__init__")))
    assert result.attempted > 0
    assert result.failed == 0


def test_every_module_can_be_imported():
    for _, name, _ in pkgutil.walk_packages(pfedbred.__path__, "pfedbred."):
        if not name.endswith("__main__"):
            importlib.import_module(name)


@pytest.fixture
def registries():
    """Pages add entries of their own to these tables; take them out again."""
    tables = (pfedbred.ALGORITHMS, pfedbred.DATASETS, priors.PRIORS, means.MEANS, models.MODELS)
    kept = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, kept, strict=True):
        table.clear()
        table.update(entries)


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=lambda page: page.name)
def test_python_blocks(page, tmp_path, monkeypatch, registries):
    """The blocks of a page run one after another, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    space: dict = {}
    for block in python_blocks(page):
        exec(compile(block, page.name, "exec"), space)


def test_pages_name_only_options_that_exist():
    """Every --option in the README's commands is one of the command line's."""
    known = set()
    commands = list(typer.main.get_command(cli.app).commands.values())
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        for parameter in command.params:
            known.update(parameter.opts)
    for page in PAGES:
        typed = [line for line in page.read_text().splitlines() if line.strip().startswith("pfedbred ")]
        used = {option for line in typed for option in re.findall(r"(?<!\S)(--[a-z-]+)", line)}
        assert used <= known | {"--version", "--help"}


def test_help_pages_describe_everything():
    """Typer and click lose arguments' words, or put backslashes into them, in combinations that pip allows."""
    commands = list(typer.main.get_command(cli.app).commands.items())
    for name, command in commands:
        commands += getattr(command, "commands", {}).items()
        page = command.get_help(typer.Context(command, info_name=name))
        assert "\\" not in page
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"
            assert parameter.help.split()[0] in page


def test_every_promise_has_its_test():
    """The tests that docs/reliability.md and docs/deploy.md name exist."""
    tests = {path.name: path.read_text() for path in (ROOT / "tests").glob("*.py")}
    pages = [(ROOT / "docs" / name).read_text() for name in ("reliability.md", "deploy.md")]
    named = {name for page in pages for name in re.findall(r"test_\w+(?:\.py)?", page)}
    assert len(named) > 50
    for name in named:
        assert name in tests if name.endswith(".py") else any(f"def {name}(" in text for text in tests.values()), name
    for text in tests.values():
        for name in re.findall(r"@pytest.mark.slow\ndef (test_\w+)", text):
            assert not re.search(rf"{name}`(?! \(slow\))", pages[0]), f"make test does not run {name}"


def test_the_skeleton_of_a_method_runs_as_it_is(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    skeleton = importlib.import_module("skeleton_method").skeleton
    result = pfedbred.run(algorithm=skeleton, clients=10, rounds=2, settings={"R": 2}, diagnostics=True)
    assert result.points[-1].diagnostics["distance_to_global"] > 0
    assert result.experiment.plain()["algorithm"] == "skeleton_method:skeleton"
