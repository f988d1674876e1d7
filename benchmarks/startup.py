"""From the start of Python to the end of the first round: MNIST, 100 clients, from three sources.

    python benchmarks/startup.py                  # four minutes

The sources are a prepared file, the published parquet files with their decoded images in the cache (any start but the
first), and the same files with an empty cache (the first start). Each row is ``pfedbred run`` in fresh processes: first
with nothing compiled, then once more with the compiled programs of the first. Repeats go through all rows in turn, so
that a busy machine slows all of them; a time is the minimum. MNIST is read from $PFEDBRED_DATA or the user's cache
folder, and downloaded from the hub if it is in neither.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pfedbred.data.sources.hub import cache_folder

# The command line, stopped at the end of the first stretch of rounds, here one round.
PROGRAM = """
import json, os, time
import jax
from pfedbred import cli
from pfedbred.engine import ResidentBackend
from pfedbred.experiment.callbacks.stopping import process_started

advance = ResidentBackend.advance

def once(self, *arguments):
    jax.block_until_ready(advance(self, *arguments))
    print(json.dumps({"seconds": time.monotonic() - process_started(), "compiling": self.compile_seconds}), flush=True)
    os._exit(0)

ResidentBackend.advance = once
cli.main()
"""


PREPARED, CACHED, DECODED = "prepared file", "parquet, images cached", "parquet, images decoded"


def started(folder: Path, programs: Path, model: str, source: str) -> dict[str, float]:
    """Seconds to the end of the first round, and of them compiling, with compiled programs in that folder."""
    dataset = str(folder / "mnist.fed") if source == PREPARED else "mnist"
    with tempfile.TemporaryDirectory(dir=folder) as out:
        options = ["--dataset", dataset, "--model", model, "--rounds", "1", "--out", f"{out}/run"]
        environment = {
            **os.environ,
            "JAX_COMPILATION_CACHE_DIR": str(programs),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",  # the command line's own
            "PFEDBRED_DATA": os.environ.get("PFEDBRED_DATA") or str(cache_folder()),
            "XDG_CACHE_HOME": f"{out}/cache" if source == DECODED else str(folder / "cache"),
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
        prepare = [sys.executable, "-m", "pfedbred", "data", "prepare", "mnist", "--out", str(folder / "mnist.fed")]
        subprocess.run(prepare, stdout=subprocess.DEVNULL, check=True)
        rows = [(model, source) for model in arguments.models.split(",") for source in (PREPARED, CACHED, DECODED)]
        started(folder, folder, rows[0][0], CACHED)  # fills the cache
        first: dict[tuple[str, str], list[dict[str, float]]] = {row: [] for row in rows}
        second: dict[tuple[str, str], list[dict[str, float]]] = {row: [] for row in rows}
        for _ in range(arguments.repeats):
            for row in rows:
                with tempfile.TemporaryDirectory(dir=folder) as programs:
                    for times in (first, second):
                        times[row].append(started(folder, Path(programs), *row))
    print(f"seconds, minimum of {arguments.repeats}; the ratio is to the prepared file")
    print("| model | source | first round ends | ratio | compiling | second time | ratio | compiling |")
    print("|---|---|---|---|---|---|---|---|")
    for model, source in rows:
        cold, compiling, warm, compiling_again = (
            min(each[what] for each in times[model, source])
            for times in (first, second)
            for what in ("seconds", "compiling")
        )
        ratio, ratio_again = (
            seconds / min(each["seconds"] for each in times[model, PREPARED])
            for seconds, times in ((cold, first), (warm, second))
        )
        print(
            f"| {model} | {source} | {cold:.2f} | {ratio:.2f} | {compiling:.2f} "
            f"| {warm:.2f} | {ratio_again:.2f} | {compiling_again:.2f} |"
        )


if __name__ == "__main__":
    main()
