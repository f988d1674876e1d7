"""What both estimators share: their parameters, training on a table, and the scores of rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from pfedbred.data.columns import DataColumn
from pfedbred.data.columns import numbers_of as numbers_of_cells
from pfedbred.engine import Simulated
from pfedbred.errors import SettingError
from pfedbred.estimators.fitted import FittedModels
from pfedbred.estimators.frames import is_frame, numbered
from pfedbred.estimators.row_clients import ALONE, UNKNOWN, distinct, numbers_of, read_clients
from pfedbred.estimators.table import table_federation
from pfedbred.experiment.configuration import Experiment, field_names
from pfedbred.experiment.result import Run
from pfedbred.experiment.run import run
from pfedbred.settings.values import LARGEST_FLOAT

_MOST_SEED = 2**32 - 1


class PersonalizedEstimator(BaseEstimator):  # type: ignore[misc]
    """A model for each client of a table, and one for all: the base of the classifier and the regressor."""

    _columns: Sequence[DataColumn] | None
    _models: FittedModels
    clients_: list[Any]
    n_iter_: int
    run_: Run[Simulated]

    def __init__(
        self,
        *,
        algorithm: Any = "ditto",
        model: Any = "mclr",
        rounds: int = 100,
        settings: Mapping[str, Any] | None = None,
        batch_size: int = 20,
        validation: float | None = None,
        standardise: Literal["all", "client", "none"] = "all",
        missing: Literal["mean", "median"] | None = None,
        random_state: Any = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.model = model
        self.rounds = rounds
        self.settings = settings
        self.batch_size = batch_size
        self.validation = validation
        self.standardise = standardise
        self.missing = missing
        self.random_state = random_state
        self.options = options

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing is not None
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """The state without the run, whose compiled programs cannot be pickled."""
        return {name: value for name, value in super().__getstate__().items() if name != "run_"}

    def _read(self, X: Any, y: Any = None, *, reset: bool, **how: Any) -> Any:
        """Rows as numbers, and y in training, validated by scikit-learn with its error messages."""
        columns = None if reset else self._models.encoding.columns
        if is_frame(X):
            X, columns = numbered(X, columns)
        elif columns is not None and any(column.categories is not None for column in columns):
            X = numbers_of_cells(columns, X, "X")
        if reset:
            self._columns = columns
        given = {"X": X, "y": y} if reset else {"X": X}
        finite: Any = True if self.missing is None else "allow-nan"
        found = validate_data(self, **given, reset=reset, dtype=np.float64, ensure_all_finite=finite, **how)
        for name, values in zip(given, found if reset else (found,), strict=True):
            if values.dtype.kind == "f" and np.any(np.abs(values) > LARGEST_FLOAT):
                raise SettingError(
                    f"{name} has numbers beyond {LARGEST_FLOAT:g}, too large for 32-bit numbers: scale it"
                )
        return found

    def _train(self, x: np.ndarray, y: np.ndarray, clients: Any, classes: int, task: str, **decided: Any) -> None:
        """Trains on validated rows."""
        names = [ALONE] * len(x) if clients is None else read_clients(clients, len(x))
        self._has_clients = clients is not None
        self.clients_ = distinct(names)
        columns = self._columns or [DataColumn(f"x{place}") for place in range(x.shape[1])]
        federation = table_federation(
            x,
            y,
            numbers_of(names, self.clients_),
            self.clients_,
            classes=classes,
            task=task,
            columns=columns,
            standardise=self._one_of("standardise", ("all", "client", "none")),
            missing=self._one_of("missing", (None, "mean", "median")),
        )
        finished = run(federation=federation, keep_models=True, **self._experiment(len(self.clients_)), **decided)
        if finished.diverged is not None:
            raise SettingError(
                f"training diverged by round {finished.diverged}: take smaller steps, as with "
                "settings={'alpha': 0.001}"
            )
        self.run_ = finished
        self.n_iter_ = finished.round
        self._models = FittedModels.of(finished)

    def _one_of(self, name: str, allowed: tuple[Any, ...]) -> Any:
        value = getattr(self, name)
        if value not in allowed:
            raise SettingError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
        return value

    def _experiment(self, clients: int) -> dict[str, Any]:
        """The options of the run. By default all clients are averaged in every round, and evaluations are rare."""
        given = {} if self.options is None else self.options
        if not isinstance(given, Mapping):
            raise SettingError(f"options must map names to values, not {given!r}")
        refused = {**_DECIDED, **dict.fromkeys(self.get_params(deep=False), "it is a parameter of the estimator")}
        for name in (name for name in given if name in refused):
            raise SettingError(f"options cannot have {name!r}: {refused[name]}")
        return {
            **({} if "select" in given else {"aggregated": clients}),
            "eval_every": self.rounds if self.validation is None else 1,
            **given,
            "algorithm": self.algorithm,
            "model": self.model,
            "rounds": self.rounds,
            "settings": {} if self.settings is None else self.settings,
            "batch_size": self.batch_size,
            "validation": self.validation,
            "seed": self._seed(),
        }

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            if not 0 <= self.random_state <= _MOST_SEED:
                raise SettingError(f"random_state must be from 0 to {_MOST_SEED}, not {self.random_state}")
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(_MOST_SEED, dtype=np.uint32))

    def _placed(self, X: Any, clients: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rows to predict, and for each the number of the client whose P predicts it; unknown clients get G."""
        check_is_fitted(self)
        x = self._read(X, reset=False)
        if clients is None:
            return x, np.full(len(x), UNKNOWN if self._has_clients else 0)
        return x, numbers_of(read_clients(clients, len(x)), self.clients_)


_DECIDED = {
    **dict.fromkeys(field_names(load=True), "the table decides it"),
    **{each.name: each.metadata["unfit"] for each in dataclasses.fields(Experiment) if each.metadata["unfit"]},
}
"""The options of an experiment that an estimator refuses, and why."""
