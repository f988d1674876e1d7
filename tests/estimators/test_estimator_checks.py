"""scikit-learn's own checks of what every estimator promises: all of them, without exceptions."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from pfedbred import PersonalizedClassifier, PersonalizedRegressor

pytestmark = pytest.mark.full
QUICK = {"rounds": 20, "settings": {"alpha": 0.1}}


@parametrize_with_checks([PersonalizedClassifier(**QUICK), PersonalizedRegressor(**QUICK)])
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)
