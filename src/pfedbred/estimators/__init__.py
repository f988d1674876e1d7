"""Estimators in the style of scikit-learn, for tables whose rows belong to clients."""

from pfedbred.estimators.classifier import PersonalizedClassifier
from pfedbred.estimators.regressor import PersonalizedRegressor

__all__ = ["PersonalizedClassifier", "PersonalizedRegressor"]
