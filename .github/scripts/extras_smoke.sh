#!/usr/bin/env bash
# Every extra of a wheel can be had at once, with the newest versions and with those of constraints.txt, and pipx runs the
# wheel as it is, without PyTorch.
# Use: .github/scripts/extras_smoke.sh FILE; PYTHON=python3.12 chooses the Python.
set -euo pipefail
wheel=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")/../.."
source=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH

"${PYTHON:-python3}" -m venv "$work/venv"
bin=$work/venv/bin
"$bin/python" -m pip install --quiet --disable-pip-version-check pipx==1.18.4
for pins in /dev/null "$source/constraints.txt"; do
  "$bin/python" -m pip install --quiet --disable-pip-version-check --dry-run --report "$work/report.json" -c "$pins" "${wheel}[all]"
  "$bin/python" - "$work/report.json" "$pins" <<'REPORT'
import json
import sys

names = sorted(each["metadata"]["name"].lower() for each in json.load(open(sys.argv[1]))["install"])
print(f"[all] with {sys.argv[2]}: {len(names)} packages")
assert "torch" not in names, "PyTorch would be installed"
REPORT
done

cd "$work"
export PIPX_HOME=$work/pipx
"$bin/pipx" run --python "$bin/python" --spec "$wheel" pfedbred run --rounds 3 --out run
test -s run/summary.json
if find "$work/pipx" -path '*/site-packages/torch' | grep .; then
  echo "pipx has installed PyTorch" >&2
  exit 1
fi
