"""Beyond the paper: a fair comparison of personalised methods on many kinds of data.

Every method gets the same number of trials: settings drawn at random, scored on a fifth of each client's training
samples. The best ones are then trained with several seeds, on several splits of the data, and the round is chosen on
the same validation samples. Test samples play no part in any choice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from pfedbred import data
from pfedbred.data.federation import Federation
from pfedbred.engine import metrics
from pfedbred.engine.scores import worst_tenth
from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.result import Run
from pfedbred.experiment.run import run
from pfedbred.experiment.space import Range, Space
from pfedbred.experiment.sweep import sweep
from pfedbred.io.shapes import NUMBER, Maybe, Some
from pfedbred.paper.fair_report import write_report
from pfedbred.paper.jobs import run_jobs
from pfedbred.paper.records import Request, chosen, load_or_measure, read_measured, record_file, rounded
from pfedbred.runs.figures import places

_VALIDATION, _NEW, _TRIALS, _COVERAGE = 0.2, 0.1, 12, 0.9
SPLITS = (0, 1, 2)
_STEP, _LAM = Range(0.003, 0.3, log=True), Range(0.01, 10.0, log=True)
_MAIN = Range(0.003, 0.06, log=True)


@dataclass(frozen=True)
class Arena:
    """Data to compare methods on.

    Attributes:
      title: its title in tables.
      dataset: the dataset's name.
      model: the network.
      rounds: rounds of training.
      metric: the metric on test samples that methods are compared by.
      chosen_by: the metric on validation samples that settings and rounds are chosen by; by default ``metric``.
      options: options of :func:`pfedbred.load`; the experiment has the same ``task``.
    """

    title: str
    dataset: str
    model: str
    rounds: int
    metric: str = "accuracy"
    chosen_by: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


ARENAS: dict[str, Arena] = {
    "heart": Arena("heart disease, 4 hospitals", "heart", "mclr", 40),
    "landmine": Arena("land mines, 29 fields", "landmine", "mclr", 40, "auroc", "loss", {"task": "binary"}),
    "school": Arena("exam scores, 139 schools", "school", "mclr", 60, "rmse"),
    "parkinson": Arena("Parkinson's telemonitoring, 42 patients", "parkinson", "mclr", 100, "rmse"),
    "uci-har": Arena("activities, 30 people", "uci-har", "dnn", 40),
    "audiomnist": Arena("spoken digits, 60 speakers", "audiomnist", "dnn", 60),
    "chinese-mnist": Arena("Chinese numerals, 100 writers", "chinese-mnist", "dnn", 60),
    "mnist-writers": Arena("digits, 539 writers", "mnist-writers", "dnn", 60),
    "fashion-mnist": Arena(
        "Fashion-MNIST, Dirichlet(0.1), 20 clients",
        "fashion-mnist",
        "dnn",
        60,
        options={"split": "dirichlet(0.1)", "clients": 20},
    ),
    "cifar10": Arena(
        "CIFAR-10, Dirichlet(0.1), 20 clients",
        "cifar10",
        "cnn",
        200,
        options={"split": "dirichlet(0.1)", "clients": 20},
    ),
}
"""From small tables to images, with natural clients if the data has them."""


@dataclass(frozen=True)
class Contender:
    """A method in the comparison: its algorithm, fixed settings, and what each trial draws."""

    algorithm: str
    space: Space
    settings: Mapping[str, Any] = field(default_factory=dict)


CONTENDERS: dict[str, Contender] = {
    "local": Contender("local", {"alpha": _STEP}),
    "fedavg+ft": Contender("fedavg+ft", {"alpha": _STEP, "ft_alpha": _STEP}),
    "ditto": Contender("ditto", {"alpha": _STEP, "lam": _LAM}),
    "pfedme": Contender("pfedme", {"alpha": _STEP, "alpha_m": _MAIN, "lam": Range(0.3, 30.0, log=True)}),
    "fedamp": Contender("fedamp", {"alpha": _STEP, "lam": _LAM}),
    "mg": Contender("mg-meta", {"alpha": _STEP, "alpha_m": _MAIN, "eta_a": _STEP, "lam": Range(0.3, 30.0, log=True)}),
    "mg+am": Contender(
        "mg-meta+am", {"alpha": _STEP, "alpha_m": _MAIN, "eta_a": _STEP, "lam": Range(0.3, 30.0, log=True)}
    ),
    "mr-mtl": Contender("mr-mtl", {"alpha": _STEP, "lam": _LAM}),
    "pfedbayes": Contender("pfedbayes", {"alpha": _STEP, "alpha_m": _MAIN, "zeta": Range(0.03, 3.0, log=True)}),
    "pfedvem": Contender("pfedvem", {"alpha": _STEP, "alpha_head": _STEP, "sigma": Range(0.05, 1.0, log=True)}),
    "learned": Contender("learned-prior", {"alpha": _STEP, "alpha_m": _MAIN}),
    "learned client": Contender("learned-prior", {"alpha": _STEP, "alpha_m": _MAIN}, {"lam": "learned(client)"}),
    "learned Sigma": Contender(
        "learned-prior", {"alpha": _STEP, "alpha_m": _MAIN}, {"lam": "learned", "sigma": "learned"}
    ),
    "shifted": Contender("shifted-prior", {"alpha": _STEP, "temper": Range(0.1, 1.0, log=True)}),
}
"""The methods compared. The learned ones have no strength to tune, ``shifted`` a factor on the learned one."""

_ALWAYS, _SOME = ("P", "G", "worst", "loss", "coverage", "size"), ("new", "nll")
RECORD = {
    **{name: Some(Maybe(NUMBER)) for name in _ALWAYS},
    **{name: Maybe(Some(Maybe(NUMBER))) for name in _SOME},
    "settings": dict,
}
"""By seed: P and G, the worst tenth of clients' P, P's loss, and P of newcomers, if any.

Also, as means over clients, the coverage of P's conformal sets or intervals, their size or width, and for labels P's
NLL with temperatures.
"""


def run_fair(request: Request) -> None:
    """Runs what is missing, then writes everything recorded to ``fair.md`` and ``fair.png``."""
    arenas = chosen("column", ARENAS, request.columns)
    rows = chosen("row", CONTENDERS, request.rows)
    if request.run:
        cells = product(arenas, SPLITS, rows)
        run_jobs([partial(_run_cell, arena, split, row) for arena, split, row in cells], request)
    found = {arena: {row: recorded("fair", arena, row, request) for row in CONTENDERS} for arena in ARENAS}
    arenas_found = {name: (ARENAS[name], records) for name, records in found.items()}
    write_report(request.out, arenas_found, len(SPLITS), request.say)


def _run_cell(arena: str, split: int, row: str, request: Request) -> list[SettingError]:
    """Measures one row on one split of an arena, or says why it cannot be run."""
    try:
        measured("fair", arena, split, row, CONTENDERS[row], request)
    except SettingError as problem:  # the others may still run
        request.say(f"fair {arena} {row}, split {split}: cannot be run: {problem}")
        return [problem]
    return []


def recorded(table: str, name: str, row: str, request: Request) -> dict[int, dict[str, Any]]:
    """The existing records of a row, by split."""
    files = {split: record_file(request.out, table, name, f"{row}-{split}") for split in SPLITS}
    return {split: record for split, file in files.items() if (record := read_measured(file, RECORD))}


def measured(table: str, name: str, split: int, row: str, contender: Contender, request: Request) -> None:
    """Measures one row on one split of an arena, unless a table of that name has a record of it."""
    arena = ARENAS[name]
    rounds = request.rounds or arena.rounds
    wanted = {
        "algorithm": contender.algorithm,
        "settings": dict(contender.settings),
        "space": {key: list(each) for key, each in contender.space.items()},
        "model": arena.model,
        "options": dict(arena.options),
        "rounds": rounds,
        "trials": _TRIALS,
        "seeds": request.seeds,
        "validation": _VALIDATION,
        "held_out": _NEW,
        "coverage": _COVERAGE,
    }
    what = f"{table} {name} {row}, split {split}"

    def measure() -> dict[str, Any]:
        request.stop_if_wanted(what)
        federation = _load(name, split, request)
        experiment = _experiment(arena, contender, rounds, federation)
        held = federation.with_validation(_VALIDATION, split)
        with request.progress(what) as advance:
            tried = sweep(
                experiment,
                contender.space,
                federation=held,
                points=_TRIALS,
                sampler="random",
                metric=arena.chosen_by or arena.metric,
                observe=advance,
            )
        settings = {**contender.settings, **tried.best_point()}
        final = dataclasses.replace(experiment, settings=settings, seeds=request.seeds)
        figures = _figures(_trained(final, held), arena)
        return {"settings": settings, **figures, "trial_scores": _plain(tried.scores("personal"))}

    record, fresh = load_or_measure(record_file(request.out, table, name, f"{row}-{split}"), wanted, measure, RECORD)
    values = [each for each in record["P"] if each is not None]
    shown = f"{np.mean(values):.4g}" if values else "diverged"
    request.say(f"{what}: {arena.metric} of P {shown}, {record['seconds']:.0f} s{'' if fresh else ', already done'}")


def _load(name: str, split: int, request: Request) -> Federation:
    """The data of an arena, from a prepared federation such as fair-cifar10-split0.fed if there is one."""
    folder, arena = request.federations.prepared, ARENAS[name]
    file = folder and folder / f"fair-{name}-split{split}{data.prepared.SUFFIX}"
    if file and file.exists():
        return data.load(str(file))
    return data.load(arena.dataset, seed=split, data_dir=request.federations.data_dir, **arena.options)


def _experiment(arena: Arena, contender: Contender, rounds: int, federation: Federation) -> Experiment:
    task = {"task": arena.options["task"]} if "task" in arena.options else {}
    return Experiment(
        model=arena.model,
        algorithm=contender.algorithm,
        settings=dict(contender.settings),
        rounds=rounds,
        eval_every=max(1, rounds // 20),
        aggregated=federation.clients,
        screening="norms",  # nobody attacks
        **task,
    )


def _trained(experiment: Experiment, federation: Federation) -> Run[Any]:
    """A run with newcomers, if there are enough clients, and with calibrated models."""
    new = _NEW if federation.clients >= 20 else None
    left = federation.clients - round((new or 0) * federation.clients)
    options: dict[str, Any] = {"held_out_clients": new, "aggregated": left, "coverage": _COVERAGE}
    return run(dataclasses.replace(experiment, **options), federation=federation)


def _figures(finished: Run[Any], arena: Arena) -> dict[str, Any]:
    """The record's figures by seed, at the round chosen on validation samples."""
    points = finished.points
    first = arena.chosen_by or arena.metric
    better = {name: metrics.METRICS[name].higher_is_better for name in dict.fromkeys([first, arena.metric, "loss"])}
    at = {model: places(points, "chosen", first, model, better) for model in ("personal", "global")}

    def value(metric: str, model: Any) -> list[float | None]:
        values = finished.curve(metric, model)
        return _plain(values[at[model], np.arange(values.shape[1])])

    worst = [
        _worst_tenth(points[place].scores.personal.test, seed, arena.metric, better[arena.metric])
        for seed, place in enumerate(at["personal"])
    ]
    new = _plain(finished.newcomers[-1].personal.test.values[arena.metric]) if finished.newcomers else None
    assert finished.calibration is not None
    figures = finished.calibration.measured["personal"][0].figures
    sure = {
        name: _plain(np.nanmean(finished.calibration.values("personal", key), axis=1)) if key in figures else None
        for name, key in (
            ("coverage", "coverage"),
            ("size", "size" if "size" in figures else "width"),
            ("nll", "nll"),
        )
    }
    return {
        **sure,
        "P": value(arena.metric, "personal"),
        "G": value(arena.metric, "global"),
        "worst": _plain(worst),
        "loss": value("loss", "personal"),
        "new": new,
        "chosen_round": [points[place].round for place in at["personal"]],
    }


def _worst_tenth(scores: Any, seed: int, metric: str, higher: bool) -> float:
    """The mean over the worst tenth of the clients that have a value."""
    values = np.asarray(scores.clients[metric])[seed]
    values = values[np.isfinite(values)]
    return float(worst_tenth(values, higher)) if len(values) else float("nan")


def _plain(values: Sequence[float] | np.ndarray) -> list[float | None]:
    return rounded(np.asarray(values, float).tolist(), 5)
