"""Keeps the models of the round that is best on validation samples, for each seed separately."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pfedbred.engine.history import Point, Which
from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.progress import Progress
from pfedbred.runs.chosen import MODELS, ChosenRounds

if TYPE_CHECKING:
    from pfedbred.engine.backend import Backend
    from pfedbred.experiment.configuration import Experiment
    from pfedbred.experiment.result import Run

_SMALL = 10**9  # bytes of models that are kept by default


def keeps_models(keep: bool | None, experiment: Experiment, backend: Backend[Any]) -> bool:
    """Whether a run keeps its models: as requested, or if they are small."""
    if keep is not None:
        return keep
    size = backend.model_bytes()
    return size is not None and experiment.seeds * size <= _SMALL


class ChosenModels(Callback):
    """Notes the best round of G and of P on validation samples, and keeps their models of that round."""

    def __init__(self, keep: bool | None = None) -> None:
        """``keep`` is whether to keep models; by default if they are small."""
        self._keep = keep
        self._best: dict[Which, np.ndarray] = {}

    @contextmanager
    def running(self, progress: Progress[Any]) -> Iterator[None]:
        """Starts from the evaluations of a resumed run, whose models are in the progress already."""
        self._best = {}
        for point in progress.points:
            self._improved(progress, point)
        yield

    def on_evaluation(self, progress: Progress[Any], point: Point) -> None:
        """Compares with the best so far."""
        improved = self._improved(progress, point)
        if not improved:
            return
        chosen, backend = progress.chosen, progress.backend
        assert chosen is not None
        if len(progress.points) == 1 and keeps_models(self._keep, progress.experiment, backend):
            chosen.models = {}
        if chosen.models is not None:
            both = backend.evaluated_models(progress.state)
            for model, tree in zip(MODELS, both, strict=True):
                if model in improved and tree is not None:
                    chosen.keep(model, improved[model], tree)
        if "personal" in improved:
            backend.announce(progress.state, point.round)

    def _improved(self, progress: Progress[Any], point: Point) -> dict[Which, np.ndarray]:
        """By model, the seeds whose best round is this one; a model without any is omitted."""
        metric, found = progress.backend.plan.metrics[0], dict[Which, np.ndarray]()
        for model in MODELS:
            scores = point.scores.of(model).validation
            if scores is None:
                return {}
            values = scores.values[metric.name]
            now = np.where(np.isnan(values), -np.inf, values if metric.higher_is_better else -values)
            better = now > self._best[model] if model in self._best else np.ones(len(now), bool)
            self._best[model] = np.where(better, now, self._best.get(model, now))
            progress.chosen = progress.chosen or ChosenRounds()
            rounds = progress.chosen.rounds.get(model, np.zeros(len(now), int))
            progress.chosen.rounds[model] = np.where(better, point.round, rounds)
            if better.any():
                found[model] = better
        return found

    def on_end(self, run: Run[Any]) -> None:
        """Tells clients that keep their own models which round was chosen."""
        if run.chosen is not None and not run.stopped:
            run.backend.announce(run.state, int(run.chosen.rounds["personal"][0]), last=True)
