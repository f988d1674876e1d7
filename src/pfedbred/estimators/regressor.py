"""A regression for each client of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from pfedbred.data.labels import read_labels
from pfedbred.estimators.base import PersonalizedEstimator
from pfedbred.estimators.table import NAME


class PersonalizedRegressor(RegressorMixin, PersonalizedEstimator):  # type: ignore[misc]
    """A regression for each client of a table, P, and one for all of them, G; in the units of y.

    All rows are for training. A row is predicted by P of its client; by G if its client was not in training, or if no
    clients are given although training had some. Without clients in training, all rows belong to a single one.

    Args:
      algorithm: a name (``pfedbred list algorithms``) or an object, as in :func:`pfedbred.run`.
      model: the network, likewise; ``mclr`` is a linear regression, ``dnn`` has a hidden layer.
      rounds: rounds of training.
      settings: settings of the algorithm.
      batch_size: samples in a minibatch.
      validation: fraction of each client's rows held out of training to choose the best round.
      standardise: standardise columns over ``all`` clients, per ``client``, or ``none``. y is always standardised over
        all.
      missing: what fills gaps (NaN): the ``mean`` or ``median`` of the client's rows. By default gaps are an error.
      random_state: the seed; None for a new one each time.
      options: other fields of :class:`pfedbred.Experiment`, by name, such as ``{"loss": "huber"}``. Two defaults
        differ: every round averages all clients, and only the last one is evaluated unless ``validation`` is set.

    Attributes:
      clients_: the names of the clients, in order.
      n_iter_: the number of rounds run.
      n_features_in_: number of columns.
      feature_names_in_: their names, if X had any.
      run_: the :class:`pfedbred.Run`; it is not pickled.
    """

    def fit(self, X: Any, y: Any, *, clients: Any = None) -> PersonalizedRegressor:
        """Trains on rows X with numbers y, and the name of each row's client."""
        x, y = self._read(X, y, reset=True, y_numeric=True)
        self._train(x, read_labels(y, "regression", NAME).y, clients, 1, "regression")
        return self

    def predict(self, X: Any, *, clients: Any = None) -> np.ndarray:
        """The predicted number of each row."""
        x, number = self._placed(X, clients)
        return self._models.scores(x, number).astype(np.float64)

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, clients: Any = None) -> float:
        """The coefficient of determination, R2, on rows X with numbers y."""
        return float(r2_score(y, self.predict(X, clients=clients), sample_weight=sample_weight))
