"""A long run on a small federation: memory, open files and the time of a round, at its beginning and at its end.

python benchmarks/soak.py [--rounds 2000]
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import typer

from pfedbred.experiment import keeping
from pfedbred.experiment.configuration import Experiment

EVERY = 10


def main(rounds: int = 2000, algorithm: str = "mg-meta") -> None:
    """Prints a table."""
    seen: list[tuple[int, int, int, float]] = []

    def observe(point: Any) -> None:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        seen.append((point.round, resident, len(os.listdir("/proc/self/fd")), time.perf_counter()))

    prepared = Experiment("digits", algorithm=algorithm, clients=20, rounds=rounds, eval_every=EVERY).prepare()
    with tempfile.TemporaryDirectory() as folder, keeping.opened(Path(folder) / "run") as run:
        keeping.run_into(run, prepared, observe, keeping.Keeping(every=5 * EVERY))
    facts = np.array(seen)
    times = 1000 * np.diff(facts[:, 3]) / EVERY  # evaluation, metrics and checkpoints included
    print(f"{'rounds':>12} {'MiB':>8} {'files':>6} {'ms a round':>11}")
    for begin, end in itertools.pairwise(np.linspace(0, len(times), 11).astype(int)):
        last = facts[end]
        print(f"to {int(last[0]):>9} {last[1] / 2**20:8.1f} {int(last[2]):6} {np.median(times[begin:end]):11.2f}")


if __name__ == "__main__":
    typer.run(main)
