"""What screening costs: rounds with it and without it, in turn, in one process.

    python benchmarks/screening.py [--models mclr,dnn] [--rounds 20] [--repeats 9]

"Without" trains and averages as if every update were valid: no update is measured, no round skipped, no state
restored. Both run in one process, because on a GPU the compiler chooses its matrix products anew in each, which alone
makes a round up to a tenth slower or faster.
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
from pfedbred.experiment.building import build


def all_valid(norms: screening.Norms, *rest: Any, **others: Any) -> Any:
    """In place of screening."""
    return jnp.ones(norms.update.shape, bool)


@contextlib.contextmanager
def unscreened() -> Iterator[None]:
    """While it is open, programs are compiled that take every update for valid."""
    valid = screening.Norms(jnp.float32(1), jnp.float32(1))
    with (
        mock.patch.object(screening, "measure", return_value=valid),
        mock.patch.object(screening, "screen", all_valid),
        mock.patch.object(screening, "related", return_value=None),
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
        for context in (contextlib.nullcontext(), unscreened()):
            with context:
                backend = build(experiment, federation).backend
                ready.append([backend, backend.advance(backend.init([0]), rounds)])
        times: list[list[float]] = [[], []]
        for turn in range(2 * repeats):
            backend, state = ready[turn % 2]
            jax.block_until_ready(state)
            begin = time.perf_counter()
            ready[turn % 2][1] = jax.block_until_ready(backend.advance(state, rounds))
            times[turn % 2].append(1000 * (time.perf_counter() - begin) / rounds)
        screened, plain = map(statistics.median, times)
        print(f"{model}: {screened:.2f} ms a round, without {plain:.2f}, {screened / plain - 1:+.1%}", flush=True)


if __name__ == "__main__":
    typer.run(main)
