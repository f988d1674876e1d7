"""What metrics cost: an evaluation with accuracy and loss, and with all classification metrics, in turn.

    python benchmarks/metrics.py [--models mclr,dnn,cnn] [--repeats 15]

Random data in the shape of MNIST, 100 clients of 50 to 1,000 samples, of which a quarter are test samples.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import typer

import pfedbred

pfedbred.use_all_cores()

from pfedbred.data.federation import Federation, Split, offsets_of  # noqa: E402
from pfedbred.engine.metrics import METRICS  # noqa: E402
from pfedbred.experiment.building import build  # noqa: E402

SHAPE, CLASSES, CLIENTS = (28, 28, 1), 10, 100


def federation() -> Federation:
    """The random data."""
    rng = np.random.default_rng(0)
    sizes = np.linspace(50, 1000, CLIENTS).astype(int)

    def split(counts: np.ndarray) -> Split:
        rows = int(counts.sum())
        x = rng.integers(0, 256, (rows, *SHAPE), dtype=np.uint8)
        return Split(x, rng.integers(0, CLASSES, rows).astype(np.int32), offsets_of(counts.tolist()))

    scale = np.asarray(1 / 255, np.float32)
    return Federation("random", split(sizes - sizes // 4), split(sizes // 4), CLASSES, np.zeros((), np.float32), scale)


def main(models: str = "mclr,dnn,cnn", repeats: int = 15) -> None:
    """Prints a line for each model."""
    data = federation()
    every = ",".join(name for name, metric in METRICS.items() if metric.task in ("any", "classification"))
    for model in models.split(","):
        runs = []
        for metrics in ("", every):
            backend = build(pfedbred.Experiment(model=model, algorithm="fedavg", metrics=metrics), data).backend
            state = backend.init([0])
            backend.evaluate(state)  # compiles
            runs.append((backend, state))
        times: list[list[float]] = [[], []]
        for turn in range(2 * repeats):
            backend, state = runs[turn % 2]
            begin = time.perf_counter()
            backend.evaluate(state)
            times[turn % 2].append(1000 * (time.perf_counter() - begin))
        few, all_ = map(statistics.median, times)
        ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
        print(f"{model}: {few:.1f} ms with accuracy and loss, {all_:.1f} with {every}, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    typer.run(main)
