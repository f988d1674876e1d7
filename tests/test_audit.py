"""The audit of dependencies: what pip-audit finds is passed on, and an audit of nothing is not called a good one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).parent.parent / ".github" / "scripts" / "audit.py"
GOOD = {"name": "good", "version": "1.0", "vulns": []}
BAD = {"name": "bad", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}
ABSENT = {"name": "absent", "skip_reason": "Dependency not found on PyPI and could not be audited"}


def audit(folder, program):
    """The exit code and the output, where pip-audit is this program."""
    (folder / "pip_audit.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(AUDIT)], env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        ([GOOD, GOOD], 0, "2 packages looked up, 0 known vulnerabilities"),
        ([GOOD, BAD], 1, "bad 1.0 has CVE-1, fixed in 1.1"),
        ([GOOD, ABSENT], 0, "1 packages looked up, 0 known vulnerabilities\naudit: not in the database: absent"),
        ([ABSENT, ABSENT], 0, "skipped, because the advisory database cannot be reached"),
    ],
)
def test_what_is_found_decides(found, code, words, tmp_path):
    text = json.dumps({"dependencies": found})
    vulnerable = any(each.get("vulns") for each in found)
    got, out, err = audit(tmp_path, f"import sys\nprint({text!r})\nsys.exit({int(vulnerable)})")
    assert got == code, err
    assert words in out


def test_no_network_is_no_failure_and_a_broken_audit_is_one(tmp_path):
    offline = "raise SystemExit('requests.exceptions.ProxyError: HTTPSConnectionPool: Max retries exceeded')"
    assert audit(tmp_path, offline)[:2] == (0, "audit: skipped, because the advisory database cannot be reached\n")
    code, _, err = audit(tmp_path, "raise SystemExit('unknown option')")
    assert code == 1
    assert "pip-audit failed:\nunknown option" in err
