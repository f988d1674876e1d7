"""A long run on a small federation: memory, open files and the time of a round, at its beginning and at its end.

python benchmarks/soak.py [--rounds 2000]
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import typer

import pfedbred
from pfedbred import Callback, Point, Progress

EVERY = 10


def main(rounds: int = 2000, algorithm: str = "mg-meta") -> None:
    """Prints a table."""
    seen: list[tuple[int, int, int, float]] = []

    class Observer(Callback):
        """Notes what the process holds."""

        def on_evaluation(self, progress: Progress, point: Point) -> None:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            seen.append((point.round, resident, len(os.listdir("/proc/self/fd")), time.perf_counter()))

    experiment = pfedbred.Experiment("digits", algorithm=algorithm, clients=20, rounds=rounds, eval_every=EVERY)
    with tempfile.TemporaryDirectory() as folder:
        pfedbred.run(experiment, out=Path(folder) / "run", callbacks=[Observer()], checkpoint_every=5 * EVERY)
    facts = np.array(seen)
    times = 1000 * np.diff(facts[:, 3]) / EVERY  # evaluation, metrics and checkpoints included
    print(f"{'rounds':>12} {'MiB':>8} {'files':>6} {'ms a round':>11}")
    for begin, end in itertools.pairwise(np.linspace(0, len(times), 11).astype(int)):
        last = facts[end]
        print(f"to {int(last[0]):>9} {last[1] / 2**20:8.1f} {int(last[2]):6} {np.median(times[begin:end]):11.2f}")


if __name__ == "__main__":
    typer.run(main)
