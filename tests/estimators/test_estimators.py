"""The estimators: their predictions are those of the run's models, computed here by NumPy."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import scipy.special
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pfedbred
from pfedbred import PersonalizedClassifier, PersonalizedRegressor, models
from pfedbred.errors import SettingError

SIGNS = {"north": 1, "south": -1, "west": 1}
FAST = {"algorithm": "ditto", "rounds": 10, "settings": {"alpha": 0.1, "lam": 0.1, "R": 5, "R_personal": 5}}

pytestmark = pytest.mark.full


def make_table(rows=90, seed=0):
    """The label follows the first column, in the south the other way round; the second column says nothing."""
    rng = np.random.default_rng(seed)
    x = rng.normal([10.0, -3.0], [2.0, 0.5], (rows, 2))
    clients = np.array(list(SIGNS))[rng.integers(0, 3, rows)]
    up = (x[:, 0] - 10) * np.vectorize(SIGNS.get)(clients) > 0
    return x, np.where(up, "up", "down"), clients


def standardised(x, by):
    return (x - by.mean(0)) / by.std(0)


def linear(params, z):
    return z @ np.asarray(params["output"]["weight"]).T + np.asarray(params["output"]["bias"])


@pytest.fixture(scope="module")
def fitted():
    x, y, clients = make_table()
    return PersonalizedClassifier(**FAST).fit(x, y, clients=clients)


def by_hand(model, x, clients, train_x):
    """The probabilities, with the params of the run's own models."""
    run, names = model.run_, model.clients_
    params = [run.personal_model(names.index(each)) if each in names else run.global_model() for each in clients]
    z = standardised(x, train_x)
    return np.stack([scipy.special.softmax(linear(own, row)) for own, row in zip(params, z, strict=True)])


def test_rows_are_predicted_by_their_clients_models_and_those_of_others_by_g(fitted):
    train_x, _, _ = make_table()
    x, y, clients = make_table(seed=1)
    clients = np.where(np.arange(len(x)) % 10 == 0, "east", clients)
    found = fitted.predict_proba(x, clients=clients)
    np.testing.assert_allclose(found, by_hand(fitted, x, clients, train_x), atol=1e-6)
    np.testing.assert_array_equal(fitted.predict(x, clients=clients), fitted.classes_[found.argmax(1)])
    known = clients != "east"
    assert fitted.score(x[known], y[known], clients=clients[known]) > 0.9
    everyone = by_hand(fitted, x, ["east"] * len(x), train_x)
    np.testing.assert_allclose(fitted.predict_proba(x), everyone, atol=1e-6)
    assert fitted.score(x, y) < 0.8


def test_what_is_known_after_fit(fitted):
    assert fitted.classes_.tolist() == ["down", "up"]
    assert fitted.clients_ == ["north", "south", "west"]
    assert (fitted.n_features_in_, fitted.n_iter_) == (2, 10)
    assert isinstance(fitted.run_, pfedbred.Run)
    assert fitted.run_.backend.federation.names == ("north", "south", "west")
    assert len(fitted.run_.backend.federation.test.y) == 0
    assert len(fitted.run_.points) == 1


def test_the_models_are_those_of_a_run_on_the_same_federation(fitted):
    x, y, clients = make_table()
    z, label = standardised(x, x).astype(np.float32), (y == "up").astype(int)
    train = [(z[clients == each], label[clients == each]) for each in SIGNS]
    federation = pfedbred.from_clients(train, [(z[:0], label[:0])] * 3)
    run = pfedbred.run(federation=federation, aggregated=3, **FAST)
    for client in range(3):
        one, other = run.personal_model(client), fitted.run_.personal_model(client)
        np.testing.assert_allclose(one["output"]["weight"], other["output"]["weight"], atol=1e-5)
    assert not np.allclose(run.personal_model(0)["output"]["weight"], run.personal_model(1)["output"]["weight"], 0.1)


def test_without_clients_all_rows_are_of_one():
    x, y, clients = make_table()
    north = clients == "north"
    model = PersonalizedClassifier(**FAST).fit(x[north], y[north])
    assert model.clients_ == ["all"]
    expected = by_hand(model, x, ["all"] * len(x), x[north])
    np.testing.assert_allclose(model.predict_proba(x), expected, atol=1e-6)
    np.testing.assert_array_equal(model.predict_proba(x, clients=["all"] * len(x)), model.predict_proba(x))


@pytest.mark.parametrize(
    ("clients", "known"),
    [
        (lambda names: [{"north": 7, "south": -1, "west": 3}[each] for each in names], [-1, 3, 7]),
        (lambda names: [(each, 0) for each in names], [("north", 0), ("south", 0), ("west", 0)]),
        (lambda names: [{"north": 7, "south": "7", "west": 3}[each] for each in names], [7, "7", 3]),
    ],
    ids=["numbers", "tuples", "mixed"],
)
def test_clients_and_labels_of_any_kind(fitted, clients, known):
    """The same models, whatever clients and labels are called."""
    x, y, names = make_table()
    given, label = clients(names), np.where(y == "up", -5, -10)
    model = PersonalizedClassifier(**FAST).fit(x, label, clients=given)
    assert set(model.clients_) == set(known)
    if len({type(each) for each in known}) == 1:
        assert model.clients_ == known
    assert model.classes_.tolist() == [-10, -5]
    agree = model.predict(x, clients=given) == np.where(fitted.predict(x, clients=names) == "up", -5, -10)
    assert agree.mean() > 0.9  # other numbers of the clients, other minibatches


def test_any_number_of_rows_is_predicted_row_by_row(fitted):
    """Across the blocks in which rows are predicted."""
    x, _, clients = make_table(rows=1500, seed=2)
    found = fitted.predict_proba(x, clients=clients)
    for places in ([0], [1499], range(200, 300)):
        some = np.array(places)
        np.testing.assert_array_equal(fitted.predict_proba(x[some], clients=clients[some]), found[some])


def test_a_copy_predicts_the_same_without_the_run(fitted):
    x, _, clients = make_table(seed=1)
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.predict_proba(x, clients=clients), fitted.predict_proba(x, clients=clients))
    assert not hasattr(copy, "run_")
    assert hasattr(fitted, "run_")


PROGRAM = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    model, x, clients, expected = pickle.load(file)
assert abs(model.predict_proba(x, clients=clients) - expected).max() < 1e-6
assert abs(model.predict_proba(x) - expected).max() > 1e-3
"""


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["learned-prior", "fedem"])
def test_another_process_predicts_the_same(algorithm, tmp_path):
    """Also with models that are more than the params of one network."""
    x, y, clients = make_table()
    options = {"posterior": "laplace"} if algorithm == "learned-prior" else None
    model = PersonalizedClassifier(algorithm=algorithm, model="dnn", rounds=3, options=options)
    expected = model.set_params(settings={"alpha": 0.1}).fit(x, y, clients=clients).predict_proba(x, clients=clients)
    file = tmp_path / "model.pkl"
    file.write_bytes(pickle.dumps((model, x, clients, expected)))
    subprocess.run([sys.executable, "-c", PROGRAM, str(file)], check=True)


def test_parameters_can_be_read_set_and_cloned():
    model = PersonalizedClassifier(algorithm="pfedme", settings={"lam": 5.0}, class_weight="balanced")
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(rounds=3).rounds == 3
    assert "class_weight" in model.get_params()
    assert "class_weight" not in PersonalizedRegressor().get_params()


def make_numbers(rows=90):
    """y in thousands, with a slope of each client's own."""
    x, _, clients = make_table(rows)
    return x, 5000 + 300 * np.vectorize(SIGNS.get)(clients) * (x[:, 0] - 10), clients


def test_numbers_are_predicted_in_their_own_units():
    x, y, clients = make_numbers()
    model = PersonalizedRegressor(**FAST).fit(x, y, clients=clients)
    found, z = model.predict(x, clients=clients), standardised(x, x)
    for number, name in enumerate(model.clients_):
        own = clients == name
        expected = linear(model.run_.personal_model(number), z[own])[:, 0] * y.std() + y.mean()
        np.testing.assert_allclose(found[own], expected, rtol=1e-5)
    assert model.score(x, y, clients=clients) > 0.95
    np.testing.assert_allclose(
        model.predict(x), linear(model.run_.global_model(), z)[:, 0] * y.std() + y.mean(), rtol=1e-5
    )
    assert model.score(x, y) < 0.5


def test_validation_rows_choose_the_round():
    x, y, clients = make_table()
    model = PersonalizedClassifier(**FAST, validation=0.3).fit(x, y, clients=clients)
    federation, run = model.run_.backend.federation, model.run_
    assert len(federation.validation.y) == sum(round(0.3 * np.sum(clients == each)) for each in SIGNS)
    assert len(run.points) == 10
    z = federation.encoding.encode(x[:20], None)
    np.testing.assert_allclose(
        model.predict_proba(x[:20]), scipy.special.softmax(linear(run.global_model(at="chosen"), z), 1), atol=1e-6
    )
    biases = [run.global_model(at=when)["output"]["bias"] for when in ("chosen", "last")]
    assert not np.allclose(*biases)


def test_probabilities_are_calibrated_by_validation_rows():
    x, y, clients = make_table()
    model = PersonalizedClassifier(**FAST, validation=0.3, options={"coverage": 0.8}).fit(x, y, clients=clients)
    fitted, encoding = model.run_.calibration.fitted, model.run_.backend.federation.encoding
    for given, params, temperature in [
        (["south"] * 20, model.run_.personal_model(1), fitted["personal"][0].temperature[1]),
        (None, model.run_.global_model(), fitted["global"][0].temperature[-1]),
    ]:
        logits = linear(params, encoding.encode(x[:20]))
        expected = scipy.special.softmax(logits / temperature, axis=1)
        np.testing.assert_allclose(model.predict_proba(x[:20], clients=given), expected, atol=1e-6)
        assert not np.allclose(expected, scipy.special.softmax(logits, axis=1), atol=1e-2)


def test_gaps_are_filled_with_the_clients_own_mean():
    x, y, clients = make_table()
    model = PersonalizedClassifier(**FAST, missing="mean").fit(x, y, clients=clients)
    gap, filled = np.array([[np.nan, -3.0]]), np.array([[x[clients == "south", 0].mean(), -3.0]])
    np.testing.assert_array_equal(
        model.predict_proba(gap, clients=["south"]), model.predict_proba(filled, clients=["south"])
    )
    filled = np.array([[x[:, 0].mean(), -3.0]])
    np.testing.assert_array_equal(model.predict_proba(gap), model.predict_proba(filled))


def test_columns_can_be_standardised_by_each_client():
    x, y, clients = make_table()
    model = PersonalizedClassifier(**FAST, standardise="client").fit(x, y, clients=clients)
    own = clients == "south"
    expected = scipy.special.softmax(linear(model.run_.personal_model(1), standardised(x[own], x[own])), axis=1)
    np.testing.assert_allclose(model.predict_proba(x[own], clients=clients[own]), expected, atol=1e-6)


@pytest.mark.full
def test_the_seed_decides_the_models():
    x, y, clients = make_table()
    quick = {**FAST, "rounds": 1}

    def bias(state):
        model = PersonalizedClassifier(**quick, random_state=state).fit(x, y, clients=clients)
        return model.run_.experiment.seed, model.run_.global_model()["output"]["bias"].tolist()

    assert bias(3) == bias(np.int64(3))
    assert bias(3)[0] == 3
    assert bias(3)[1] != bias(4)[1]
    assert bias(np.random.RandomState(1)) == bias(np.random.RandomState(1))
    assert bias(None)[0] != bias(None)[0]


@pytest.mark.full
def test_weights_of_classes_are_relative():
    x, y, clients = make_table()
    weighted = {"up": 4.0, "down": 1.0}
    models = [
        PersonalizedClassifier(**FAST, class_weight={each: factor * weight for each, weight in weighted.items()})
        for factor in (1, 1000)
    ]
    found = [model.fit(x, y, clients=clients).predict_proba(x) for model in models]
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    plain = PersonalizedClassifier(**FAST).fit(x, y, clients=clients).predict_proba(x)
    assert (found[0][:, 1] > plain[:, 1]).mean() > 0.9
    weights = models[0].run_.experiment.class_weights
    assert np.mean([weights[label] for label in (y == "up").astype(int)]) == pytest.approx(1)


def test_columns_of_a_data_frame_are_known_by_name(fitted):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    x, y, clients = make_table()
    frame = pandas.DataFrame(x, columns=["dose", "age"])
    model = PersonalizedClassifier(**FAST).fit(frame, pandas.Series(y), clients=pandas.Series(clients))
    assert model.feature_names_in_.tolist() == ["dose", "age"]
    assert model.run_.backend.federation.features == ("dose", "age")
    found = model.predict_proba(frame, clients=pandas.Series(clients))
    np.testing.assert_array_equal(found, fitted.predict_proba(x, clients=clients))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["age", "dose"]], clients=clients)


@pytest.mark.full
def test_a_search_and_a_pipeline_pass_the_clients_on():
    x, y, clients = make_table()
    model = PersonalizedClassifier(**FAST)
    pipeline = make_pipeline(StandardScaler(), model).fit(x, y, personalizedclassifier__clients=clients)
    assert pipeline[-1].clients_ == sorted(SIGNS)
    assert np.mean(pipeline.predict(x, clients=clients) == y) > 0.9
    assert np.mean(pipeline.predict(x) == y) < 0.8
    with sklearn.config_context(enable_metadata_routing=True):
        routed = clone(model).set_fit_request(clients=True).set_score_request(clients=True)
        folds = [(np.arange(45), np.arange(45, 90)), (np.arange(45, 90), np.arange(45))]
        search = GridSearchCV(routed, {"settings": [{"alpha": 1e-6}, FAST["settings"]]}, cv=folds)
        search.fit(x, y, clients=clients)
    assert search.best_params_["settings"] == FAST["settings"]
    assert search.best_score_ > 0.8
    assert search.best_estimator_.clients_ == sorted(SIGNS)


@pytest.mark.full
def test_a_search_without_clients():
    x, y, clients = make_table()
    search = GridSearchCV(PersonalizedClassifier(**FAST), {"rounds": [1]}, cv=GroupKFold(2))
    search.fit(x, y, groups=clients)
    assert search.best_estimator_.clients_ == ["all"]


ROWS, LABELS = [[0.0], [1.0], [2.0]], [0, 1, 1]


@pytest.mark.parametrize(
    ("given", "clients", "message"),
    [
        ({}, ["a", "b"], "clients has 2 names, but X has 3 rows"),
        ({}, "abc", "clients must have one name for each row, not 'abc'"),
        ({}, 3, "clients must have one name for each row, not 3"),
        ({}, ["a", None, "b"], "the client of row 1 is missing"),
        ({}, np.array([1.0, 2.0, np.nan]), "the client of row 2 is missing"),
        ({}, [["a"], ["b"], ["c"]], r"clients must be names such as texts or numbers, not \['a'\] in row 0"),
        ({"standardise": "some"}, None, "standardise must be one of 'all', 'client', 'none', not 'some'"),
        ({"missing": "zero"}, None, "missing must be one of None, 'mean', 'median', not 'zero'"),
        ({"algorithm": "dito"}, None, "unknown algorithm 'dito'; did you mean 'ditto'"),
        ({"model": "tree"}, None, "unknown model 'tree'"),
        ({"model": lambda shape, _: models.mclr(shape, 1)}, None, "y has 2 labels, but the network has 1 outputs"),
        ({"rounds": 0}, None, "rounds must be"),
        ({"settings": {"lama": 1}}, None, "unknown setting 'lama'"),
        ({"settings": 3}, None, "settings must map names to values, not 3"),
        ({"options": 3}, None, "options must map names to values, not 3"),
        ({"options": {"stor": "file"}}, None, "unknown option 'stor'; did you mean 'store'"),
        ({"options": {"rounds": 3}}, None, "options cannot have 'rounds': it is a parameter of the estimator"),
        ({"options": {"missing": "mean"}}, None, "options cannot have 'missing': it is a parameter of the estimator"),
        ({"options": {"clients": 3}}, None, "options cannot have 'clients': the table decides it"),
        ({"options": {"seeds": 3}}, None, "options cannot have 'seeds': an estimator runs a single seed"),
        ({"class_weight": "even"}, None, "class_weight must be 'balanced' or map labels to weights, not 'even'"),
        ({"class_weight": {7: 2.0}}, None, "class_weight has the label 7, which is not in y"),
        ({"class_weight": {0: -2.0}}, None, "class_weight must be numbers >= 0 and not all 0"),
        ({"random_state": -1}, None, "random_state must be from 0 to 4294967295, not -1"),
        ({"validation": 0.01}, None, "validation = 0.01 keeps no sample of any client"),
    ],
)
def test_what_cannot_work_is_one_clear_line(given, clients, message):
    with pytest.raises(SettingError, match=message):
        PersonalizedClassifier(**{"algorithm": "fedavg", "rounds": 1, **given}).fit(ROWS, LABELS, clients=clients)


def test_rows_that_cannot_be_used_are_rejected(fitted):
    with pytest.raises(ValueError, match="Input X contains NaN"):
        PersonalizedClassifier().fit([[0.0], [np.nan], [2.0]], LABELS)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        fitted.predict([[0.0, np.nan]])
    with pytest.raises(ValueError, match="X has 3 features, but PersonalizedClassifier is expecting 2 features"):
        fitted.predict(np.zeros((1, 3)))
    with pytest.raises(SettingError, match="clients has 1 names, but X has 2 rows"):
        fitted.predict(np.zeros((2, 2)), clients=["north"])
    with pytest.raises(SettingError, match=r"labels vary by 1 around 1e\+08, too little for 32-bit numbers"):
        PersonalizedRegressor().fit(ROWS, [1e8, 1e8 + 1, 1e8 + 1])


def test_training_that_diverges_is_an_error():
    x, y, clients = make_numbers()
    model = PersonalizedRegressor(**{**FAST, "settings": {"alpha": 1e9}})
    with pytest.raises(SettingError, match=r"training diverged by round \d+: take smaller steps"):
        model.fit(x, y, clients=clients)


def test_other_names_of_the_package_are_unknown():
    with pytest.raises(AttributeError, match="module 'pfedbred' has no attribute 'PersonalisedClassifier'"):
        _ = pfedbred.PersonalisedClassifier
