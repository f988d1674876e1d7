"""The result of a run in this process: its evaluations, its models, and what ran it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np

from pfedbred.data.federation import client_number
from pfedbred.engine.backend import Backend
from pfedbred.engine.history import Part, Point, Which, curve
from pfedbred.engine.scores import Evaluation, ModelScores
from pfedbred.engine.screening import Rejections
from pfedbred.errors import SettingError
from pfedbred.experiment import references
from pfedbred.experiment.configuration import Experiment
from pfedbred.runs.calibration import RunCalibration
from pfedbred.runs.chosen import ChosenRounds
from pfedbred.runs.record import LETTERS, RunRecord
from pfedbred.runs.summary import summary
from pfedbred.runs.trained_model import TrainedModel
from pfedbred.types import Tree

if TYPE_CHECKING:
    from pfedbred.experiment.saving import Models

S = TypeVar("S")
When = Literal["chosen", "last"]


@dataclass(repr=False)
class Run(Generic[S]):
    """A run that has ended, by itself or because it was stopped.

    Attributes:
      experiment: what was run, every default filled in.
      backend: what ran it.
      state: the backend's, at the end.
      points: its evaluations, in order.
      round: the last round.
      compile_seconds: time spent compiling.
      round_seconds: time of one round, training only, for each stretch between evaluations.
      total_seconds: total time.
      newcomers: evaluations of the held-out clients after 0, 1, 2, ... rounds of local training; None without any.
      stopped: why it was interrupted before its last round, to be resumed; None if it was not.
      finished_early: why it was complete before its last round; None if it was not.
      diverged: the round at which all seeds were found to have diverged, where the run ended; None if they did not.
      folder: the run folder, if it has one.
      chosen: the rounds chosen on validation samples, and their models; None without such samples.
      calibration: of the chosen models; None without ``coverage``, or if the run diverged.
      ensemble: the scores of each client's ensemble of all seeds, as if it were one seed, at the chosen rounds or else
        the last; None without ``posterior="ensemble"``.
    """

    experiment: Experiment
    backend: Backend[S]
    state: S
    points: list[Point]
    round: int
    compile_seconds: float
    round_seconds: list[float]
    total_seconds: float
    newcomers: list[Evaluation] | None = None
    stopped: str | None = None
    finished_early: str | None = None
    diverged: int | None = None
    folder: Path | None = None
    chosen: ChosenRounds | None = None
    calibration: RunCalibration | None = None
    ensemble: ModelScores | None = None
    _models: Models | None = field(default=None, init=False)

    def __repr__(self) -> str:
        """One line: what was run, and how well it did at the end."""
        experiment, data = self.experiment, self.backend.federation
        found = ""
        if self.points:
            metric, scores = self.backend.plan.metrics[0], self.points[-1].scores
            means = {letter: float(np.mean(scores.of(model).test.values[metric.name])) for letter, model in LETTERS}
            figures = [f"{k} {100 * v:.2f} %" if metric.percent else f"{k} {v:.4g}" for k, v in means.items()]
            found = f": test {metric.title} {', '.join(figures)}"
        rounds = f"{self.round} of {experiment.rounds} rounds"
        return f"Run({experiment.algorithm_name} on {data.name}, {experiment.model_name}, {rounds}{found})"

    def _repr_html_(self) -> str:
        """For notebooks: the line, and the picture."""
        from pfedbred.experiment.saving import as_html

        return as_html(self)

    @property
    def rejections(self) -> Rejections:
        """Whose updates were rejected, and how many rounds were skipped, in the whole run."""
        return self.backend.rejections(self.state)

    def curve(self, metric: str, model: Which, part: Part = "test") -> np.ndarray:
        """A metric by evaluation and seed."""
        return curve(self.points, metric, model, part)

    def accuracy(self, model: Which, part: Part = "test") -> np.ndarray:
        """Accuracy by evaluation and seed."""
        return self.curve("accuracy", model, part)

    def global_model(self, seed: int = 0, *, at: When | None = None) -> Tree:
        """The params of G, for the seed at that position: of the chosen round if there is one, else of the last."""
        last = self.backend.global_model(self.state, seed)
        return self._whole(self._kept("global", (seed,), last) if self._is_chosen(at) else last)

    def personal_model(self, client: int | str, seed: int = 0, *, at: When | None = None) -> Tree:
        """The params of a client's P, by its number or name, for the seed at that position: of the same round."""
        if isinstance(client, str):
            data = self.backend.federation
            client = client_number(client, data.names or [str(number) for number in range(data.clients)])
        last = self.backend.personal_model(self.state, client, seed)
        return self._whole(self._kept("personal", (seed, client), last) if self._is_chosen(at) else last)

    def trained(self, client: int | str | None = None, seed: int | None = None) -> TrainedModel:
        """A client's P, by its number or name, or G: as :func:`pfedbred.load_model` would load it from a file.

        ``seed`` is a position, by default the first; a P that is an ensemble is of all seeds.
        """
        if self._models is None:
            from pfedbred.experiment.saving import Models  # which writes and reads them

            self._models = Models(self)
        if seed is not None and not 0 <= seed < self.experiment.seeds:
            raise SettingError(f"seed must be a position from 0 to {self.experiment.seeds - 1}, not {seed}")
        return self._models.get(client, seed)

    def predict(self, x: Any, client: int | str | None = None, seed: int | None = None) -> list[Any]:
        """Labels or numbers for samples as the data holds them, by a client's P, or by G if no client is given.

        A row of a table is its cells, or a mapping by the columns' names; texts are texts.

        Example:
          >>> import pfedbred
          >>> data = pfedbred.load("digits", clients=10)
          >>> result = pfedbred.run(federation=data, rounds=2)
          >>> len(result.predict(data.test.x[:3], client=0))
          3
        """
        return self.trained(client, seed).predict(x)

    def probabilities(self, x: Any, client: int | str | None = None, seed: int | None = None) -> np.ndarray:
        """(n, labels) the probability of each label, from the same model; calibrated if the run has ``coverage``."""
        return self.trained(client, seed).probabilities(x, calibrated=self.calibration is not None)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Writes the run into a folder that ``pfedbred report``, ``export`` and ``predict`` read; returns it."""
        from pfedbred.experiment.saving import save

        return save(self, Path(folder), overwrite)

    def table(self, *, pandas: bool = False) -> Any:
        """Every figure of every evaluation: a mapping for each, or all as a pandas DataFrame.

        Their keys are round, seed, model (G or P), part (of the samples), metric and value.
        """
        rows = [
            {"round": point.round, "seed": seed, "model": letter, "part": part, "metric": name, "value": float(value)}
            for point in self.points
            for letter, model in LETTERS
            for part, scores in point.scores.of(model).parts.items()
            for name, values in scores.values.items()
            for seed, value in zip(self.experiment.seed_list, values, strict=True)
        ]
        if not pandas:
            return rows
        import pandas as pd  # an optional dependency

        return pd.DataFrame(rows)

    def _whole(self, trained: Tree) -> Tree:
        """With the params that no client trained."""
        return self.backend.task.model.whole(trained)

    def _is_chosen(self, at: When | None) -> bool:
        if at not in (None, "chosen", "last"):
            raise SettingError(f"at must be 'chosen' or 'last', not {at!r}")
        if at == "chosen" and self.chosen is None:
            raise SettingError("no round was chosen: keep samples to choose one by with validation=0.2")
        return at == "chosen" or (at is None and self.chosen is not None)

    def _kept(self, model: Which, place: tuple[int, ...], like: Tree) -> Tree:
        assert self.chosen is not None
        if self.chosen.models is None:
            raise SettingError("the models of the chosen round were not kept: give keep_models=True, or at='last'")
        return self.chosen.tree(model, place, like)

    def record(self) -> RunRecord:
        """The run as it would be read from its folder."""
        experiment, backend = self.experiment, self.backend
        evaluated, participated = backend.evaluated, backend.participated(self.state)
        content = summary(
            names={
                "algorithm": experiment.algorithm_name,
                "dataset": references.object_name(experiment.dataset)
                if isinstance(experiment.dataset, str) or callable(experiment.dataset)
                else backend.federation.name,
                "model": experiment.model_name,
            },
            experiment=experiment.plain(),
            data=backend.federation.facts,
            points=self.points,
            metrics=backend.plan.metrics,
            seconds={
                "compile": self.compile_seconds,
                "round": float(np.median(self.round_seconds)) if self.round_seconds else 0.0,
                "total": self.total_seconds,
            },
            chunk=backend.plan.chunk,
            rejections=self.rejections,
            diverged=self.diverged,
            finished_early=self.finished_early,
            newcomers=self.newcomers,
            calibration=None if self.calibration is None else self.calibration.content(),
            ensemble=self.ensemble,
            evaluated=None
            if evaluated is None
            else {"clients": len(evaluated), "took_part": participated, "numbers": evaluated.tolist()},
        )
        return RunRecord(content, self.points)
