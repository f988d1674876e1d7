"""Help pages: what everybody needs comes first, and every command shows how it is used."""

import pytest
import typer

from pfedbred.cli import main


def commands(command, name=""):
    for key, each in getattr(command, "commands", {}).items():
        yield from commands(each, f"{name} {key}")
    if not hasattr(command, "commands"):
        yield name.strip(), command


@pytest.fixture(scope="module")
def root():
    return typer.main.get_command(main.__globals__["app"])  # of the module that the function main hides


def test_every_command_has_an_example_and_a_line_that_fits(root):
    found = dict(commands(root))
    assert {"run", "compare", "adapt", "data show", "flower demo"} <= set(found)
    for name, command in found.items():
        assert f"\npfedbred {name} " in command.help, name
        assert len(command.get_short_help_str(200)) <= 66, name  # else it is cut in a terminal of 80 columns


def test_the_main_commands_come_first(root):
    assert list(root.commands)[:3] == ["run", "compare", "sweep"]


def test_what_makes_a_sweep_comes_before_what_it_shares(call):
    code, out, _ = call("sweep", "--help")
    assert code == 0
    heads = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert heads[:3] == ["Arguments:", "Points of the sweep:", "Data:"]
    assert out.index("--grid") < out.index("--dataset TEXT")
