"""From the start of Python to the end of the first round: MNIST, 100 clients, from a prepared file and from parquet.

    python benchmarks/startup.py                  # three minutes

Each row is ``pfedbred run`` in fresh processes: first with nothing compiled before, then once more with what that one
kept. Repeats go through all rows in turn, so that a busy machine slows all of them; a time is the least of them.
MNIST is looked for as always: in $PFEDBRED_DATA, in the cache, or on the hub.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# The command line, stopped when the first stretch of rounds, here one round, is done.
PROGRAM = """
import json, os, time
import jax
from pfedbred import cli
from pfedbred.engine import Simulation
from pfedbred.experiment.stopping import process_begun

advance = Simulation.advance

def once(self, *arguments):
    jax.block_until_ready(advance(self, *arguments))
    print(json.dumps({"seconds": time.monotonic() - process_begun(), "compiling": self.compile_seconds}), flush=True)
    os._exit(0)

Simulation.advance = once
cli.main()
"""


def started(folder: Path, programs: Path, model: str, dataset: str) -> dict[str, float]:
    """Seconds to the end of the first round, and of them compiling, with compiled programs in that folder."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        options = ["--dataset", dataset, "--model", model, "--rounds", "1", "--out", f"{out}/run"]
        environment = {
            **os.environ,
            "JAX_COMPILATION_CACHE_DIR": str(programs),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",  # the command line's own
        }
        command = [sys.executable, "-c", PROGRAM, "run", *options]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mclr,dnn")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pfedbred-") as made:
        folder = Path(made)
        prepared = str(folder / "mnist.fed")
        prepare = [sys.executable, "-m", "pfedbred", "data", "prepare", "mnist", "--out", prepared]
        subprocess.run(prepare, stdout=subprocess.DEVNULL, check=True)
        rows = [(model, dataset) for model in arguments.models.split(",") for dataset in (prepared, "mnist")]
        first: dict[tuple[str, str], list[dict[str, float]]] = {row: [] for row in rows}
        second: dict[tuple[str, str], list[dict[str, float]]] = {row: [] for row in rows}
        for _ in range(arguments.repeats):
            for row in rows:
                with tempfile.TemporaryDirectory(dir=folder) as programs:
                    for times in (first, second):
                        times[row].append(started(folder, Path(programs), *row))
    print(f"seconds, the least of {arguments.repeats}; the ratio is to the prepared file")
    print("| model | from | first round ends | ratio | compiling | the second time | compiling |")
    print("|---|---|---|---|---|---|---|")
    for model, dataset in rows:
        cold, compiling, warm, compiling_again = (
            min(each[what] for each in times[model, dataset])
            for times in (first, second)
            for what in ("seconds", "compiling")
        )
        ratio = cold / min(each["seconds"] for each in first[model, prepared])
        source = "prepared file" if dataset == prepared else "parquet"
        print(
            f"| {model} | {source} | {cold:.2f} | {ratio:.2f} | {compiling:.2f} | {warm:.2f} | {compiling_again:.2f} |"
        )


if __name__ == "__main__":
    main()
