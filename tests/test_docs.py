"""Every example in the documentation runs."""

import ast
import doctest
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
from pathlib import Path

import click
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


def test_every_module_can_be_imported_and_has_what_it_lists():
    for _, name, _ in pkgutil.walk_packages(pfedbred.__path__, "pfedbred."):
        if not name.endswith("__main__"):
            module = importlib.import_module(name)
            assert [each for each in getattr(module, "__all__", ()) if not hasattr(module, each)] == [], name


def test_benchmarks_import_what_exists():
    for file in sorted((ROOT / "benchmarks").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pfedbred"):
                names = ", ".join(each.name for each in node.names)
                exec(f"from {node.module} import {names}", {})  # as the benchmark does


@pytest.fixture
def registries():
    """Pages add entries of their own to these tables; take them out again."""
    tables = (pfedbred.ALGORITHMS, pfedbred.DATASETS, priors.PRIORS, means.MEANS, models.MODELS)
    kept = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, kept, strict=True):
        table.clear()
        table.update(entries)


DATA = Path(os.environ.get("PFEDBRED_DATA") or ROOT.parent / "shared" / "data")
NEEDED = {"hospitals.md": "heart"}  # by page: the data that it starts from


def use_data(page, monkeypatch):
    """Tells where the page's data is, or skips the test."""
    needed = NEEDED.get(page.name)
    if needed and not (DATA / needed).is_dir():
        pytest.skip(f"the real {needed} is not here: set PFEDBRED_DATA to a folder that holds it")
    if needed:
        monkeypatch.setenv("PFEDBRED_DATA", str(DATA))


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=lambda page: page.name)
@pytest.mark.full
def test_python_blocks(page, tmp_path, monkeypatch, registries):
    """The blocks of a page run one after another, as a reader would type them."""
    use_data(page, monkeypatch)
    monkeypatch.chdir(tmp_path)
    space: dict = {}
    for block in python_blocks(page):
        exec(compile(block, page.name, "exec"), space)


@pytest.mark.full
def test_blocks_and_commands_of_the_hospitals(tmp_path, monkeypatch, capsys):
    """All of that page in its order, with its promises: what is printed, and what the models answer."""
    page = ROOT / "docs" / "hospitals.md"
    use_data(page, monkeypatch)
    monkeypatch.chdir(tmp_path)
    space, said = {}, {}
    for block, command in re.findall(
        r"```python\n(.*?)```|^    (pfedbred [^\n]*)$", page.read_text(), re.DOTALL | re.M
    ):
        if block:
            exec(compile(block, page.name, "exec"), space)
            continue
        monkeypatch.setattr("sys.argv", shlex.split(command))
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        assert not stopped.value.code, (command, printed.err)
        said[command] = printed.out
    promised = re.search(r"`(13 columns as .*?)`", page.read_text(), re.DOTALL)[1].replace("\n", " ")
    assert any(promised in each for each in said.values())
    assert [each.split() for command, each in said.items() if " predict " in command] == [["no", "yes"]] * 2


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
        assert used <= known | {"--version", "--help", "--install-completion"}


def typed_commands(page):
    """The indented lines of a page that call the command line; a backslash continues a line."""
    lines = page.read_text().replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.startswith("    pfedbred ")]


def test_commands_of_pages_are_understood():
    """By the shell and by the command line, which are not asked to run them."""
    app = typer.main.get_command(cli.app)
    every = [(page.name, command) for page in PAGES for command in typed_commands(page)]
    assert len(every) > 60
    checked = subprocess.run(["bash", "-n"], input="\n".join(each for _, each in every), text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr
    for name, command in every:
        words, found = shlex.split(command, comments=True)[1:], app
        if words[0].startswith("-"):  # such as --install-completion, which acts at once
            continue
        while isinstance(found, click.Group):
            found = found.commands[words.pop(0)]
        with found.make_context(command, words) as context:
            files = [context.params[each.name] for each in found.params if isinstance(each, click.Argument)]
        assert not [each for each in files if "=" in str(each)], f"{name}: {command}"


def test_the_command_with_a_long_tailed_prior_learns(tmp_path, monkeypatch):
    """Its prior is so narrow that gradient steps not implicit in it would diverge."""
    (command,) = (each for each in typed_commands(ROOT / "docs" / "priors.md") if "student-t" in each)
    monkeypatch.setattr("sys.argv", [*shlex.split(command), "--rounds", "3", "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert not stopped.value.code
    assert pfedbred.RunRecord.read(tmp_path / "run").summary["personal"]["final_accuracy"]["mean"] > 0.4


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


NAMED = re.compile(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)?(?:::)?(test_\w+)?`(?:\s\((slow|full)\))?")


def marker_of(nodes):
    """The marker among these expressions, such as ``pytest.mark.slow``, that keeps a test out of ``make test``."""
    found = {word for each in nodes for word in re.findall(r"\w+", ast.unparse(each))}
    return next((name for name in ("slow", "full") if name in found), "")


def markers_in(file):
    """Of every test in a file its marker, by name; under "" that of the whole file."""
    tree = ast.parse(file.read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    whole = marker_of(node.value for node in assigned if "pytestmark" in map(ast.unparse, node.targets))
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    own = {test.name: [each for each in test.decorator_list if not isinstance(each, ast.Call)] for test in tests}
    return {"": whole, **{name: marker_of(decorators) or whole for name, decorators in own.items()}}


def test_every_promise_has_its_test():
    """The tests that the pages name exist, and those that ``make test`` leaves out are marked as such."""
    count = 0
    for page in PAGES:
        file = None  # a test without a file is in the one named before it
        for match in NAMED.finditer(page.read_text()):
            path, test, marker = match.groups()
            if not path and not test:
                continue
            file = ROOT / "tests" / path if path else file
            assert file, f"{page.name}: {test} is in no file"
            assert file.exists(), f"{page.name}: there is no {path}"
            markers = markers_in(file)
            assert (test or "") in markers, f"{page.name}: there is no {test} in {file.name}"
            assert (marker or "") == markers[test or ""], f"{page.name}: {match[0]} is {markers[test or '']!r}"
            count += 1
    assert count > 50


def test_the_skeleton_of_a_method_runs_as_it_is(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    skeleton = importlib.import_module("skeleton_method").skeleton
    result = pfedbred.run(algorithm=skeleton, clients=10, rounds=2, settings={"R": 2}, diagnostics=True)
    assert result.points[-1].diagnostics["distance_to_global"] > 0
    assert result.experiment.plain()["algorithm"] == "skeleton_method:skeleton"
