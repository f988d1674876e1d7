"""A classifier for each client of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import scipy.special
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets

from pfedbred.errors import SettingError
from pfedbred.estimators.base import PersonalizedEstimator


class PersonalizedClassifier(ClassifierMixin, PersonalizedEstimator):  # type: ignore[misc]
    """A classifier for each client of a table, P, and one for all of them, G.

    All rows are for training. A row is predicted by P of its client; by G if its client was not in training, or if no
    clients are given although training had some. Without clients in training, all rows belong to a single one.

    Args:
      algorithm: a name (``pfedbred list algorithms``) or an object, as in :func:`pfedbred.run`.
      model: the network, likewise; ``mclr`` is a logistic regression, ``dnn`` has a hidden layer.
      rounds: rounds of training.
      settings: settings of the algorithm.
      batch_size: samples in a minibatch.
      class_weight: relative weights of the classes in the loss, or ``balanced``.
      validation: fraction of each client's rows held out of training to choose the best round.
      standardise: standardise columns over ``all`` clients, per ``client``, or ``none``.
      missing: what fills gaps (NaN): the ``mean`` or ``median`` of the client's rows. By default gaps are an error.
      random_state: the seed; None for a new one each time.
      options: other fields of :class:`pfedbred.Experiment`, by name. Two defaults differ: every round averages all
        clients, and only the last one is evaluated unless ``validation`` is set.

    Attributes:
      classes_: the labels, in order.
      clients_: the names of the clients, in order.
      n_iter_: the number of rounds run.
      n_features_in_: number of columns.
      feature_names_in_: their names, if X had any.
      run_: the :class:`pfedbred.Run`; it is not pickled.

    Example:
      >>> import numpy as np, pfedbred
      >>> x, clients = np.array([[0.0], [1.0], [0.0], [1.0]]), ["a", "a", "b", "b"]
      >>> model = pfedbred.PersonalizedClassifier(algorithm="local", rounds=50, settings={"alpha": 0.1})
      >>> model.fit(x, ["no", "yes", "yes", "no"], clients=clients).predict(x, clients=clients).tolist()
      ['no', 'yes', 'yes', 'no']
    """

    classes_: np.ndarray

    def __init__(
        self,
        *,
        algorithm: Any = "ditto",
        model: Any = "mclr",
        rounds: int = 100,
        settings: Mapping[str, Any] | None = None,
        batch_size: int = 20,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        validation: float | None = None,
        standardise: Literal["all", "client", "none"] = "all",
        missing: Literal["mean", "median"] | None = None,
        random_state: Any = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            algorithm=algorithm,
            model=model,
            rounds=rounds,
            settings=settings,
            batch_size=batch_size,
            validation=validation,
            standardise=standardise,
            missing=missing,
            random_state=random_state,
            options=options,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, *, clients: Any = None) -> PersonalizedClassifier:
        """Trains on rows X with labels y, and the name of each row's client."""
        x, y = self._read(X, y, reset=True)
        check_classification_targets(y)
        self.classes_, label = np.unique(y, return_inverse=True)
        weights = self._class_weights(label)
        self._train(x, label, clients, len(self.classes_), "classification", class_weights=weights)
        outputs = self._models.scores(x[:1], np.zeros(1, np.int64)).shape[1]
        if outputs < len(self.classes_):
            raise SettingError(f"y has {len(self.classes_)} labels, but the network has {outputs} outputs")
        return self

    def _class_weights(self, label: np.ndarray) -> list[float] | str | None:
        """The weight of each class, scaled to 1 for the average row so that steps are as long as without weights."""
        given = self.class_weight
        if given is None or given == "balanced":
            return given
        if not isinstance(given, Mapping):
            raise SettingError(f"class_weight must be 'balanced' or map labels to weights, not {given!r}")
        known = self.classes_.tolist()
        for name in (name for name in given if name not in known):
            raise SettingError(f"class_weight has the label {name!r}, which is not in y")
        weights = np.array([float(given.get(name, 1.0)) for name in known])
        total = weights[label].sum()
        if not (weights >= 0).all() or not 0 < total < np.inf:
            raise SettingError(f"class_weight must be numbers >= 0 and not all 0, not {dict(given)!r}")
        return [float(each) for each in weights * len(label) / total]

    def predict_proba(self, X: Any, *, clients: Any = None) -> np.ndarray:
        """The probability of each class, in the order of ``classes_``; calibrated if ``coverage`` is in the options."""
        return scipy.special.softmax(self._logits(X, clients), axis=1)

    def predict(self, X: Any, *, clients: Any = None) -> np.ndarray:
        """The most likely label of each row."""
        label = self._logits(X, clients).argmax(axis=1)
        return self.classes_[label]

    def score(self, X: Any, y: Any, sample_weight: Any = None, *, clients: Any = None) -> float:
        """The accuracy on rows X with labels y."""
        return float(accuracy_score(y, self.predict(X, clients=clients), sample_weight=sample_weight))

    def _logits(self, X: Any, clients: Any) -> np.ndarray:
        """Calibrated logits of the classes; a network may have more outputs than classes."""
        x, number = self._placed(X, clients)
        scores = self._models.scores(x, number)[:, : len(self.classes_)]
        return scores / self._models.temperature[number][:, None]
