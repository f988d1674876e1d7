"""Honest clients that screening rejects: the columns of the paper's table, without any attacker.

    python benchmarks/honest_updates.py [--columns mnist-mclr,cifar10-cnn] [--methods fedavg,mg-meta] [--rounds 100]
                                        [--federations FOLDER | --data-dir FOLDER]

Prints, for each column and method, how many of the updates were rejected, and how many rounds were skipped.
"""

from __future__ import annotations

from pathlib import Path

import typer

import pfedbred

pfedbred.use_all_cores()

from pfedbred.experiment.building import build  # noqa: E402
from pfedbred.paper.columns import ALL, SKEWED, Federations  # noqa: E402


def main(
    columns: str = ",".join(name for name in ALL if name not in SKEWED),
    methods: str = "fedavg,pfedme,pfedme+am,per-fedavg,mg-meta,mg-meta+am",
    rounds: int = 100,
    seeds: int = 1,
    data_dir: str | None = None,
    federations: Path | None = None,
) -> None:
    """Prints a line for each column and method."""
    data = Federations(data_dir, federations)
    for name in columns.split(","):
        column = ALL[name]
        federation = data.of(column)
        for method in methods.split(","):
            experiment = column.fitted(column.experiment(method, seeds=seeds, rounds=rounds), federation)
            backend = build(experiment, federation).backend
            found = backend.rejections(backend.advance(backend.init(range(seeds)), rounds))
            rejected = sum(sum(each.values()) for each in found.rejected)
            updates = federation.clients * rounds * seeds
            print(
                f"{name:<16} {method:<12} {rejected:>6,} of {updates:,} updates rejected ({rejected / updates:.3%}), "
                f"{sum(found.skipped)} rounds skipped",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
