"""A whole federation on this machine: a SuperLink and SuperNodes as processes, TLS and node authentication on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred import data
from pfedbred.data import prepared
from pfedbred.errors import SettingError
from pfedbred.flower import certificates, processes
from pfedbred.io.strict import read_json
from pfedbred.runs import records

_LONGEST = 1_800.0  # seconds


def demo(
    folder: Path, *, algorithm: str, model: str, dataset: str, nodes: int, rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Runs the algorithm on a dataset split over nodes, each with its own file; returns the run's summary.

    All that it makes is in the folder, and all that it starts ends with it.
    """
    federation = data.load(dataset, clients=nodes)
    keys = folder / "keys"
    authority = certificates.make(keys)
    with processes.machine(folder, authority) as machine:
        say(f"superlink: {machine.address}, TLS and node authentication on")
        machine.superlink(authenticated=True, lasting=False)
        for i in range(nodes):
            name = f"clinic-{i:0{len(str(nodes - 1))}d}"
            own = records.find_folder(folder / name)
            prepared.save(federation.take(np.asarray([i])), own / "data.fed")
            machine.register(certificates.node_key(keys / name))
            config = {"dataset": str(own / "data.fed"), "name": name, "home": str(own / "home")}
            machine.supernode(name, config, keys / name)
            say(f"supernode: {name}, {federation.train.sizes[i]} training samples of its own")
        everyone = dict.fromkeys(("clients", "min-clients", "aggregated"), nodes)
        asked = {"algorithm": algorithm, "model": model, "rounds": rounds, "out": str(folder / "run")}
        processes.write_app(folder / "app", {**asked, **everyone})
        return watched(machine.run(folder / "app"), folder / "run", say)


def watched(run: processes.Started, out: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Waits for the end of a run, and passes on what it says meanwhile; returns its summary."""
    seen, end = 0, time.monotonic() + _LONGEST
    while time.monotonic() < end:
        ended = run.process.poll() is not None
        lines = run.log.read_text(errors="replace").splitlines()
        for line in lines[seen:]:
            if line.startswith("pfedbred: ") or ": round " in line:
                say(line.removeprefix("pfedbred: "))
        seen = len(lines)
        if (out / "summary.json").exists():
            return read_json(out / "summary.json")
        if ended:
            break
        time.sleep(0.3)
    raise SettingError(f"the run did not come to its end: see {run.log.parent}")
