"""The tree is the architecture: its root is bare, and CONTRIBUTING's map is the tree."""

import re
import typing
from pathlib import Path
from types import FunctionType

import pytest

import pfedbred

ROOT = Path(__file__).parent.parent
SOURCE = Path(pfedbred.__file__).parent


def test_the_root_of_the_package_holds_folders_only():
    allowed = {"__init__.py", "__main__.py", "_version.py", "errors.py", "types.py"}
    assert {file.name for file in SOURCE.glob("*.py")} == allowed


def mapped():
    """The modules on the map, as paths."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    lines = re.search(r"<!-- tree -->(.*)<!-- /tree -->", text, re.DOTALL)[1].splitlines()
    found, folders = set(), {}
    for line in lines:
        entry = re.match(r" {4}( *)(\S+?)(/?)(?: {2,}\S.*| \S.*)?$", line)
        if not entry or entry[2] == "src/pfedbred":
            continue
        depth = len(entry[1]) // 2
        path = Path(*(folders[level] for level in range(1, depth)), entry[2])
        if entry[3]:
            folders[depth] = entry[2]
        else:
            found.add(path)
    return found


def test_every_module_is_on_the_map_and_nothing_else_is():
    root = {"__init__.py", "__main__.py", "_version.py"}
    modules = {
        file.relative_to(SOURCE)
        for file in SOURCE.rglob("*.py")
        if file.name != "__init__.py" and str(file.relative_to(SOURCE)) not in root
    }
    assert mapped() == modules


def python_in(page):
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_examples_need_only_the_public_names(page):
    text = python_in(page)
    imported = re.findall(r"^ *from pfedbred import (.*)$", text, re.MULTILINE)
    used = re.findall(r"\bpfedbred\.(\w+)", text)
    assert {*used, *(name for names in imported for name in names.split(", "))} <= set(pfedbred.__all__)
    assert "from pfedbred." not in text


def test_the_skeleton_needs_only_the_public_names():
    skeleton = (ROOT / "docs" / "skeleton_method.py").read_text()
    inside = re.findall(r"^from pfedbred\.\S+ import (.*)$", skeleton, re.MULTILINE)
    assert {name for names in inside for name in names.split(", ")} <= set(pfedbred.__all__)


def named_in(hint):
    """The library's own types that a type names."""
    if isinstance(hint, type) and hint.__module__.startswith("pfedbred."):
        yield hint
    for part in hint if isinstance(hint, list) else typing.get_args(hint):  # arguments of a Callable are a list
        yield from named_in(part)


@pytest.mark.parametrize("protocol", [pfedbred.Backend, pfedbred.DataInfo])
def test_what_the_protocols_speak_of_is_public(protocol):
    functions = [
        getattr(each, "fget", each) for each in vars(protocol).values() if isinstance(each, property | FunctionType)
    ]
    hints = [typing.get_type_hints(protocol), *map(typing.get_type_hints, functions)]
    found = {each for hint in hints for part in hint.values() for each in named_in(part)}
    assert len(found) >= 4
    assert {each.__name__ for each in found} <= set(pfedbred.__all__)


def test_what_methods_sweeps_and_callbacks_speak_of_is_public():
    parts = [pfedbred.Algorithm, pfedbred.Client, pfedbred.Server, pfedbred.Callback]
    methods = [getattr(each, "__wrapped__", each) for part in parts for each in vars(part).values()]
    own = [each for each in methods if isinstance(each, FunctionType) and each.__module__.startswith("pfedbred.")]
    names = {"Run": pfedbred.Run, "Sweep": pfedbred.Sweep, "Sweeping": pfedbred.Sweeping}  # imported for types alone
    hints = [typing.get_type_hints(each, None, names) for each in [*parts, *own, pfedbred.local_steps, pfedbred.sweep]]
    found = {each for hint in hints for part in hint.values() for each in named_in(part)}
    assert {each.__name__ for each in found} - set(pfedbred.__all__) == set()


def folders(parent):
    return {each.parent.relative_to(parent).as_posix() for each in parent.rglob("*.py")} - {"."}


def test_the_folders_of_tests_are_those_of_the_tree():
    """Folders of one kind of thing, such as priors, may be tested by one file of the folder above."""
    tests, source = folders(ROOT / "tests") - {"support"}, folders(SOURCE)
    assert tests <= source
    assert {each for each in source if "/" not in each} <= tests
