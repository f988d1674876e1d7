"""What it costs to look after every client's health: rounds with it and without it, in turn, in one process.

    python benchmarks/sick_clients.py [--models mclr,dnn] [--rounds 20] [--repeats 9]

"without" trains and averages as if nobody could be sick: no update is measured, no round skipped, no state restored. In
one process, because on a GPU the compiler chooses its matrix products anew in each, and that alone makes a round up to
a tenth slower or faster.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import rounds as bench
import typer

import pfedbred
from pfedbred.engine import round as round_module
from pfedbred.engine import screening


@contextlib.contextmanager
def careless() -> Iterator[None]:
    """While it is open, programs are compiled that take everybody for sound."""
    sound = screening.Vitals(jnp.float32(1), jnp.float32(1))
    with (
        mock.patch.object(screening, "examine", return_value=sound),
        mock.patch.object(round_module, "_either", lambda condition, this, that: this()),
    ):
        yield


def main(models: str = "mclr,dnn", rounds: int = 20, repeats: int = 9) -> None:
    """Prints a line for each model."""
    for model in models.split(","):
        shapes = bench.SHAPES[model]
        federation = bench.federation(shapes)
        experiment = pfedbred.Experiment(model=model, algorithm="mg-meta", batch_size=shapes.batch_size)
        ready: list[list[Any]] = []
        for context in (contextlib.nullcontext(), careless()):
            with context:
                simulation = experiment.prepare(federation).simulation
                ready.append([simulation, simulation.advance(simulation.init([0]), rounds)])
        times: list[list[float]] = [[], []]
        for turn in range(2 * repeats):
            simulation, states = ready[turn % 2]
            jax.block_until_ready(states)
            begin = time.perf_counter()
            ready[turn % 2][1] = jax.block_until_ready(simulation.advance(states, rounds))
            times[turn % 2].append(1000 * (time.perf_counter() - begin) / rounds)
        looked, not_looked = map(statistics.median, times)
        print(f"{model}: {looked:.2f} ms a round, without {not_looked:.2f}, {looked / not_looked - 1:+.1%}", flush=True)


if __name__ == "__main__":
    typer.run(main)
