"""What is published: version, citation, changelog, badges, extras, and what an import brings with it."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import pfedbred

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLASSIFIERS = PROJECT["classifiers"]


def test_version_and_date_are_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    releases = re.findall(r"^## \[(\d\S*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == (pfedbred.__version__, citation["date-released"].isoformat())
    assert citation["version"] == pfedbred.__version__


def test_the_badges_say_what_the_metadata_says():
    badges = dict(re.findall(r"^\[!\[([^\]:]*): ([^\]]*)\]", (ROOT / "README.md").read_text(), re.MULTILINE))
    pythons = [each.rpartition(" ")[2] for each in CLASSIFIERS if re.search(r":: 3\.\d+$", each)]
    assert badges.pop("Python") == ", ".join(pythons)
    assert badges.pop("Licence") == PROJECT["license"]
    assert badges.pop("Paper").removeprefix("arXiv ") in PROJECT["urls"]["Paper"]
    assert not badges


def test_the_extra_all_is_every_extra_for_users():
    extras = set(PROJECT["optional-dependencies"])
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert set(re.search(r"\[(.*)\]", everything)[1].split(",")) == extras - {"all", "cuda", "dev", "docs"}


HEAVY = ["sklearn", "matplotlib", "scipy.stats", "pandas", "pyarrow", "datasets", "flwr", "plotly", "torch", "typer"]
RUN = """
import json, sys
import numpy as np
import pfedbred
x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 2
data = pfedbred.from_arrays(x, y, np.arange(60) % 3)
pfedbred.run(federation=data, model="mclr", algorithm="fedavg", rounds=2)
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.full
def test_a_run_on_arrays_imports_nothing_that_it_does_not_use():
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True)
    assert not set(json.loads(done.stdout.splitlines()[-1])) & set(HEAVY)


@pytest.mark.full
def test_the_command_of_the_walk_for_a_new_method_runs_all_its_cases():
    """Although ``make test`` leaves all cases but the first to ``make test-all``."""
    command = re.search(
        r"`pytest (-m '' tests/algorithms/test_algorithms.py -k NAME)`", (ROOT / "CONTRIBUTING.md").read_text()
    )
    assert command
    arguments = [*shlex.split(command[1].replace("NAME", "ditto")), "--collect-only", "-n", "0"]
    done = subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, capture_output=True, text=True)
    cases = [line for line in done.stdout.splitlines() if "ditto" in line]
    assert len(cases) > 10, done.stdout
