"""Regression on natural clients: personal models beside least squares of each client and of all together.

    python benchmarks/regression.py [--datasets school,parkinson] [--divisions 5] [--trials 8]

Each division into training and test samples (three quarters and one) has its own seed, the same for all methods. On
each of them, every method chooses among the same number of settings by the RMSE on a fifth of the training samples:
ridge its strength, the federated ones their step sizes, lambda and number of rounds, drawn at random. Then it is
trained on all training samples, and tested at the end. Closed forms are NumPy's; all models are linear.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import typer

import pfedbred

pfedbred.use_all_cores()

from pfedbred.data.federation import Federation, Split  # noqa: E402
from pfedbred.data.sources.hub import cache_folder  # noqa: E402
from pfedbred.engine import keep_programs  # noqa: E402
from pfedbred.engine.history import Which  # noqa: E402
from pfedbred.experiment.space import Range, Space  # noqa: E402
from pfedbred.runs.statistics import Estimate, estimate, paired_difference  # noqa: E402

BASE = "each client, ridge"
ROUNDS = {"school": 60, "parkinson": 160}
"""The most that can be chosen; evaluated 20 times."""

STEP, LAM = Range(0.0005, 0.05, log=True), Range(0.001, 10, log=True)
METHODS: dict[str, tuple[str, Which, Sequence[Mapping[str, Any]], Space]] = {
    "fedavg, G": ("fedavg", "global", [{"R": 20}], {"alpha": STEP}),
    "ditto, P": ("ditto", "personal", [{"R": 10, "R_personal": 20}], {"alpha": STEP, "lam": LAM}),
    "mg-meta, P": (
        "mg-meta",
        "personal",
        [{"R": 10, "K": 5, "prox_start": start} for start in ("local", "theta")],
        {"alpha": STEP, "eta_a": STEP, "lam": LAM},
    ),
}
"""By name: the method, which of its models, variants that share the trials, and what each trial draws from."""


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


def chosen_ridge(data: Federation, held: Federation, trials: int) -> float:
    """The test RMSE of the strength that is best on validation samples."""
    validated = dataclasses.replace(held, test=held.parts["validation"], validation=None)
    strengths = np.logspace(-2, 3, trials)
    best = min(strengths, key=lambda each: closed_form(validated, each, together=False))
    return closed_form(data, best, together=False)


def federated(name: str, data: Federation, held: Federation, trials: int) -> tuple[float, str]:
    """The test RMSE of the settings and the round that are best on validation samples, and what they are."""
    algorithm, model, variants, space = METHODS[name]
    options: dict[str, Any] = {"algorithm": algorithm, "aggregated": data.clients, "screening": "norms"}
    most = ROUNDS[data.name]
    found: list[tuple[float, dict[str, Any], int]] = []
    for shared in variants:
        experiment = pfedbred.Experiment(**options, settings=shared, rounds=most, eval_every=most // 20)
        tried = pfedbred.sweep(experiment, space, federation=held, points=trials // len(variants))
        assert tried.validation is not None
        scores = np.nan_to_num(tried.validation[model][:, :, 0], nan=np.inf)
        point, place = np.unravel_index(np.argmin(scores), scores.shape)
        settings = {**shared, **dict(zip(tried.names, map(float, tried.points[point]), strict=True))}
        found.append((float(scores[point, place]), settings, tried.rounds[place]))
    _, settings, rounds = min(found, key=lambda each: each[0])
    run = pfedbred.run(federation=data, **options, settings=settings, rounds=rounds, eval_every=rounds)
    words = ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in settings.items()
    )
    return float(run.curve("rmse", model)[-1, 0]), f"{words}, {rounds} rounds"


def division(name: str, seed: int, trials: int) -> dict[str, float]:
    """The test RMSE of everything on one division."""
    data = pfedbred.load(name, seed=seed)
    held = data.with_validation(0.2, seed)
    found = {
        "standard deviation of the labels": float(np.std(data.test.y)),
        "one model, least squares": closed_form(data, 0, together=True),
        "each client, least squares": closed_form(data, 0, together=False),
        BASE: chosen_ridge(data, held, trials),
    }
    for method in METHODS:
        begin = time.process_time()
        found[method], words = federated(method, data, held, trials)
        seconds = time.process_time() - begin
        print(f"{name} {seed}, {method}: {found[method]:.3f} with {words}; {seconds:.0f} s of CPU", flush=True)
    return found


def shown(found: Estimate) -> str:
    """Mean and 95 % interval over divisions."""
    return f"{found.mean:.3f} ± {found.half_width:.3f}"


def main(datasets: str = "school,parkinson", divisions: int = 5, trials: int = 8) -> None:
    """Prints a table for each dataset."""
    keep_programs(cache_folder() / "compiled")  # one for all divisions
    for name in datasets.split(","):
        every = [division(name, seed, trials) for seed in range(divisions)]
        found = {method: np.array([each[method] for each in every]) for method in every[0]}
        print(f"\n| {name} | test RMSE | minus {BASE} |\n|---|---|---|")
        for method, values in found.items():
            difference = "" if method == BASE else shown(paired_difference(values, found[BASE]))
            print(f"| {method} | {shown(estimate(values))} | {difference} |")
        for one, other in itertools.combinations(reversed(METHODS), 2):
            print(f"\n{one} minus {other}: {shown(paired_difference(found[one], found[other]))}", flush=True)
        print()


if __name__ == "__main__":
    typer.run(main)
