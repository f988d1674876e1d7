"""Real processes on this machine: a SuperLink, SuperNodes and runs, with TLS and node authentication."""

import json
import os
import signal
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
ALGORITHMS = ("fedavg", "pfedme", "mg-meta", "fedamp", "fedem")
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


def summary(folder, name):
    return json.loads((folder / f"run-{name}" / "summary.json").read_text())


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


def test_a_federation_gives_the_simulations_models_and_admits_nobody_else(data, tmp_path):
    _, path = data
    keys = tmp_path / "keys"
    authority, other = certificates.make(keys), certificates.make(tmp_path / "other-keys")
    with launch.machine(tmp_path, authority) as machine:
        machine.superlink(authenticated=True)
        for i in range(CLIENTS):
            machine.register(certificates.node_key(keys / f"clinic-{i}"))
            machine.supernode(f"clinic-{i}", config(path, tmp_path, i), keys / f"clinic-{i}")
        certificates.node_key(keys / "stranger")
        stranger = {"dataset": str(path), "partition-id": 1, "name": "stranger", "home": str(tmp_path / "stranger")}
        node = ["flower-supernode", "--superlink", machine.address, "--node-config", 'name="stranger"']
        key = ["--auth-supernode-private-key", str(keys / "clinic-0")]
        ports = [["--port", str(launch.free_port())] for _ in range(2)]
        refused = [
            machine.supernode("unknown-key", stranger, keys / "stranger"),
            machine.supernode("no-key", stranger),
            machine.start("no-tls", [*node, *ports[0], "--insecure"]),
            machine.start("other-authority", [*node, *ports[1], *key, "--root-certificates", str(other.ca)]),
        ]
        for name in ALGORITHMS:
            machine.flwr("run", str(app(tmp_path, name, algorithm=name)), launch.CONNECTION)
        simulated = tmp_path / "simulated"
        command = [sys.executable, "-m", "pfedbred", "compare", "--dataset", str(path), "--out", str(simulated)]
        command += ["--algorithms", ",".join(ALGORITHMS), "--rounds", str(ROUNDS), "--batch-size", "4"]
        command += ["--aggregated", "3", "--eval-every", str(ROUNDS), "--keep-models"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
        subprocess.run(command, check=True, env=environment, capture_output=True)
        done = until(lambda: all(finished(tmp_path, name) for name in ALGORITHMS), PATIENCE)
        assert done, logs(tmp_path)
        connected = machine.flwr("supernode", "list", launch.CONNECTION)
        assert connected.count("online") == CLIENTS
    for each in refused:
        assert "Receiving" not in each.log.read_text(errors="replace"), each.name
    assert not (tmp_path / "stranger").exists()
    for name in ALGORITHMS:
        numbers = summary(tmp_path, name)["federation"]
        assert numbers["clients"] == [f"clinic-{i}" for i in range(CLIENTS)]
        expected = exports.load_model(exports.export(simulated / name, out=tmp_path / f"{name}-global.safetensors"))
        assert_close(exports.load_model(tmp_path / f"run-{name}" / "global.safetensors").weights, expected.weights)
        for i in range(CLIENTS):
            expected = exports.load_model(
                exports.export(simulated / name, client=i, out=tmp_path / f"{name}-{i}.safetensors")
            )
            own = exports.load_model(tmp_path / f"home-{i}" / numbers["run"] / "personal.safetensors")
            assert_close(own.weights, expected.weights)
    assert not alive(str(tmp_path))  # everything that was started has ended


def _round_lines(folder, name):
    path = folder / f"run-{name}" / "metrics.jsonl"
    return [json.loads(line)["round"] for line in path.read_text().splitlines()] if path.exists() else []


def test_killed_nodes_and_killed_servers_come_back(data, tmp_path):
    """A node is killed in the middle of a round, and comes back; then the server is, and comes back."""
    made, path = data
    options = {"algorithm": "mg-meta", "eval-every": 1, "deadline": 25.0, "min-clients": 3, "aggregated": 4}
    with launch.machine(tmp_path) as machine:
        superlink = machine.superlink()
        nodes = [machine.supernode(f"clinic-{i}", config(path, tmp_path, i)) for i in range(CLIENTS)]
        run = machine.run(app(tmp_path, "kills", **options))
        assert until(lambda: len(_round_lines(tmp_path, "kills")) >= 1, PATIENCE), logs(
            tmp_path
        )  # round 2 is done, too
        nodes[3].stop(kill=True)
        assert until(lambda: "no answer within 25 s from clinic-3" in run.log.read_text(errors="replace"), PATIENCE)
        before = kept(tmp_path, 3, made, "mg-meta")
        machine.supernode("clinic-3", config(path, tmp_path, 3))
        assert until(lambda: kept(tmp_path, 3, made, "mg-meta").round > before.round, PATIENCE), logs(tmp_path)
        after = kept(tmp_path, 3, made, "mg-meta")
        assert_close(after.before.state, before.after.state, 0)  # it went on with its own theta
        superlink.stop(kill=True)
        rounds = _round_lines(tmp_path, "kills")
        assert not finished(tmp_path, "kills")
        machine.superlink()
        again = machine.start(
            "run-again", ["flwr", "run", str(tmp_path / "app-kills"), launch.CONNECTION, "--stream"], home="flwr"
        )
        assert until(lambda: finished(tmp_path, "kills"), PATIENCE), logs(tmp_path)
        assert until(lambda: "going on after round" in again.log.read_text(errors="replace"), 30)
    assert rounds == list(range(1, len(rounds) + 1))
    assert _round_lines(tmp_path, "kills") == list(range(1, ROUNDS + 1))  # none lost, none doubled
    assert personal(tmp_path, 3).about["round"] == ROUNDS


def test_a_federation_that_is_too_small_waits_and_says_so(data, tmp_path):
    _, path = data
    with launch.machine(tmp_path) as machine:
        machine.superlink()
        machine.supernode("clinic-0", config(path, tmp_path, 0))
        run = machine.run(
            app(tmp_path, "small", algorithm="fedavg", **{"min-clients": 2, "clients": 2, "aggregated": 2})
        )
        waits = "waiting for clients: 1 of at least 2 are here"
        assert until(lambda: waits in run.log.read_text(errors="replace"), PATIENCE), logs(tmp_path)
        time.sleep(3)
        assert not _round_lines(tmp_path, "small")
        machine.supernode("clinic-1", config(path, tmp_path, 1))
        assert until(lambda: finished(tmp_path, "small"), PATIENCE), logs(tmp_path)
        os.kill(run.process.pid, signal.SIGTERM)
