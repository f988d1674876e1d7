"""summary.json: the outcome of a run, and what made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pfedbred.engine.evaluation import Evaluation
from pfedbred.engine.history import Point, Which, curve
from pfedbred.engine.metrics import Metric
from pfedbred.engine.screening import Rejections
from pfedbred.runs.provenance import provenance
from pfedbred.runs.statistics import mean_and_std


def diverged_seeds(points: Sequence[Point], model: Which, stopped: bool) -> np.ndarray:
    """Of each seed, whether it diverged: a training loss is not finite, or the whole run was ``stopped`` for that."""
    return stopped | ~np.isfinite(curve(points, "loss", model, "train")).all(axis=0)


def best_by_seed(
    points: Sequence[Point], metric: str, model: Which, higher_is_better: bool, stopped: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Of each seed: a metric's best value over the evaluations, and which evaluation has it.

    Evaluations in which the metric is undefined do not count. The value is NaN if there are no others, and of a seed
    that diverged; see :func:`diverged_seeds`.
    """
    values = curve(points, metric, model)
    signed = np.where(np.isnan(values), -np.inf, values if higher_is_better else -values)
    best = signed.argmax(axis=0)
    found = values[best, np.arange(values.shape[1])]
    return np.where(diverged_seeds(points, model, stopped), np.nan, found), best


def _outcome(points: Sequence[Point], model: Which, metrics: Sequence[Metric], stopped: bool) -> dict[str, Any]:
    """Of G or of P, each metric's best and final value."""
    found: dict[str, Any] = {}
    for each in metrics:
        best, places = best_by_seed(points, each.name, model, each.higher_is_better, stopped)
        found[each.name] = {
            "best": over_seeds(best),
            "final": over_seeds(curve(points, each.name, model)[-1]),
            "best_round": [points[i].round for i in places],
        }
    first, last = metrics[0].name, points[-1].scores.of(model).test
    return {
        f"best_{first}": found[first]["best"],
        f"final_{first}": found[first]["final"],
        "best_round": found[first]["best_round"],
        "final_worst_decile": over_seeds(last.worst_decile),
        "final_client_std": over_seeds(last.client_std),
        "final_loss": found["loss"]["final"],
        "metrics": found,
    }


def over_seeds(values: np.ndarray) -> dict[str, float | None]:
    """Mean and standard deviation over seeds; None where a seed diverged."""
    return dict(zip(("mean", "std"), mean_and_std(values), strict=True))


def newcomers_outcome(newcomers: Sequence[Evaluation] | None, metric: str) -> dict[str, Any] | None:
    """How the held-out clients did: after so many rounds of local training each, from none on."""
    if newcomers is None:
        return None
    return {
        "clients": newcomers[0].personal.test.clients[metric].shape[1],
        "global": over_seeds(newcomers[0].global_.test.values[metric]),
        "personal": [over_seeds(each.personal.test.values[metric]) for each in newcomers],
    }


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
) -> dict[str, Any]:
    """The content of summary.json.

    Args:
      names: of the algorithm, the dataset and the model, for people.
      experiment: every option, as plain values.
      data: what the data holds, in a few numbers.
      points: all evaluations.
      metrics: what was evaluated; the first is the one that tables and pictures show.
      seconds: of compiling, of a round, and in total.
      rejections: of the whole run.
      diverged: the round at which the run was found to have diverged.
      finished_early: why the run was complete before its last round.
      newcomers: evaluations of held-out clients.
      evaluated: where not all clients are evaluated: how many are, and how many of them have taken part.
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
        "data": dict(data),
        "rejected": rejections.rejected,
        "skipped_rounds": rejections.skipped,
        "diverged": diverged,
        "finished_early": finished_early and {"reason": finished_early, "round": points[-1].round},
        "newcomers": newcomers_outcome(newcomers, metrics[0].name),
        "scored": evaluated,
        **provenance(),
        "experiment": dict(experiment),
    }
