"""The tree is the architecture: its root is bare, and CONTRIBUTING's map is the tree."""

import re
from pathlib import Path

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


def test_examples_need_only_the_public_names():
    text = (ROOT / "README.md").read_text()
    imported = re.findall(r"^from pfedbred import (.*)$", text, re.MULTILINE)
    assert {name for names in imported for name in names.split(", ")} <= set(pfedbred.__all__)
    assert "from pfedbred." not in text
    skeleton = (ROOT / "docs" / "skeleton_method.py").read_text()
    inside = re.findall(r"^from pfedbred\.\S+ import (.*)$", skeleton, re.MULTILINE)
    assert {name for names in inside for name in names.split(", ")} <= set(pfedbred.__all__)


def folders(parent):
    return {each.name for each in parent.iterdir() if each.is_dir() and each.name != "__pycache__"}


def test_the_folders_of_tests_are_those_of_the_tree():
    assert folders(ROOT / "tests") - {"support"} == folders(SOURCE)
