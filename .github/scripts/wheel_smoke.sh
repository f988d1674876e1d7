#!/usr/bin/env bash
# Installs a wheel or an sdist into a fresh environment and runs what the README's shell block does, and its first Python
# block, away from the source tree.
# Use: .github/scripts/wheel_smoke.sh [FILE], by default a wheel built here; PYTHON=python3.12 chooses the Python.
set -euo pipefail
file=${1:+$(cd "$(dirname "$1")" && pwd)/$(basename "$1")}
cd "$(dirname "$0")/../.."
source=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH

if [ -z "$file" ]; then
  "${PYTHON:-python3}" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work/dist" .
  file=$(ls "$work"/dist/*.whl)
fi
"${PYTHON:-python3}" -m venv "$work/venv"
bin=$work/venv/bin
[ -d "$bin" ] || bin=$work/venv/Scripts  # Windows
"$bin/python" -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt "${file}[data,report]"

cp README.md "$work"
cd "$work"
"$bin/python" - "$source" <<'CHECK'
import pathlib
import sys

import pfedbred

home = pathlib.Path(pfedbred.__file__)
assert pathlib.Path(sys.argv[1]) not in home.parents, f"{home} is the source tree, not what was installed"
assert (home.parent / "py.typed").exists(), "what was installed has no py.typed"
CHECK
"$bin/pfedbred" --version
"$bin/pfedbred" run --dataset digits --model mclr --algorithm mg-meta --rounds 3 --out run
test -s run/summary.json
# The commands under "From the shell", as they stand; only their numbers of rounds are made small.
"$bin/python" - "$bin" <<'SHELL'
import pathlib
import re
import shutil
import subprocess
import sys

text = pathlib.Path("README.md").read_text(encoding="utf-8")
block = re.search(r"^## From the shell\n\n((?:    .*\n)+)", text, re.MULTILINE)[1]
patients = [f"{'North South East'.split()[i % 3]},{40 + i % 37},{i % 5},{i % 2}" for i in range(90)]
pathlib.Path("patients.csv").write_text("\n".join(["hospital,age,dose,label", *patients]), encoding="utf-8")
shutil.copytree("run", "runs/NAME")
commands = [line.split("#")[0].split() for line in block.splitlines()]
assert len(commands) > 3, "the README has no shell block"
for _, *words in commands:
    if "--rounds" in words:
        words[words.index("--rounds") + 1] = "2"
    elif words[0] in ("run", "compare") and "--dry-run" not in words:
        words += ["--rounds", "2"]
    print("pfedbred", *words, flush=True)
    subprocess.run([sys.argv[1] + "/pfedbred", *words], check=True)
SHELL
"$bin/python" - <<'README'
import pathlib
import re

first = re.search(r"```python\n(.*?)```", pathlib.Path("README.md").read_text(encoding="utf-8"), re.DOTALL)
exec(first[1])
README
