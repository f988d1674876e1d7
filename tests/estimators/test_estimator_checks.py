"""scikit-learn's own checks of what every estimator promises: all of them, without exceptions."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from pfedbred import PersonalizedClassifier, PersonalizedRegressor

QUICK = {"rounds": 20, "settings": {"alpha": 0.1}}


@pytest.mark.full
@pytest.mark.few_cases(12)
@parametrize_with_checks([PersonalizedClassifier(**QUICK)])
def test_checks_of_classifiers(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([PersonalizedRegressor(**QUICK)])
def test_checks_of_regressors(estimator, check):
    check(estimator)
