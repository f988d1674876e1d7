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
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.task import make_task
from pfedbred.flower import certificates, processes, run_config
from pfedbred.io.folders import ensure_folder
from pfedbred.io.strict import read_json
from pfedbred.runs import layout

_LONGEST = 1_800.0  # seconds


def demo(
    folder: Path, *, algorithm: str, model: str, dataset: str, nodes: int, rounds: int, show: Callable[[str], None]
) -> dict[str, Any]:
    """Runs the algorithm on a dataset split over nodes, each with its own file; returns the run's summary.

    All files are in the folder, and all processes end before this returns.
    """
    processes.check_system()
    run_config.check({"algorithm": algorithm, "model": model, "rounds": rounds})
    federation = data.load(dataset, clients=nodes)
    experiment = Experiment(dataset=federation, algorithm=algorithm, model=model, rounds=rounds).for_data(federation)
    make_task(experiment, federation)  # a model that does not fit the data fails before anything is started
    ensure_folder(folder)
    if not layout.is_free(folder):
        raise SettingError(f"{folder} is not empty; choose another --out")
    keys = folder / "keys"
    authority = certificates.make(keys)
    with processes.machine(folder, authority) as machine:
        machine.superlink(authenticated=True, lasting=False)
        show(f"superlink: {machine.control}, for this machine only")
        show(f"gateway: {machine.address}, for SuperNodes, TLS and node authentication on")
        for i in range(nodes):
            name = f"clinic-{i:0{len(str(nodes - 1))}d}"
            own = ensure_folder(folder / name)
            prepared.save(federation.take(np.asarray([i])), own / "data.fed")
            machine.register(certificates.node_key(keys / name))
            config = {"dataset": str(own / "data.fed"), "name": name, "home": str(own / "home")}
            machine.supernode(name, config, keys / name)
            show(f"supernode: {name}, {federation.train.sizes[i]} training samples")
        everyone = dict.fromkeys(("clients", "min-clients", "aggregated"), nodes)
        asked = {"algorithm": algorithm, "model": model, "rounds": rounds, "out": str(folder / "run")}
        processes.write_app(folder / "app", {**asked, **everyone})
        return follow(machine.run(folder / "app"), folder / "run", show)


def follow(run: processes.Started, out: Path, show: Callable[[str], None]) -> dict[str, Any]:
    """Waits for a run to finish and shows its progress meanwhile; returns its summary."""
    seen, end = 0, time.monotonic() + _LONGEST
    while time.monotonic() < end:
        ended = run.process.poll() is not None
        lines = run.log.read_text(errors="replace").splitlines()
        for line in lines[seen:]:
            if line.startswith("pfedbred: ") or ": round " in line:
                show(line.removeprefix("pfedbred: "))
        seen = len(lines)
        if layout.finished(out):
            return read_json(out / layout.SUMMARY)
        if ended:
            break
        time.sleep(0.3)
    raise SettingError(f"the run did not finish: see {run.log.parent}")
