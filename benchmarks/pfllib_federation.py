"""The federation that PFLlib ships: MNIST on 20 clients of 374 to 4,641 training samples, one local epoch, batch 10.

    python benchmarks/pfllib_federation.py [--out FOLDER] [--rounds 20] [--trials 6] [--seeds 3] [--model mclr]

PFLlib's repository holds the samples of each client, and in ``dataset/MNIST/config.json`` how many of each label they
are. This writes a folder in its format, with these numbers of MNIST's images (which image is whose, and which are for
training, is drawn anew: three quarters, as there), and trains on it as ``--dataset pfllib:FOLDER``. All clients are
averaged, weighted by their training samples, as there.

Every method has the same number of trials, settings drawn at random and chosen on a fifth of the training samples with
one seed; then it is run with several seeds, with the figures at the round chosen on the same validation samples.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import typer

import pfedbred

pfedbred.use_all_cores()

from pfedbred.data.datasets.mnist import mnist  # noqa: E402
from pfedbred.data.sources.hub import cache_folder  # noqa: E402
from pfedbred.engine import keep_programs  # noqa: E402
from pfedbred.experiment.space import Range, Space  # noqa: E402
from pfedbred.runs.comparison import comparison  # noqa: E402

LABELS: tuple[Mapping[int, int], ...] = (
    {0: 140, 1: 890, 4: 1, 5: 319, 7: 29, 8: 1067, 9: 184},
    {0: 5, 2: 27, 5: 19, 6: 335, 8: 6, 9: 107},
    {0: 3, 3: 143, 6: 1461, 9: 23},
    {0: 155, 4: 1, 7: 2381, 8: 4},
    {0: 71, 1: 13, 3: 207, 5: 1129, 6: 6, 8: 40, 9: 451},
    {1: 38, 3: 1, 4: 39, 8: 25, 9: 6086},
    {1: 873, 2: 176, 3: 46, 6: 42, 8: 13, 9: 106},
    {1: 21, 2: 5, 3: 11, 5: 787, 7: 4, 8: 441},
    {0: 1, 1: 3599},
    {0: 633, 1: 1997, 2: 89, 4: 519, 6: 768},
    {0: 920, 1: 2, 2: 1450, 3: 513, 4: 134, 5: 97},
    {2: 159, 3: 3055, 5: 558},
    {0: 8, 1: 180, 2: 3277, 5: 148},
    {1: 237, 2: 343, 4: 6, 5: 453, 7: 1095},
    {5: 2719, 7: 3011},
    {0: 31, 3: 1785, 5: 16, 6: 4, 7: 756, 8: 2856},
    {0: 3628},
    {1: 26, 2: 1463, 3: 1379, 4: 335, 5: 60, 7: 17, 8: 2373},
    {0: 998, 5: 8, 6: 4260},
    {0: 310, 1: 1, 2: 1, 3: 1, 4: 5789, 9: 1},
)
"""Of each client, how many samples of each label, training and test together: all 70,000 of MNIST."""

STEP = Range(0.002, 0.2, log=True)
METHODS: dict[str, tuple[Mapping[str, Any], Space]] = {
    "fedavg": ({}, {"alpha": STEP}),
    "pfedme": ({"K": 5}, {"alpha": STEP, "alpha_m": STEP, "lam": Range(1, 100, log=True)}),
    "ditto": ({"epochs_personal": 1}, {"alpha": STEP, "lam": Range(0.01, 10, log=True)}),
}
"""By name: the settings that all trials share, and what trials draw from."""


def write_federation(folder: Path, seed: int = 0, train: float = 0.75) -> None:
    """The folder as PFLlib would write it: a pickled dict for each client, images in [-1, 1] with channels first."""
    pool, rng = mnist(None, 0, 0), np.random.default_rng(seed)
    x = ((pool.x.astype(np.float32) / 255 - 0.5) / 0.5)[:, None]
    left = [rng.permutation(np.flatnonzero(pool.y == label)) for label in range(10)]
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
    for client, wanted in enumerate(LABELS):
        taken = []
        for label, count in wanted.items():
            taken.append(left[label][:count])
            left[label] = left[label][count:]
        rows = rng.permutation(np.concatenate(taken))
        first = int(train * len(rows))
        for part, own in (("train", rows[:first]), ("test", rows[first:])):
            data: Any = {"x": x[own], "y": pool.y[own].astype(np.int64)}
            with open(folder / part / f"{client}.npz", "wb") as file:
                np.savez_compressed(file, data=data)
    assert not any(map(len, left))
    config = {
        "num_clients": len(LABELS),
        "num_classes": 10,
        "non_iid": True,
        "balance": False,
        "partition": "dir",
        "Size of samples for labels in clients": [list(each.items()) for each in LABELS],
        "alpha": 0.1,
        "batch_size": 10,
    }
    (folder / "config.json").write_text(json.dumps(config))


def trained(name: str, trials: int, seeds: int, options: Mapping[str, Any]) -> pfedbred.RunRecord:
    """The method with the settings that are best on validation samples."""
    shared, space = METHODS[name]
    common: dict[str, Any] = {**options, "algorithm": name}
    settings = {"epochs": 1, **shared}
    begin = time.perf_counter()
    tried = pfedbred.sweep(pfedbred.Experiment(**common, settings=settings), space, points=trials)
    best = tried.best_point()
    run = pfedbred.run(**common, settings={**settings, **best}, seeds=seeds)
    chosen = ", ".join(f"{key} {value:.3g}" for key, value in best.items())
    record = run.record()
    rejected = record.summary["rejected"]
    print(f"{name}: {chosen} of {trials} trials; {time.perf_counter() - begin:.0f} s; rejected {rejected}", flush=True)
    return record


def shown(found: Mapping[str, Any] | None) -> str:
    """A mean with its interval, in percent."""
    if not found or found["mean"] is None:
        return ""
    return f"{100 * found['mean']:.2f} ± {100 * found['half_width']:.2f}"


def main(out: Path | None = None, rounds: int = 20, trials: int = 6, seeds: int = 3, model: str = "mclr") -> None:
    """Prints a table of P, which of fedavg is G."""
    keep_programs(cache_folder() / "compiled")
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or Path(temporary) / "MNIST"
        if not folder.exists():
            write_federation(folder)
        options = {
            "dataset": f"pfllib:{folder}",
            "model": model,
            "rounds": rounds,
            "aggregated": len(LABELS),
            "weights": "unbounded",
            "batch_size": 10,
            "validation": 0.2,
            "screening": "norms",
        }
        records = {name: trained(name, trials, seeds, options) for name in METHODS}
    print("\n| P | chosen round | last round | best on test | chosen round, minus the best method |")
    print("|---|---|---|---|---|")
    for method in comparison({name: [each] for name, each in records.items()})["methods"]:
        found = method["personal"]["accuracy"]
        figures = [shown(found[figure]) for figure in ("chosen", "last", "best")]
        print(f"| {method['algorithm']} | {' | '.join(figures)} | {shown(found['chosen']['difference'])} |")


if __name__ == "__main__":
    typer.run(main)
