"""Real processes on this machine: a SuperLink, SuperNodes and runs, with TLS and node authentication."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from flower_grid import assert_close, kept, personal
from processes import until

from pfedbred import exports
from pfedbred.data import store
from pfedbred.flower import certificates, launch

CLIENTS, ROUNDS = 4, 5
PATIENCE = 400.0  # seconds; two cores may have much else to do


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Clients of different sizes, in the precision of the processes; and the file that holds them."""
    import dataclasses

    from conftest import small_federation

    made = small_federation((9, 14, 6, 20))
    parts = {
        part: getattr(made, part)._replace(x=getattr(made, part).x.astype(np.float32)) for part in ("train", "test")
    }
    made = dataclasses.replace(made, **parts)
    path = tmp_path_factory.mktemp("data") / "small.fed"
    store.save(made, path)
    return made, path


def config(path, homes, i):
    return {"dataset": str(path), "partition-id": i, "name": f"clinic-{i}", "home": str(homes / f"home-{i}")}


def app(folder, name, **options):
    """A Flower app that runs one algorithm; its run folder is beside it."""
    everyone = {"clients": CLIENTS, "min-clients": CLIENTS, "aggregated": 3, "participation": "all"}
    common = {
        "rounds": ROUNDS,
        "batch-size": 4,
        "eval-every": ROUNDS,
        "deadline": PATIENCE,
        "out": str(folder / f"run-{name}"),
    }
    launch.write_app(folder / f"app-{name}", {**everyone, **common, **options})
    return folder / f"app-{name}"


def finished(folder, name):
    return (folder / f"run-{name}" / "summary.json").exists()


def logs(folder):
    return "\n".join(path.read_text(errors="replace") for path in sorted((folder / "logs").glob("*.log")))


def alive(text):
    """The processes whose command line holds this text."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                found += [int(each.name)] if text.encode() in (each / "cmdline").read_bytes() else []
            except OSError:
                continue  # it has just ended
    return found


@pytest.mark.parametrize(
    "algorithms",
    [("mg-meta",), pytest.param(("fedavg", "pfedme", "fedamp", "fedem"), marks=pytest.mark.slow)],
    ids=",".join,
)
def test_a_federation_gives_the_simulations_models_and_admits_nobody_else(algorithms, data, tmp_path):
    """It begins with three clients and four who must not come in, and says that it waits for the fourth."""
    _, path = data
    keys = tmp_path / "keys"
    authority, other = certificates.make(keys), certificates.make(tmp_path / "other-keys")
    with launch.machine(tmp_path, authority) as machine:
        machine.superlink(authenticated=True, lasting=False)
        for i in range(CLIENTS):
            machine.register(certificates.node_key(keys / f"clinic-{i}"))
        for i in range(CLIENTS - 1):
            machine.supernode(f"clinic-{i}", config(path, tmp_path, i), keys / f"clinic-{i}")
        certificates.node_key(keys / "stranger")
        stranger = {"dataset": str(path), "partition-id": 3, "name": "stranger", "home": str(tmp_path / "stranger")}
        node = ["flower-supernode", "--superlink", machine.address, "--node-config", 'name="stranger"']
        key = ["--auth-supernode-private-key", str(keys / "clinic-3")]
        ports = [["--port", str(launch.free_port())] for _ in range(2)]
        refused = [
            machine.supernode("unknown-key", stranger, keys / "stranger"),
            machine.supernode("no-key", stranger),
            machine.start("no-tls", [*node, *ports[0], "--insecure"]),
            machine.start("other-authority", [*node, *ports[1], *key, "--root-certificates", str(other.ca)]),
        ]
        runs = [machine.run(app(tmp_path, name, algorithm=name), f"run-of-{name}") for name in algorithms]
        simulated = simulation(path, algorithms, tmp_path)
        waits = "waiting for clients: 3 of at least 4 are here"
        assert until(lambda: all(waits in said(run) for run in runs), PATIENCE), logs(tmp_path)
        assert machine.flwr("supernode", "list", launch.CONNECTION).count("online") == CLIENTS - 1
        for each in refused:
            each.stop()
            assert "Receiving" not in said(each), each.name
        machine.supernode("clinic-3", config(path, tmp_path, 3), keys / "clinic-3")
        done = until(lambda: all(finished(tmp_path, name) for name in algorithms), PATIENCE)
        assert done, logs(tmp_path)
    assert not (tmp_path / "stranger").exists()
    for name in algorithms:
        numbers = json.loads((tmp_path / f"run-{name}" / "summary.json").read_text())["federation"]
        assert numbers["clients"] == [f"clinic-{i}" for i in range(CLIENTS)]
        expected = exports.load_model(exports.export(simulated / name))
        assert_close(exports.load_model(tmp_path / f"run-{name}" / "global.safetensors").weights, expected.weights)
        for i in range(CLIENTS):
            expected = exports.load_model(exports.export(simulated / name, client=i))
            own = exports.load_model(tmp_path / f"home-{i}" / numbers["run"] / "personal.safetensors")
            assert_close(own.weights, expected.weights)
    assert not alive(str(tmp_path))  # everything that was started has ended


def simulation(path, algorithms, folder):
    """The same in a process of its own, in single precision."""
    command = [sys.executable, "-m", "pfedbred", "compare", "--dataset", str(path), "--out", str(folder / "simulated")]
    command += ["--algorithms", ",".join(algorithms), "--rounds", str(ROUNDS), "--batch-size", "4"]
    command += ["--aggregated", "3", "--eval-every", str(ROUNDS), "--keep-models"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    return folder / "simulated"


def said(started):
    return started.log.read_text(errors="replace")


def _round_lines(folder, name):
    path = folder / f"run-{name}" / "metrics.jsonl"
    return [json.loads(line)["round"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_killed_nodes_and_killed_servers_come_back(data, tmp_path):
    """It waits for the third node; that is killed in the middle of a round, and comes back; then the server is."""
    made, path = data
    options = {"algorithm": "mg-meta", "eval-every": 1, "deadline": 20.0, "rounds": 4}
    options |= {"clients": 3, "min-clients": 2, "aggregated": 3}
    name, rounds = "kills", 4
    with launch.machine(tmp_path) as machine:
        superlink = machine.superlink()
        machine.supernode("clinic-0", config(path, tmp_path, 0))
        run = machine.run(app(tmp_path, name, **options))
        assert until(lambda: "waiting for clients: 1 of at least 2 are here" in said(run), PATIENCE), logs(tmp_path)
        time.sleep(2)
        assert not _round_lines(tmp_path, name)
        nodes = [machine.supernode(f"clinic-{i}", config(path, tmp_path, i)) for i in (1, 2)]
        assert until(lambda: (tmp_path / "home-2").exists() and _trained(tmp_path, 2), PATIENCE), logs(tmp_path)
        nodes[1].stop(kill=True)
        assert until(lambda: "no answer within 20 s from clinic-2" in said(run), PATIENCE), logs(tmp_path)
        before = kept(tmp_path, 2, made, "mg-meta")
        machine.supernode("clinic-2", config(path, tmp_path, 2))
        assert until(lambda: kept(tmp_path, 2, made, "mg-meta").round > before.round, PATIENCE), logs(tmp_path)
        after = kept(tmp_path, 2, made, "mg-meta")
        assert_close(after.before.state, before.after.state, 0)  # it went on with its own theta
        superlink.stop(kill=True)
        assert not finished(tmp_path, name)
        machine.superlink()
        again = machine.run(tmp_path / f"app-{name}", "run-again")
        assert until(lambda: finished(tmp_path, name), PATIENCE), logs(tmp_path)
        assert until(lambda: "going on after round" in said(again), 30)
    assert _round_lines(tmp_path, name) == list(range(1, rounds + 1))  # none lost, none doubled
    assert personal(tmp_path, 2).about["round"] == rounds


def _trained(tmp_path, client):
    return bool(list((tmp_path / f"home-{client}").glob("*/record.safetensors")))
