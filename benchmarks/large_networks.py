"""Rounds of a large network: how long they compile, the second time too, how long they take, and in how much memory.

    python benchmarks/large_networks.py [--model resnet18] [--clients 20,100] [--methods fedavg,mg-meta] [--memory 40]

Each row is the same round in two new processes, with an empty folder of compiled programs and with what the first left
there. Data are random, in CIFAR-10's shapes: 200 samples a client, batch 20, R = 1. ``--memory`` lets JAX have that
many GiB of a GPU, as a smaller one would; ``peak`` is the most that was in use, and ``at a time`` how many clients a
round trains at once: the engine chooses it so that they fit. ``--precision bfloat16`` as in the command line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_GIB = 2**30


def measured(options: argparse.Namespace, clients: int, method: str) -> dict[str, Any]:
    """Seconds to compile, of a round, and the memory, in this process."""
    import jax
    from rounds import Shapes, federation

    import pfedbred
    from pfedbred.experiment.building import build

    experiment = pfedbred.Experiment(
        model=options.model,
        algorithm=method,
        batch_size=20,
        settings={"R": 1},
        batch_norm="group",
        precision=options.precision,
        aggregated=max(1, clients // 5),
    )
    backend: Any = build(experiment, federation(Shapes((32, 32, 3), 10, clients, 200, 20))).backend
    state = jax.block_until_ready(backend.advance(backend.init(range(1)), 1))
    compiling, times = backend.compile_seconds, []
    for _ in range(options.rounds):
        begun = time.perf_counter()
        state = jax.block_until_ready(backend.advance(state, 1))
        times.append(time.perf_counter() - begun)
    used = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return {
        "device": jax.devices()[0].device_kind,
        "compile": compiling,
        "round": min(times),
        "peak": used and used / _GIB,
        "at_a_time": backend.plan.chunk or clients,
    }


def in_new_process(options: argparse.Namespace, clients: int, method: str, programs: str) -> dict[str, Any]:
    """The same in a process of its own, whose compiled programs are in that folder."""
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": programs,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",  # the command line's own
    }
    if options.memory:
        query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        total = float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]) / 1024
        environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{options.memory / total:.4f}"
    given = ["--model", options.model, "--rounds", str(options.rounds), "--precision", options.precision]
    command = [sys.executable, __file__, "--one", f"{clients},{method}", *given]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Prints a row for each number of clients and each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--clients", default="20,100")
    parser.add_argument("--methods", default="mg-meta")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds")
    parser.add_argument("--memory", type=float, help="GiB of the GPU to use at most")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here as well")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        clients, _, method = options.one.partition(",")
        print(json.dumps(measured(options, int(clients), method)))
        return
    rows = []
    print(f"{'clients':>7} {'method':<10} {'compile':>9} {'again':>9} {'a round':>11} {'at a time':>9} {'peak':>9}")
    for clients in map(int, options.clients.split(",")):
        for method in options.methods.split(","):
            with tempfile.TemporaryDirectory() as programs:
                first, second = (in_new_process(options, clients, method, programs) for _ in range(2))
            rows.append({"clients": clients, "method": method, **first, "compile_again": second["compile"]})
            peak = f"{first['peak']:.1f} GiB" if first["peak"] else "-"
            print(
                f"{clients:>7} {method:<10} {first['compile']:>7.1f} s {second['compile']:>7.1f} s "
                f"{1000 * first['round']:>8.1f} ms {first['at_a_time']:>9} {peak:>9}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps({"precision": options.precision, "rows": rows}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
