"""What unequal clients cost: a round of local epochs, beside the same number of gradients on equal clients.

    python benchmarks/unequal_clients.py [--models mclr,dnn,cnn] [--repeats 7] [--algorithm fedavg]

Random images in the shapes of MNIST and, for the CNN, CIFAR-10; one epoch in minibatches of ten. Two federations: 20
clients of 374 to 4,650 samples, and 200 clients of log-normal sizes of which the largest is ten times the mean. Each is
timed in turn with as many equal clients that take as many steps in all. On a device that runs clients side by side, no
schedule is faster than the largest client on its own, which is timed too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import jax
import numpy as np
import typer

import pfedbred

pfedbred.use_all_cores()

from pfedbred.data.federation import Federation, Split, offsets_of  # noqa: E402
from pfedbred.experiment.building import build  # noqa: E402

BATCH, CLASSES = 10, 10
SHAPES = {"mclr": (28, 28, 1), "dnn": (28, 28, 1), "cnn": (32, 32, 3)}


def pfllib_sizes() -> np.ndarray:
    """20 clients of 374 to 4,650 samples."""
    return np.linspace(374, 4650, 20).astype(int)


def log_normal_sizes(clients: int = 200, mean: int = 300) -> np.ndarray:
    """Log-normal sizes, at least one minibatch, of which the largest is ten times the mean."""
    normal = np.random.default_rng(0).normal(size=clients)
    low, high = 0.1, 4.0
    for _ in range(60):  # the spread at which max / mean is ten
        spread = (low + high) / 2
        sizes = np.exp(spread * normal)
        low, high = (spread, high) if sizes.max() < 10 * sizes.mean() else (low, spread)
    return np.maximum(sizes / sizes.mean() * mean, BATCH).astype(int)


def federation(sizes: np.ndarray, shape: tuple[int, ...]) -> Federation:
    """Clients of these sizes with random images."""
    rng = np.random.default_rng(0)

    def split(counts: list[int]) -> Split:
        rows = sum(counts)
        x = rng.integers(0, 256, (rows, *shape), dtype=np.uint8)
        return Split(x, rng.integers(0, CLASSES, rows).astype(np.int32), offsets_of(counts))

    scale = np.asarray(1 / 255, np.float32)
    train, test = split(sizes.tolist()), split([1] * len(sizes))
    return Federation("random", train, test, CLASSES, np.zeros((), np.float32), scale)


def round_of(sizes: np.ndarray, model: str, algorithm: str) -> Callable[[], float]:
    """A function that runs one round and returns its seconds; the program is compiled before."""
    options = {"model": model, "algorithm": algorithm, "settings": {"epochs": 1}, "batch_size": BATCH}
    data = federation(sizes, SHAPES[model])
    backend = build(pfedbred.Experiment(**options, aggregated=len(sizes)), data).backend
    state = jax.block_until_ready(backend.advance(backend.init([0]), 1))
    print(f"    {len(sizes)} clients: compiled in {backend.compile_seconds:.1f} s", flush=True)

    def run() -> float:
        nonlocal state
        begin = time.perf_counter()
        state = jax.block_until_ready(backend.advance(state, 1))
        return time.perf_counter() - begin

    return run


def main(models: str = "mclr,dnn,cnn", repeats: int = 7, algorithm: str = "fedavg") -> None:
    """Prints two lines for each model."""
    for model in models.split(","):
        for name, sizes in (("374 to 4,650", pfllib_sizes()), ("log-normal", log_normal_sizes())):
            steps = -(-sizes // BATCH)
            equal = np.full(len(sizes), BATCH * round(steps.mean()))
            runs = [round_of(each, model, algorithm) for each in (equal, sizes, sizes[sizes == sizes.max()][:1])]
            times = np.array([[run() for run in runs] for _ in range(repeats)])
            scaled = times[:, 1] / steps.sum() / (times[:, 0] / (len(sizes) * round(steps.mean())))
            even, uneven, alone = np.median(times, axis=0) * 1e3
            print(
                f"{model}, {len(sizes)} clients, {name}: {steps.sum()} steps, equal {even:.1f} ms, "
                f"unequal {uneven:.1f}, ratio {statistics.median(scaled):.2f}; the largest client alone {alone:.1f} ms",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
