"""Looks up every pinned dependency in PyPI's advisory database with pip-audit: ``make audit``.

Fails if one has a known vulnerability. Where the database cannot be reached it says so and passes. Behind a mirror
pip-audit itself finds none of the packages, and reports that as "no known vulnerabilities".
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PINS = Path(__file__).resolve().parents[2] / "constraints.txt"
UNREACHABLE = ("requests.exceptions", "ConnectionError", "Could not connect", "ServiceError", "not redirecting")


def audited(pins: str, seconds: float) -> list[dict[str, Any]] | None:
    """What pip-audit says about each of these pins; None if the database does not answer."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pins.txt"
        file.write_text(pins)
        options = ("--no-deps", "--disable-pip", "--progress-spinner=off", "--timeout=5", "--format=json")
        command = [sys.executable, "-m", "pip_audit", "-r", str(file), *options]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
    try:
        return json.loads(done.stdout)["dependencies"]
    except ValueError:
        if any(each in done.stderr for each in UNREACHABLE):
            return None
        sys.exit(f"audit: pip-audit failed:\n{done.stderr}")


def main() -> None:
    """One package shows whether there is a database to ask; then all of them."""
    pins = PINS.read_text()
    first = next(line for line in pins.splitlines() if "==" in line)
    probe = audited(first, seconds=15)
    found = audited(pins, seconds=600) if probe and "vulns" in probe[0] else None
    if found is None:
        print("audit: skipped, because the advisory database cannot be reached")
        return
    bad = [(each, vulnerability) for each in found for vulnerability in each.get("vulns", ())]
    for each, vulnerability in bad:
        fixed = ", ".join(vulnerability["fix_versions"]) or "no version"
        print(f"audit: {each['name']} {each['version']} has {vulnerability['id']}, fixed in {fixed}")
    absent = [each["name"] for each in found if "vulns" not in each]
    print(f"audit: {len(found) - len(absent)} packages looked up, {len(bad)} known vulnerabilities")
    if absent:
        print(f"audit: not in the database: {', '.join(absent)}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
