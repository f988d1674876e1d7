"""A round of 100 sampled clients out of a thousand, and out of a million: it should cost the same.

MCLR on Synthetic(1, 1), mg-meta with the paper's R = 20 and K = 5. The rounds of all populations take turns, so that a
busy machine is busy for each of them. At the end every client of the largest population is given a state, the worst
case for the store, and the most memory that the process held is printed.

    python benchmarks/population.py
    python benchmarks/population.py --store memory --populations 1000,100000
"""

from __future__ import annotations

import argparse
import resource
import time
from operator import itemgetter
from typing import Any

import jax
import numpy as np

import pfedbred
from pfedbred.engine import StreamedBackend
from pfedbred.experiment.building import build
from pfedbred.experiment.configuration import Experiment


def make(clients: int, arguments: argparse.Namespace) -> StreamedBackend:
    """A backend that samples from this many clients."""
    experiment = Experiment(
        dataset="synthetic(1, 1)",
        clients=clients,
        participation="sample",
        aggregated=100,
        store=arguments.store,
        store_dir=arguments.store_dir,
    )
    backend = build(experiment).backend
    assert isinstance(backend, StreamedBackend)
    return backend


def fill(backend: StreamedBackend, states: Any) -> None:
    """Gives every client a record, those of the clients that have one over and over."""
    store, clients = states.clients[0], backend.federation.clients
    numbers = np.asarray(backend._select(states.key[0], 0)).tolist()
    records = store.read(numbers)
    for begin in range(0, clients, len(numbers)):
        count = min(len(numbers), clients - begin)
        store.write(range(begin, begin + count), jax.tree.map(itemgetter(slice(count)), records))


def timed(backend: StreamedBackend, states: Any, rounds: int) -> tuple[Any, float]:
    """The states after these rounds, and the milliseconds of a round."""
    compiled, begun = backend.compile_seconds, time.perf_counter()
    states = jax.block_until_ready(backend.advance(states, rounds))
    compiling = backend.compile_seconds - compiled
    return states, 1e3 * (time.perf_counter() - begun - compiling) / rounds


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--populations", default="1000,10000,100000,1000000")
    parser.add_argument("--store", default="file", choices=["memory", "file"])
    parser.add_argument("--store-dir", help="folder for the file")
    parser.add_argument("--rounds", type=int, default=10, help="at a time")
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    pfedbred.use_all_cores()
    populations = [int(each) for each in arguments.populations.split(",")]
    runs = {clients: make(clients, arguments) for clients in populations}
    states = {clients: run.advance(run.init([0]), 3) for clients, run in runs.items()}
    times: dict[int, list[float]] = {clients: [] for clients in populations}
    for _ in range(arguments.turns):
        for clients, run in runs.items():
            states[clients], milliseconds = timed(run, states[clients], arguments.rounds)
            times[clients].append(milliseconds)
    first = np.median(times[populations[0]])
    print(f"store {arguments.store}, {arguments.turns} x {arguments.rounds} rounds of 100 clients, {jax.devices()}")
    print("| clients | ms a round | ratio | with a record |\n|---|---|---|---|")
    for clients in populations:
        median = np.median(times[clients])
        print(f"| {clients:,} | {median:.1f} | {median / first:.2f} | {len(states[clients].clients[0]):,} |")
    last = populations[-1]
    fill(runs[last], states[last])
    store = states[last].clients[0]
    states[last], milliseconds = timed(runs[last], states[last], arguments.rounds)
    size = len(store) * store.record_bytes / 1e9
    filled = f"{last:,}, all with a record ({size:.1f} GB)"
    print(f"| {filled} | {milliseconds:.1f} | {milliseconds / first:.2f} | {len(store):,} |")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30
    print(f"\nmost memory this process has held: {peak:.2f} GiB")


if __name__ == "__main__":
    main()
