"""What a round costs on Flower beyond the clients' own work: pfedbred and plain Flower FedAvg with the same model.

    python benchmarks/flower_rounds.py            # ten nodes on this machine, about five minutes

Both run FedAvg with multinomial logistic regression on the digits over ten SuperNodes, without TLS, one after another;
all clients train and evaluate in every round. A client's own work is what it does with a message once its process has
started: reading its data, computing, writing its state.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import pfedbred
from pfedbred.data import prepared
from pfedbred.flower import processes


def until(condition: Callable[[], bool], seconds: float = 900.0) -> None:
    """Waits until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the run has not finished in {seconds:g} s")
        time.sleep(0.2)


def plain(folder: Path, nodes: int, rounds: int, evaluate: bool) -> dict[str, float]:
    """Flower's own strategy."""
    app, out = Path(__file__).parent / "plain_flower", folder / f"plain-{evaluate}.json"
    with processes.machine(folder / f"plain-{evaluate}") as machine:
        machine.superlink()
        for i in range(nodes):
            machine.supernode(f"node-{i}", {"data": str(folder / f"{i}.npz")})
        config = f'nodes={nodes} rounds={rounds} evaluate={str(evaluate).lower()} out="{out}"'
        machine.flwr("run", str(app), processes.CONNECTION, "--run-config", config)
        until(out.exists)
    return json.loads(out.read_text())


def ours(folder: Path, nodes: int, rounds: int, algorithm: str) -> dict[str, float]:
    """The same on pfedbred."""
    out = folder / algorithm
    with processes.machine(folder / f"machine-{algorithm}") as machine:
        machine.superlink()
        for i in range(nodes):
            home = str(folder / f"home-{i}")
            machine.supernode(f"node-{i}", {"dataset": str(folder / f"{i}.fed"), "name": f"node-{i}", "home": home})
        everyone = dict.fromkeys(("clients", "min-clients", "aggregated"), nodes)
        config = {"algorithm": algorithm, "rounds": rounds, "out": str(out), **everyone}
        processes.write_app(folder / "app", config)
        machine.flwr("run", str(folder / "app"), processes.CONNECTION)
        until((out / "summary.json").exists)
    summary = json.loads((out / "summary.json").read_text())
    whole = summary["seconds"]["total"] / rounds  # with the evaluation after the last round, an exchange of its own
    return {"round": whole, "beyond": whole - summary["federation"]["client_seconds"]}


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    nodes, rounds = options.nodes, options.rounds
    federation = pfedbred.load("digits", clients=nodes)
    with tempfile.TemporaryDirectory(prefix="pfedbred-") as made:
        folder = Path(made)
        for i in range(nodes):
            own = federation.take(np.asarray([i]))
            prepared.save(own, folder / f"{i}.fed")
            (x, y), (test_x, test_y) = own.train.client(0), own.test.client(0)
            np.savez(folder / f"{i}.npz", x=x, y=y, test_x=test_x, test_y=test_y)
        first = plain(folder, nodes, rounds, evaluate=True)
        rows = {
            "Flower FedAvg, trains and evaluates": first,
            "Flower FedAvg, trains only": plain(folder, nodes, rounds, evaluate=False),
            "pfedbred fedavg, trains and evaluates": ours(folder, nodes, rounds, "fedavg"),
            "pfedbred mg-meta, trains and evaluates": ours(folder, nodes, rounds, "mg-meta"),
        }
    print(f"{nodes} nodes on one machine, seconds of a round\n{'':<40}{'in all':>8}{'beyond':>8}{'ratio':>7}")
    for name, row in rows.items():
        print(f"{name:<40}{row['round']:>8.1f}{row['beyond']:>8.1f}{row['beyond'] / first['beyond']:>7.2f}")


if __name__ == "__main__":
    main()
