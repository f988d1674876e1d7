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

from support.flower_grid import assert_close, kept, personal

from pfedbred.data import prepared
from pfedbred.flower import certificates, processes
from pfedbred.runs import saved_models, trained_model

CLIENTS = 4
ROUNDS = 5
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
    prepared.save(made, path)
    return made, path


def until(condition, seconds):
    """Waits until the condition holds. It reads logs, so it is not checked all the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.2)
    return False


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
    processes.write_app(folder / f"app-{name}", {**everyone, **common, **options})
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


WHOLE = ("fedavg", "pfedme", "mg-meta", "fedamp", "fedem")


@pytest.mark.parametrize(
    ("algorithms", "clients", "rounds"),
    [
        pytest.param(("mg-meta",), 2, 2, marks=pytest.mark.full),
        pytest.param(WHOLE, 4, 5, marks=pytest.mark.slow),
    ],
    ids=["two clients", "four clients"],
)
def test_a_federation_gives_the_simulations_models_and_admits_nobody_else(algorithms, clients, rounds, data, tmp_path):
    """It begins with one client too few, one without data and four who must not come in, and waits for the last."""
    _, path = data
    patience = PATIENCE * len(algorithms)  # their runs go on side by side
    keys = tmp_path / "keys"
    authority, other = certificates.make(keys), certificates.make(tmp_path / "other-keys")
    with processes.machine(tmp_path, authority) as machine:
        machine.superlink(authenticated=True, lasting=False)
        for i in range(clients):
            machine.register(certificates.node_key(keys / f"clinic-{i}"))
        for i in range(clients - 1):
            machine.supernode(f"clinic-{i}", config(path, tmp_path, i), keys / f"clinic-{i}")
        certificates.node_key(keys / "stranger")
        stranger = {
            "dataset": str(path),
            "partition-id": clients - 1,
            "name": "stranger",
            "home": str(tmp_path / "stranger"),
        }
        node = ["flower-supernode", "--superlink", machine.address, "--node-config", 'name="stranger"']
        key = ["--auth-supernode-private-key", str(keys / f"clinic-{clients - 1}")]
        ports = [["--port", str(processes.free_port())] for _ in range(2)]
        refused = [
            machine.supernode("unknown-key", stranger, keys / "stranger"),
            machine.supernode("no-key", stranger),
            machine.start("no-tls", [*node, *ports[0], "--insecure"]),
            machine.start("other-authority", [*node, *ports[1], *key, "--root-certificates", str(other.ca)]),
        ]
        (tmp_path / "empty.csv").write_text("a,b,label\n")
        machine.register(certificates.node_key(keys / "empty"))
        nothing = {"dataset": str(tmp_path / "empty.csv"), "name": "empty", "home": str(tmp_path / "home-empty")}
        machine.supernode("empty", nothing, keys / "empty")
        everyone = {"clients": clients, "min-clients": clients, "aggregated": clients - 1}
        options = {"rounds": rounds, "eval-every": rounds, "deadline": patience, **everyone}
        runs = [machine.run(app(tmp_path, name, algorithm=name, **options), f"run-of-{name}") for name in algorithms]
        simulated = simulation(path, algorithms, clients, rounds, tmp_path)
        waits = f"waiting for clients: {clients - 1} of at least {clients} are connected"
        assert until(lambda: all(waits in said(run) for run in runs), patience), logs(tmp_path)
        assert machine.flwr("supernode", "list", processes.CONNECTION).count("online") == clients  # with the empty one
        assert until(lambda: all("empty was refused: it has no data" in said(run) for run in runs), patience)
        for each in refused:
            each.stop()
            assert "Receiving" not in said(each), each.name
        last = f"clinic-{clients - 1}"
        machine.supernode(last, config(path, tmp_path, clients - 1), keys / last)
        done = until(lambda: all(finished(tmp_path, name) for name in algorithms), patience)
        assert done, logs(tmp_path)
    assert not (tmp_path / "stranger").exists()
    for name in algorithms:
        numbers = json.loads((tmp_path / f"run-{name}" / "summary.json").read_text())["federation"]
        assert numbers["clients"] == [f"clinic-{i}" for i in range(clients)]
        expected = trained_model.load_model(saved_models.export(simulated / name))
        assert_close(trained_model.load_model(tmp_path / f"run-{name}" / "global.safetensors").params, expected.params)
        for i in range(clients):
            expected = trained_model.load_model(saved_models.export(simulated / name, client=i))
            own = trained_model.load_model(tmp_path / f"home-{i}" / numbers["run"] / "personal.safetensors")
            assert_close(own.params, expected.params)
    assert not alive(str(tmp_path))  # everything that was started has ended


def simulation(path, algorithms, clients, rounds, folder):
    """The same in a process of its own, in single precision."""
    own = folder / "own.fed"
    prepared.save(prepared.load(path).take(np.arange(clients)), own)
    command = [sys.executable, "-m", "pfedbred", "compare", "--dataset", str(own), "--out", str(folder / "simulated")]
    command += ["--algorithms", ",".join(algorithms), "--rounds", str(rounds), "--batch-size", "4"]
    command += ["--aggregated", str(clients - 1), "--eval-every", str(rounds), "--keep-models"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    return folder / "simulated"


def said(started):
    return started.log.read_text(errors="replace")


_EVIL = '''
"""Found by the node's own Python before anything else: a client that spoils its uploads, another way in each round."""
import importlib.abc, importlib.machinery, sys
import numpy as np

class Spoiler(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "pfedbred.flower.client":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def spoiled(module):
            run(module)
            module.Participant.train = spoiling(module.Participant.train)
        spec.loader.exec_module = spoiled
        return spec

def spoiling(train):
    from flwr.app import Array
    import json
    ways = [
        lambda record, name, array: record.__setitem__(name, Array(array[:-1])),
        lambda record, name, array: record.__setitem__(name, Array(array.astype(np.float64))),
        lambda record, name, array: record.__setitem__("more", Array(array)),
        lambda record, name, array: record.__setitem__(name, Array(np.zeros(10**6, np.float32))),
        lambda record, name, array: record.__setitem__(name, Array(np.full_like(array, np.nan))),
    ]
    def spoilt(self, message):
        reply = train(self, message)
        record = reply["upload"]
        name = next(iter(record))
        number = json.loads(message["facts"]["json"])["round"]
        ways[number - 1](record, name, record[name].numpy())
        return reply
    return spoilt

sys.meta_path.insert(0, Spoiler())
'''


@pytest.mark.slow
def test_bad_uploads_of_a_real_client_are_rejected_and_logged(data, tmp_path, monkeypatch):
    _, path = data
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "sitecustomize.py").write_text(_EVIL)
    with processes.machine(tmp_path) as machine:
        machine.superlink(lasting=False)
        for i in (0, 1):
            machine.supernode(f"clinic-{i}", config(path, tmp_path, i))
        with monkeypatch.context() as changed:
            changed.setenv("PYTHONPATH", f"{tmp_path / 'evil'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
            machine.supernode("clinic-2", config(path, tmp_path, 2))
        everyone = {"clients": 3, "min-clients": 3, "aggregated": 3}
        run = machine.run(app(tmp_path, "evil", algorithm="fedavg", **everyone))
        assert until(lambda: finished(tmp_path, "evil"), PATIENCE), logs(tmp_path)
        text = said(run)
    for number, why in enumerate(("of shape", "float64", "another tree", "too large", "not finite"), 1):
        (line,) = [each for each in text.splitlines() if f"round {number}: the update of clinic-2 is rejected" in each]
        assert why in line
    summary = json.loads((tmp_path / "run-evil" / "summary.json").read_text())
    assert summary["rejected"] == [{"clinic-2": ROUNDS}]
    assert summary["skipped_rounds"] == [0]


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
    with processes.machine(tmp_path) as machine:
        superlink = machine.superlink()
        machine.supernode("clinic-0", config(path, tmp_path, 0))
        run = machine.run(app(tmp_path, name, **options))
        assert until(lambda: "waiting for clients: 1 of at least 2 are connected" in said(run), PATIENCE), logs(
            tmp_path
        )
        time.sleep(2)
        assert not _round_lines(tmp_path, name)
        nodes = [machine.supernode(f"clinic-{i}", config(path, tmp_path, i)) for i in (1, 2)]
        assert until(lambda: (tmp_path / "home-2").exists() and _trained(tmp_path, 2), PATIENCE), logs(tmp_path)
        nodes[1].stop(kill=True)
        assert until(lambda: "no reply within 20 s from clinic-2" in said(run), PATIENCE), logs(tmp_path)
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
        assert until(lambda: "resuming after round" in said(again), 30)
    assert _round_lines(tmp_path, name) == list(range(1, rounds + 1))  # none lost, none doubled
    assert personal(tmp_path, 2).about["round"] == rounds


def _trained(tmp_path, client):
    return bool(list((tmp_path / f"home-{client}").glob("*/record.safetensors")))
