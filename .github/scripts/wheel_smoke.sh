#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh environment and runs the README's first commands away from the source tree.
# Use: .github/scripts/wheel_smoke.sh, or PYTHON=python3.12 .github/scripts/wheel_smoke.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
source=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH

"${PYTHON:-python3}" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work/dist" .
"${PYTHON:-python3}" -m venv "$work/venv"
bin=$work/venv/bin
[ -d "$bin" ] || bin=$work/venv/Scripts  # Windows
"$bin/python" -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt "$work"/dist/*.whl

cp README.md "$work"
cd "$work"
"$bin/python" - "$source" <<'CHECK'
import pathlib
import sys

import pfedbred

home = pathlib.Path(pfedbred.__file__)
assert pathlib.Path(sys.argv[1]) not in home.parents, f"{home} is the source tree, not the wheel"
assert (home.parent / "py.typed").exists(), "the wheel has no py.typed"
CHECK
"$bin/pfedbred" --version
"$bin/pfedbred" run --dataset digits --model mclr --algorithm mg-meta --rounds 3 --out run
test -s run/summary.json
"$bin/python" - <<'README'
import pathlib
import re

first = re.search(r"```python\n(.*?)```", pathlib.Path("README.md").read_text(encoding="utf-8"), re.DOTALL)
exec(first[1])
README
