"""summary.json: the outcome of a run, and what made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfedbred.engine.history import Point, Which, curve, has_validation
from pfedbred.engine.metrics import Metric
from pfedbred.engine.scores import Evaluation, ModelScores
from pfedbred.engine.screening import Rejections
from pfedbred.io.strict import finite_or_none
from pfedbred.runs.figures import by_seed, places
from pfedbred.runs.provenance import provenance
from pfedbred.runs.statistics import mean_and_std


def _outcome(points: Sequence[Point], model: Which, metrics: Sequence[Metric], stopped: bool) -> dict[str, Any]:
    """Of G or of P, each metric's best and final value, and that of the chosen round if there is one."""
    better = {each.name: each.higher_is_better for each in metrics}
    found: dict[str, Any] = {}
    for name in better:
        found[name] = {
            "best": over_seeds(by_seed(points, "best", name, model, better, stopped)),
            "final": over_seeds(curve(points, name, model)[-1]),
            "best_round": _rounds(points, places(points, "best", name, model, better)),
        }
        if has_validation(points):
            found[name]["chosen"] = over_seeds(by_seed(points, "chosen", name, model, better, stopped))
    first, last = metrics[0].name, points[-1].scores.of(model).test
    chosen: dict[str, Any] = {}
    if has_validation(points):
        chosen = {
            "chosen_round": _rounds(points, places(points, "chosen", first, model, better)),
            f"chosen_{first}": found[first]["chosen"],
        }
    return {
        **chosen,
        f"best_{first}": found[first]["best"],
        f"final_{first}": found[first]["final"],
        "best_round": found[first]["best_round"],
        "final_worst_decile": over_seeds(last.worst_decile),
        "final_client_std": over_seeds(last.client_std),
        "final_loss": found["loss"]["final"],
        "metrics": found,
    }


def _rounds(points: Sequence[Point], evaluations: np.ndarray) -> list[int]:
    return [points[i].round for i in evaluations]


def over_seeds(values: np.ndarray) -> dict[str, float | None]:
    """Mean and standard deviation over seeds; None where a seed diverged."""
    return dict(zip(("mean", "std"), mean_and_std(values), strict=True))


def newcomers_outcome(newcomers: Sequence[Evaluation] | None, metrics: Sequence[Metric]) -> dict[str, Any] | None:
    """The scores of the held-out clients after 0, 1, ... rounds of local training, by metric.

    Those in the first metric are also beside the others, where they were when there were no others.
    """
    if newcomers is None:
        return None
    found = {
        each.name: {
            "global": over_seeds(newcomers[0].global_.test.values[each.name]),
            "personal": [over_seeds(joined.personal.test.values[each.name]) for joined in newcomers],
        }
        for each in metrics
    }
    first = metrics[0].name
    return {"clients": newcomers[0].personal.test.clients[first].shape[1], **found[first], "metrics": found}


def ensemble_outcome(ensemble: ModelScores) -> dict[str, Any]:
    """The clients' ensembles on the test samples: each metric, its value of each client, and the worst tenth of them.

    There is one ensemble for all seeds, and so no deviation over seeds.
    """
    test = ensemble.test
    return {
        "metrics": {
            name: {"value": finite_or_none(test.values[name][0]), "clients": rounded_by_client(values)}
            for name, values in test.clients.items()
        },
        "worst_tenth": finite_or_none(test.worst_decile[0]),
    }


def rounded_by_client(values: np.ndarray) -> list[float | None]:
    """Means over seeds, with six digits."""
    return [None if each is None else float(f"{each:.6g}") for each in map(finite_or_none, values.mean(axis=0))]


def summary(
    *,
    names: Mapping[str, str],
    experiment: Mapping[str, Any],
    data: Mapping[str, Any],
    points: Sequence[Point],
    metrics: Sequence[Metric],
    seconds: Mapping[str, float],
    rejections: Rejections,
    diverged: int | None,
    finished_early: str | None,
    newcomers: Sequence[Evaluation] | None,
    evaluated: Mapping[str, Any] | None,
    chunk: int | None = None,
    calibration: Mapping[str, Any] | None = None,
    ensemble: ModelScores | None = None,
) -> dict[str, Any]:
    """The content of summary.json.

    Args:
      names: of the algorithm, the dataset and the model, to show.
      experiment: every option, as plain values.
      data: summary statistics of the data.
      points: all evaluations.
      metrics: those evaluated; the first is the one that tables and pictures show.
      seconds: for compiling, for a round, and in total.
      rejections: of the whole run.
      diverged: the round at which the run was found to have diverged.
      finished_early: why the run was complete before its last round.
      newcomers: evaluations of held-out clients.
      evaluated: if not all clients are evaluated, how many are, and how many of those have taken part.
      chunk: how many clients ran at a time, if not all.
      calibration: of the models, if they were calibrated.
      ensemble: of the personal models of all seeds, if they were combined into one.
    """
    return {
        **names,
        "rounds": experiment["rounds"],
        "seeds": experiment["seeds"],
        **{model: _outcome(points, model, metrics, diverged is not None) for model in ("global", "personal")},
        "metric_info": {
            each.name: {"title": each.title, "percent": each.percent, "higher_is_better": each.higher_is_better}
            for each in metrics
        },
        "seconds": {
            "compile": round(seconds["compile"], 4),
            "round": float(f"{seconds['round']:.4g}"),
            "total": round(seconds["total"], 4),
        },
        "chunk": chunk,
        "data": dict(data),
        "rejected": rejections.rejected,
        "skipped_rounds": rejections.skipped,
        "diverged": diverged,
        "finished_early": finished_early and {"reason": finished_early, "round": points[-1].round},
        "newcomers": newcomers_outcome(newcomers, metrics),
        "scored": evaluated,
        **({"calibration": dict(calibration)} if calibration else {}),
        **({"ensemble": ensemble_outcome(ensemble)} if ensemble else {}),
        **provenance(),
        "experiment": dict(experiment),
    }
