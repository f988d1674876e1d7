"""The models of a fitted estimator: G and every P as arrays, and how they predict. They can be pickled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from pfedbred.data.columns import Encoding
from pfedbred.data.federation import Federation, Split
from pfedbred.engine import Simulated
from pfedbred.estimators.row_clients import UNKNOWN
from pfedbred.experiment.building import make_algorithm
from pfedbred.experiment.configuration import Experiment, field_names
from pfedbred.experiment.result import Run
from pfedbred.experiment.task import make_task
from pfedbred.tasks import Target
from pfedbred.types import Array, Tree

_BLOCK = 256  # rows predicted at a time: one shape for any table, compiled once

ComputeScores = Callable[[Tree, np.ndarray], Array]


@dataclass
class FittedModels:
    """The models of a run on a table.

    Attributes:
      options: the experiment's options that decide how models predict.
      encoding: how the cells of a row become inputs.
      classes: number of classes; 1 if numbers are predicted.
      target: how numbers are standardised, if numbers are predicted.
      global_: the params of G.
      personal: the params of P, with clients along the first axis.
      temperature: the divisor of the logits of each client's P and, as last entry, of G; 1 if not calibrated.
    """

    options: dict[str, Any]
    encoding: Encoding
    classes: int
    target: Target | None
    global_: Tree
    personal: Tree
    temperature: np.ndarray
    _scores: ComputeScores | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, run: Run[Simulated]) -> FittedModels:
        """The models of a run: of the chosen round if there is one, else of the last."""
        backend = run.backend
        federation = backend.federation
        assert federation.encoding is not None
        both = backend.models(run.state)
        assert both is not None
        global_, personal = (jax.tree.map(lambda leaf: leaf[0], each) for each in both)  # of the only seed
        if run.chosen is not None:
            global_, personal = run.chosen.tree("global", (0,), global_), run.chosen.tree("personal", (0,), personal)
        temperature = np.ones(federation.clients + 1)
        if run.calibration is not None:
            of_g, of_p = (run.calibration.fitted[each][0].temperature for each in ("global", "personal"))
            temperature = np.append(of_p[:-1], of_g[-1])
        return cls(
            options={name: getattr(run.experiment, name) for name in field_names(predicts=True)},
            encoding=federation.encoding,
            classes=federation.classes,
            target=backend.task.target,
            global_=jax.device_get(global_),
            personal=jax.device_get(personal),
            temperature=temperature,
        )

    def scores(self, x: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Logits of each row, or numbers in the units of the labels.

        Args:
          x: rows of numbers, as the columns of the table.
          number: the number of each row's client, whose P is used; unknown clients get G.
        """
        order, parts = np.argsort(number, kind="stable"), []
        for rows in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
            client = int(number[rows[0]])
            known = client != UNKNOWN
            inputs = self.encoding.encode(x[rows], client if known else None)
            model = jax.tree.map(lambda leaf, i=client: leaf[i], self.personal) if known else self.global_
            parts += [self._block(model, inputs[i : i + _BLOCK]) for i in range(0, len(rows), _BLOCK)]
        found = np.concatenate(parts)
        ordered = np.empty_like(found)
        ordered[order] = found
        return ordered

    def _block(self, model: Tree, inputs: np.ndarray) -> np.ndarray:
        """The scores of at most ``_BLOCK`` rows, padded with zeros for the computation."""
        if self._scores is None:
            self._scores = self._compiled()
        filled = np.zeros((_BLOCK, inputs.shape[1]), inputs.dtype)
        filled[: len(inputs)] = inputs
        return np.asarray(self._scores(model, filled))[: len(inputs)]

    def _compiled(self) -> ComputeScores:
        """The prediction function of the run's algorithm, built as for the run."""
        experiment, inputs = Experiment(**self.options), len(self.encoding.names)
        y = np.zeros(1, np.float32 if self.target else np.int32)
        one = Split(np.zeros((1, inputs), np.float32), y, np.array([0, 1]))
        like = Federation("table", one, one, self.classes, task=experiment.kind.name)
        task = make_task(experiment, like, self.target)
        algorithm = make_algorithm(experiment, task, like)
        return jax.jit(lambda model, x: task.scores(algorithm.predict(model, x)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scores": None}
