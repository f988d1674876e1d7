"""Regression on natural clients: personal models beside least squares of each client and of all together.

    python benchmarks/regression.py [--datasets school,parkinson] [--divisions 5] [--rounds 80]

Each division into training and test samples (three quarters and one) has its own seed, the same for all methods. A
method's setting is chosen by the RMSE on a fifth of the training samples of that division; then it is trained on all of
them, and tested after the last round. Closed forms are NumPy's; all models are linear.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import typer
from scipy import stats

import pfedbred

pfedbred.use_all_cores()

from pfedbred.data.federation import Federation, Split  # noqa: E402
from pfedbred.data.sources.hub import cache_folder  # noqa: E402
from pfedbred.engine import keep_programs  # noqa: E402

RIDGES = (0.1, 1.0, 10.0, 100.0)
STEPS = {"school": 0.01, "parkinson": 0.003}
"""The largest that is stable for each dataset: some recordings of parkinson are far out."""

TRIED: dict[str, tuple[str, str, Sequence[Mapping[str, float]]]] = {
    "fedavg, G": ("fedavg", "global", [{"R": 20}]),
    "apfl, P": ("apfl", "personal", [{"R": 20}]),
    "ditto, P": ("ditto", "personal", [{"R": 10, "R_personal": 20, "lam": each} for each in (0.01, 3.0)]),
    "mg-meta, P": ("mg-meta", "personal", [{"R": 10, "K": 5, "lam": 1.0, "alpha_m": 0.05}]),
}
"""By name: the method, which of its models, and the settings to choose from."""


def samples(federation: Federation, split: Split, client: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's inputs with a column of ones, and its labels."""
    rows = np.arange(split.offsets[client], split.offsets[client + 1])
    x = np.asarray(federation.inputs(split).take(rows), np.float64)
    return np.column_stack([x, np.ones(len(x))]), split.y[rows].astype(np.float64)


def ridge(x: np.ndarray, y: np.ndarray, strength: float) -> np.ndarray:
    """argmin |x w - y|^2 + strength |w|^2, the constant not penalised; the shortest where there are several."""
    if strength == 0:
        return np.linalg.lstsq(x, y, rcond=None)[0]
    penalty = strength * np.eye(x.shape[1])
    penalty[-1, -1] = 0
    return np.linalg.solve(x.T @ x + penalty, x.T @ y)


def closed_form(federation: Federation, strength: float, together: bool) -> float:
    """RMSE of a closed form on the test samples: one model for all, or one for each client."""
    train, test = (
        [samples(federation, split, i) for i in range(federation.clients)]
        for split in (federation.train, federation.test)
    )
    everyone = [np.concatenate(part) for part in zip(*train, strict=True)]
    errors = []
    for own, (x, y) in zip(train, test, strict=True):
        chosen = everyone if together else own
        errors.append(x @ ridge(chosen[0], chosen[1], strength) - y)
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


def federated(federation: Federation, settings: Mapping[str, float], name: str, rounds: int) -> float:
    """RMSE of a method on the test samples after the last round."""
    algorithm, model, _ = TRIED[name]
    settings = {"alpha": STEPS[federation.name], **settings}
    options: dict[str, Any] = {"aggregated": federation.clients, "eval_every": rounds, "screening": "norms"}
    run = pfedbred.run(federation=federation, algorithm=algorithm, settings=settings, rounds=rounds, **options)
    return float(run.curve("rmse", model)[-1, 0])  # type: ignore[arg-type]


def chosen(data: Federation, seed: int, candidates: Sequence[Any], score: Callable[[Federation, Any], float]) -> float:
    """The test RMSE of the candidate that is best on validation samples."""
    split = data.with_validation(0.2, seed)
    held = dataclasses.replace(split, test=split.validation, validation=None)
    best = candidates[0] if len(candidates) == 1 else min(candidates, key=lambda each: score(held, each))
    return score(data, best)


def division(name: str, seed: int, rounds: int) -> dict[str, float]:
    """The test RMSE of everything on one division."""
    data = pfedbred.load(name, seed=seed)
    found = {
        "standard deviation of the labels": float(np.std(data.test.y)),
        "one model, least squares": closed_form(data, 0, together=True),
        "each client, least squares": closed_form(data, 0, together=False),
        BASE: chosen(data, seed, RIDGES, partial(closed_form, together=False)),
    }
    for method, (_, _, settings) in TRIED.items():
        found[method] = chosen(data, seed, settings, partial(federated, name=method, rounds=rounds))
    return found


BASE = "each client, ridge"


def interval(values: np.ndarray) -> str:
    """Mean and 95 % interval over divisions."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {half:.3f}"


def main(datasets: str = "school,parkinson", divisions: int = 5, rounds: int = 80) -> None:
    """Prints a table for each dataset."""
    keep_programs(cache_folder() / "compiled")  # one for all divisions
    for name in datasets.split(","):
        found: dict[str, list[float]] = {}
        for seed in range(divisions):
            measured = division(name, seed, rounds)
            for method, value in measured.items():
                found.setdefault(method, []).append(value)
            print(f"{name}, division {seed}: " + ", ".join(f"{k} {v:.3f}" for k, v in measured.items()), flush=True)
        print(f"\n| {name} | test RMSE | less {BASE} |\n|---|---|---|")
        for method, values in found.items():
            print(f"| {method} | {interval(np.array(values))} | {interval(np.array(values) - found[BASE])} |")
        print(flush=True)


if __name__ == "__main__":
    typer.run(main)
