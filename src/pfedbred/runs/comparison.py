"""comparison.json: methods side by side on the same splits and seeds, with intervals and paired differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pfedbred.engine.history import Point, Which
from pfedbred.engine.scores import Evaluation, ModelScores, Scores
from pfedbred.engine.screening import Rejections
from pfedbred.errors import SettingError
from pfedbred.runs.figures import SUMMARY_KEYS, Figure
from pfedbred.runs.provenance import provenance
from pfedbred.runs.record import RunRecord
from pfedbred.runs.statistics import CONFIDENCE, estimate, mean_and_std, paired_difference

Runs = Mapping[str, Sequence[RunRecord]]
"""By method, a run on each split."""

_MODELS: tuple[Which, ...] = ("global", "personal")


def comparison(runs: Runs, splits: Sequence[int] | None = None, baseline: str | None = None) -> dict[str, Any]:
    """The content of comparison.json.

    Args:
      runs: the methods, each on the same splits with the same seeds.
      splits: the seeds of the splits, if there are several.
      baseline: the method that the others are compared with; by default the best one, which may differ by figure.
    """
    if baseline is not None and baseline not in runs:
        raise SettingError(f"the baseline {baseline!r} is not one of {', '.join(runs)}")
    first = next(iter(runs.values()))[0]
    methods: dict[str, Any] = {name: {"algorithm": name, **{model: {} for model in _MODELS}} for name in runs}
    for model in _MODELS:
        for metric, info in first.metrics.items():
            for figure in first.figures:
                values = {name: _values(each, figure, metric, model) for name, each in runs.items()}
                for name, found in _compared(values, info["higher_is_better"], baseline).items():
                    methods[name][model].setdefault(metric, {})[figure] = found
    return {
        "confidence": CONFIDENCE,
        "seeds": first.summary["seeds"],
        "splits": None if splits is None else list(splits),
        "baseline": baseline,
        "figures": list(first.figures),
        "metric_info": {name: dict(info) for name, info in first.metrics.items()},
        "methods": list(methods.values()),
        **provenance(),
    }


def _values(runs: Sequence[RunRecord], figure: Figure, metric: str, model: Which) -> np.ndarray:
    """By split and seed."""
    return np.stack([run.figure(figure, metric, model) for run in runs])


def _compared(values: Mapping[str, np.ndarray], higher: bool, baseline: str | None) -> dict[str, Any]:
    """For each method its estimate, its difference from the reference, and whether it differs from the best."""
    estimates = {name: estimate(each) for name, each in values.items()}
    means = {name: found.mean for name, found in estimates.items() if found.mean is not None}
    best = (max if higher else min)(means, key=lambda name: means[name], default=None)
    found = {}
    for name, own in estimates.items():
        to_best = _difference(values, name, best)
        found[name] = {
            **own._asdict(),
            "difference": to_best if baseline is None else _difference(values, name, baseline),
            "best": name == best,
            "told_from_best": to_best and to_best["told_apart"],
        }
    return found


def _difference(values: Mapping[str, np.ndarray], name: str, reference: str | None) -> dict[str, Any] | None:
    if reference is None or name == reference:
        return None
    found = paired_difference(values[name], values[reference])
    return {"to": reference, **found._asdict(), "told_apart": found.excludes_zero}


# Several splits as one run --------------------------------------------------------------------------------------


def pooled(runs: Sequence[RunRecord]) -> RunRecord:
    """Runs of one method on several splits as one: all seeds side by side, at the rounds that all were evaluated at.

    Its clients are not those of any one split, so it has no values by client.
    """
    if len(runs) == 1:
        return runs[0]
    first = runs[0].summary
    summary: dict[str, Any] = {
        **{name: value for name, value in first.items() if name != "calibration"},  # of one split's clients
        "seeds": sum(run.summary["seeds"] for run in runs),
        "splits": len(runs),
        "seconds": {**first["seconds"], "round": float(np.median([run.summary["seconds"]["round"] for run in runs]))},
        "rejected": [each for run in runs for each in run.summary["rejected"]],
        "skipped_rounds": [each for run in runs for each in run.summary["skipped_rounds"]],
        "diverged": next((run.diverged for run in runs if run.diverged is not None), None),
        "finished_early": _finished_early(runs),
        "newcomers": None,
        **{model: _pooled_outcome(runs, model) for model in _MODELS},
    }
    together = zip(*(run.points for run in runs), strict=False)  # one may have finished earlier than another
    points = [_pooled_point(each) for each in together if len({point.round for point in each}) == 1]
    return RunRecord(summary, points)


def _finished_early(runs: Sequence[RunRecord]) -> Any:
    """That of the longest run; None if one of them had all its rounds."""
    ends: list[Any] = [run.summary.get("finished_early") for run in runs]
    return max(ends, key=lambda end: end["round"]) if all(ends) else None


def _pooled_outcome(runs: Sequence[RunRecord], model: Which) -> dict[str, Any]:
    """The outcome of a model in the form of a summary's, with intervals over the splits."""
    metrics: dict[str, dict[str, Any]] = {
        metric: {SUMMARY_KEYS[figure]: _over_splits(_values(runs, figure, metric, model)) for figure in runs[0].figures}
        | {"best_round": _rounds(runs, "best", metric, model)}
        for metric in runs[0].metrics
    }
    found: dict[str, Any] = {"metrics": metrics}
    first = runs[0].primary
    last = [run.points[-1].scores.of(model).test.values for run in runs]
    found |= {f"best_{first}": metrics[first]["best"], f"final_{first}": metrics[first]["final"]}
    if all("worst_decile" in each for each in last):
        found["final_worst_decile"] = _over_splits(np.stack([each["worst_decile"] for each in last]))
    if "chosen" in runs[0].figures:
        found["chosen_round"] = _rounds(runs, "chosen", first, model)
    return found


def _rounds(runs: Sequence[RunRecord], figure: Figure, metric: str, model: Which) -> list[int]:
    return [run.points[place].round for run in runs for place in run.places(figure, metric, model)]


def _over_splits(values: np.ndarray) -> dict[str, float | None]:
    mean, std = mean_and_std(values.ravel())
    return {"mean": mean, "std": std, "half_width": estimate(values).half_width}


def _pooled_point(points: Sequence[Point]) -> Point:
    scores = (_pooled_scores([point.scores[place] for point in points]) for place in (0, 1))
    counts: list[Any] = [[each for point in points for each in point.rejections[place]] for place in range(3)]
    return Point(points[0].round, points[0].seconds, Evaluation(*scores), Rejections(*counts))


def _pooled_scores(models: Sequence[ModelScores]) -> ModelScores:
    return ModelScores(
        **{part: Scores(_joined(model.parts[part].values for model in models), {}) for part in models[0].parts}
    )


def _joined(values: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Each metric's values, seed after seed."""
    every = list(values)
    return {name: np.concatenate([each[name] for each in every]) for name in every[0]}
