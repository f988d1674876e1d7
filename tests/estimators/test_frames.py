"""Data frames with texts and gaps: what is computed from them, by NumPy."""

import numpy as np
import pytest
import scipy.special

from pfedbred import PersonalizedClassifier
from pfedbred.data.columns import DataColumn
from pfedbred.errors import SettingError
from pfedbred.estimators.frames import numbered

pandas = pytest.importorskip("pandas", reason="pandas is not installed")


def make_table():
    rng = np.random.default_rng(0)
    age, sex = rng.normal(50, 10, 60), rng.choice(["f", "m"], 60)
    hospital = np.array(["North", "South"])[np.arange(60) % 2]
    sick = np.where((age > 50) == (hospital == "North"), "yes", "no")
    frame = pandas.DataFrame({"age": np.where(np.arange(60) % 9 == 4, np.nan, age), "sex": sex, "old": age > 60})
    frame["ward"] = pandas.Categorical(rng.choice(["A", "B"], 60), categories=["B", "A", "C"])
    frame.loc[7, "sex"] = None
    return frame, pandas.Series(sick), pandas.Series(hospital)


def test_texts_become_the_numbers_of_their_categories():
    frame = pandas.DataFrame({"n": [1, 2, 3], "t": ["b", "a", None], "o": [1.5, None, 2], "c": ["1", " 2 ", "?"]})
    numbers, columns = numbered(frame)
    assert columns == (DataColumn("n"), DataColumn("t", ("a", "b")), DataColumn("o"), DataColumn("c", ("1", "2")))
    expected = [[1, 1, 1.5, 0], [2, 0, np.nan, 1], [3, np.nan, 2, np.nan]]
    np.testing.assert_array_equal(numbers.to_numpy(np.float64), expected)
    assert frame["t"].tolist()[:2] == ["b", "a"]  # the user's own is as it was
    later, _ = numbered(pandas.DataFrame({"t": ["z", "b", pandas.NA]}), columns)
    np.testing.assert_array_equal(later["t"], [-1, 1, np.nan])
    with pytest.raises(SettingError, match="column 'id' has 2,000 different texts, more than 1,000 categories"):
        numbered(pandas.DataFrame({"id": [f"patient {i}" for i in range(2000)]}))


def test_a_hospitals_table():
    frame, sick, hospital = make_table()
    model = PersonalizedClassifier(rounds=4, settings={"alpha": 0.3, "R": 4}, missing="mean")
    model.fit(frame, sick, clients=hospital)
    inputs = ("age", "age missing", "sex=f", "sex=m", "sex missing", "old", "ward=A", "ward=B")
    assert model.run_.backend.federation.features == inputs
    assert model.feature_names_in_.tolist() == ["age", "sex", "old", "ward"]
    age, south = frame["age"].to_numpy(), (hospital == "South").to_numpy()
    filled = np.where(np.isnan(age), np.nanmean(age[south]), age)
    old, known = frame["old"].to_numpy(float), age[~np.isnan(age)]
    z = [(filled - known.mean()) / known.std(), np.isnan(age)]
    z += [frame["sex"] == "f", frame["sex"] == "m", frame["sex"].isna(), (old - old.mean()) / old.std()]
    z += [frame["ward"] == "A", frame["ward"] == "B"]
    params = model.run_.personal_model(1)["output"]
    logits = np.stack(z, axis=1).astype(float) @ np.asarray(params["weight"]).T + np.asarray(params["bias"])
    found = model.predict_proba(frame, clients=["South"] * 60)
    np.testing.assert_allclose(found, scipy.special.softmax(logits, axis=1), atol=1e-5)
    assert model.score(frame, sick, clients=hospital) > 0.8
    assert model.score(frame, sick) < model.score(frame, sick, clients=hospital)
    new = frame.iloc[:1].assign(sex="x")  # in none of the columns of sex
    none = logits[0] - np.asarray(params["weight"])[:, 2 + (frame["sex"][0] == "m")]
    np.testing.assert_allclose(model.predict_proba(new, clients=["South"])[0], scipy.special.softmax(none), atol=1e-5)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        one = model.predict_proba([frame.iloc[0].tolist()], clients=["South"])
    np.testing.assert_allclose(one[0], found[0], atol=1e-6)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["sex", "age", "old", "ward"]])
    with pytest.raises(SettingError, match="the client of row 1 is missing"):
        model.fit(frame, sick, clients=hospital.astype("string").where(hospital.index != 1))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        PersonalizedClassifier().fit(frame, sick, clients=hospital)
