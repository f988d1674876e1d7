"""What a client keeps on its disk is its own, and a disk that is full is no fault of its update."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from support.flower_grid import ALL, Loopback, nodes_of, run

from pfedbred.flower.client_home import Home
from pfedbred.runs import checkpoints

needs_modes = pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@needs_modes
def test_a_home_is_for_its_owner_only(tmp_path):
    home = Home(tmp_path / "home")
    home.identity()
    with home.holding("0123abcd", 1.0) as folder:
        assert mode(folder) == 0o700
    assert (mode(home.folder), mode(home.folder / "client.json")) == (0o700, 0o600)


@needs_modes
def test_the_home_of_an_earlier_version_is_closed(tmp_path):
    (tmp_path / "client.json").write_text('{"client": "0123"}')
    (tmp_path / "client.json").chmod(0o644)
    tmp_path.chmod(0o755)
    assert Home(tmp_path).identity() == "0123"
    assert (mode(tmp_path), mode(tmp_path / "client.json")) == (0o700, 0o600)


@pytest.mark.full
def test_no_identity_is_in_the_servers_files(prepared, tmp_path):
    """Who reads a checkpoint cannot introduce himself as a client."""
    out = tmp_path / "run"
    seen = []

    def look(node, message, reply):
        seen.extend(path.read_bytes() for path in checkpoints.files(out))
        return reply

    run(Loopback(nodes_of(prepared[1], 3, tmp_path), look), out, algorithm="fedavg", rounds=2, **ALL)
    assert seen
    seen += [path.read_bytes() for path in out.iterdir() if path.is_file()]
    for i in range(3):
        identity = json.loads((tmp_path / f"home-{i}" / "client.json").read_text())["client"]
        assert not any(identity.encode() in each for each in seen)


@pytest.mark.full
def test_a_clients_full_disk_is_not_a_rejected_update(prepared, tmp_path, capsys, monkeypatch):
    """Its record cannot be written in the second round."""
    grid = Loopback(nodes_of(prepared[1], 3, tmp_path))
    replace = Path.replace

    def full(self, target):
        if "home-1" in str(target) and grid.wire[-1][1].metadata.group_id == "2" and target.name.startswith("record"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    summary = run(grid, tmp_path / "run", algorithm="fedavg", **ALL)
    printed = [line for line in capsys.readouterr().out.splitlines() if "clinic-1" in line or "home-1" in line]
    (folder,) = (path for path in (tmp_path / "home-1").iterdir() if path.is_dir())
    assert printed == [
        f"pfedbred: cannot write {folder / 'record.safetensors'}: No space left on device",  # the client's log
        "pfedbred: round 2: clinic-1 could not take part: it cannot save its state: see its own log",
    ]
    assert summary["rejected"] == [{}]
    assert summary["skipped_rounds"] == [0]
