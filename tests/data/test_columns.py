"""Tables with gaps and categories: what training samples decide, against NumPy; files and mistakes."""

import dataclasses

import numpy as np
import pytest

import pfedbred
from pfedbred import SettingError
from pfedbred.data import prepared
from pfedbred.data.columns import DataColumn, fit, numbers_of

NAN = np.nan
X = np.array(
    [  # age, weight, colour (0 blue, 1 green, 2 red), constant
        [10.0, NAN, 0, 5.0],
        [20.0, NAN, 2, 5.0],
        [NAN, NAN, NAN, 5.0],
        [40.0, 1.0, 2, 5.0],
        [60.0, 3.0, 0, 5.0],
        [80.0, 8.0, 0, NAN],
        [NAN, NAN, 1, NAN],  # a test sample of the second client
    ]
)
COLUMNS = (
    DataColumn("age"),
    DataColumn("weight"),
    DataColumn("colour", ("blue", "green", "red")),
    DataColumn("constant"),
)
CLIENTS = [np.array([0, 1, 2]), np.array([3, 4, 5])]
AGES, WEIGHTS = np.array([10, 20, 40, 60, 80.0]), np.array([1, 3, 8.0])


def test_gaps_are_filled_by_the_client_and_marked_and_numbers_standardised_over_all():
    encoding, x = fit(X, COLUMNS, CLIENTS)
    assert encoding.names == (
        *("age", "age missing", "weight", "weight missing"),
        *("colour=blue", "colour=red", "colour missing", "constant", "constant missing"),
    )
    first, second = (encoding.encode(x[rows], i) for i, rows in enumerate(CLIENTS))
    age = lambda values: (np.array(values) - AGES.mean()) / AGES.std()  # noqa: E731
    weight = lambda values: (np.array(values) - WEIGHTS.mean()) / WEIGHTS.std()  # noqa: E731
    np.testing.assert_allclose(first[:, 0], age([10, 20, 15]), rtol=1e-6)  # 15 is the client's own mean
    np.testing.assert_allclose(second[:, 0], age([40, 60, 80]), rtol=1e-6)
    np.testing.assert_allclose(first[:, 2], weight([4, 4, 4]), atol=1e-6)  # it has none: everyone's mean, 4
    np.testing.assert_array_equal(first[:, 1], [0, 0, 1])
    np.testing.assert_array_equal(first[:, 4:7], [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(second[:, 4:7], [[0, 1, 0], [1, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(np.concatenate([first, second])[:, 7], 0)
    unseen = encoding.encode(x[6:], 1)[0]
    np.testing.assert_allclose(unseen[[0, 2]], [age(60), weight(4)], rtol=1e-6)
    np.testing.assert_array_equal(unseen[[1, 3, 4, 5, 6]], [1, 1, 0, 0, 0])  # green is not known, and not missing


def test_only_training_samples_decide():
    changed = X.copy()
    changed[6] = [1e6, 1e6, NAN, 1e6]
    one, other = fit(X, COLUMNS, CLIENTS)[0], fit(changed, COLUMNS, CLIENTS)[0]
    assert one.columns == other.columns
    for a, b in zip((*one.everyone, *one.own), (*other.everyone, *other.own), strict=True):
        np.testing.assert_array_equal(a, b)
    whole = fit(X[:6], COLUMNS[:1], [np.array([0, 1]), np.array([3, 4])])[0]
    assert not whole.columns[0].indicator  # the gaps are not among the training samples


def test_the_median_and_statistics_of_each_client():
    encoding, x = fit(X, COLUMNS, CLIENTS, "median", "client")
    first, second = (encoding.encode(x[rows], i) for i, rows in enumerate(CLIENTS))
    np.testing.assert_allclose(first[:, 0], [-1, 1, 0], atol=1e-6)
    np.testing.assert_allclose(second[:, 2], (WEIGHTS - 4) / WEIGHTS.std(), rtol=1e-6)
    assert np.isfinite(first).all()  # of a column without values, and of a constant one
    np.testing.assert_allclose(encoding.own.fill[:, 0], [15, 60])
    np.testing.assert_allclose(encoding.own.fill[:, 1], [3, 3])  # the median of everyone's, and of its own
    plain, x = fit(X, COLUMNS, CLIENTS, "mean", "none")
    np.testing.assert_array_equal(plain.encode(x[3:4], 1)[0, [0, 2, 7]], [40, 1, 5])


def test_a_client_whose_values_are_all_the_same_is_scaled_as_everyone():
    x = np.array([[1.0], [1.0], [3.0], [5.0]])
    encoding, _ = fit(x, (DataColumn("a"),), [np.array([0, 1]), np.array([2, 3])], standardise="client")
    assert encoding.own.scale[0, 0] == pytest.approx(1 / np.std(x))
    assert encoding.own.scale[1, 0] == pytest.approx(1.0)


def test_cells_by_position_and_by_name():
    encoding, _ = fit(X, COLUMNS, CLIENTS)
    rows = [[10, None, "blue", 5], {"constant": "5", "age": "10.0", "weight": "?", "colour": " blue "}]
    found = numbers_of(encoding.columns, rows)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], [10, NAN, 0, 5])
    assert numbers_of(encoding.columns, [[1, 2, "mauve", 3]])[0, 2] == -1
    for row, words in (
        ([1, 2], "row 0 has 2 values, but the model takes 4: age, weight, colour, constant"),
        ({"age": 1}, "there is no 'weight', only 'age'"),
        (["old", 1, "red", 1], "row 0: 'age' must be a number, not 'old'"),
        ([1e999, 1, "red", 1], "'age' is not a finite number"),
    ):
        with pytest.raises(SettingError, match=words):
            numbers_of(encoding.columns, [row])


# From files ---------------------------------------------------------------------------------------------------------

TABLE = """client,age,colour,label
a,10,red,0
a,?,red,1
a,30,blue,0
a,50,,1
b,20,blue,0
b,40,red,1
b,60,blue,1
b,,green,0
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(TABLE)
    return str(path)


def test_a_table_is_encoded_kept_and_described(table, tmp_path):
    federation = pfedbred.load(table, test_fraction=0.25, seed=3)
    assert federation.train.x.dtype == np.float32
    assert np.isfinite(federation.train.x).all()
    assert federation.features == federation.encoding.names
    said = federation.about["columns"]
    assert said.startswith(f"2 columns as {federation.shape[0]} inputs, 1 of texts as")
    assert "filled with the client's mean, and marked by an input each, numbers standardised over all clients" in said
    prepared.save(federation, tmp_path / "t.fed")
    again = prepared.load(tmp_path / "t.fed")
    assert again.encoding.columns == federation.encoding.columns
    for a, b in zip((*again.encoding.everyone, *again.encoding.own), _arrays(federation), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(again.train.x, federation.train.x)
    second = again.take(np.array([1]))
    np.testing.assert_array_equal(second.encoding.own.fill, federation.encoding.own.fill[1:])
    with pytest.raises(SettingError, match=r"t.fed is already split: missing cannot be changed"):
        pfedbred.load(str(tmp_path / "t.fed"), missing="median")


def test_a_prepared_file_with_other_columns_is_refused(table, tmp_path):
    federation = pfedbred.load(table)
    encoding = federation.encoding
    for change, words in (
        ({"own": encoding.own._replace(fill=encoding.own.fill[:1])}, "the statistics must be finite"),
        ({"everyone": encoding.everyone._replace(scale=encoding.everyone.scale * NAN)}, "must be finite numbers"),
        ({"columns": (encoding.columns[0]._replace(name="wage"), encoding.columns[1])}, "do not give the inputs"),
    ):
        broken = dataclasses.replace(federation, encoding=dataclasses.replace(encoding, **change))
        prepared.save(broken, tmp_path / "t.fed")
        with pytest.raises(SettingError, match=words):
            prepared.load(tmp_path / "t.fed")


def _arrays(federation):
    return (*federation.encoding.everyone, *federation.encoding.own)


def test_numbers_without_gaps_stay_as_they_are(tmp_path):
    (tmp_path / "t.csv").write_text("client,a,b,label\n" + "".join(f"{i % 2},{i},{i * i},{i % 2}\n" for i in range(8)))
    plain = pfedbred.load(str(tmp_path / "t.csv"))
    assert plain.encoding is None
    mine = pfedbred.load(str(tmp_path / "t.csv"), standardise="client")
    assert mine.features == ("a", "b")
    for i in range(2):
        np.testing.assert_allclose(mine.train.client(i)[0].mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(mine.train.client(i)[0].std(axis=0), 1, atol=1e-6)
    with pytest.raises(SettingError, match="standardise is for tables of numbers, and digits is not one"):
        pfedbred.load("digits", standardise="client")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("b,40,red,1", "b,4O,red,1"), "t.csv, line 7: column 'age' does not hold numbers"),
        (("b,40,red,1", "b,inf,red,1"), "t.csv, line 7: a feature is not a finite number"),
        (("b,40,red,1", ",40,red,1"), "line 7: column 'client' is empty"),
        (("b,40,red,1", "b,40,red,"), "line 7: column 'label' is empty"),
    ],
)
def test_mistakes_name_the_row(change, words, tmp_path):
    (tmp_path / "t.csv").write_text(TABLE.replace(*change))
    with pytest.raises(SettingError, match=words):
        pfedbred.load(str(tmp_path / "t.csv"))


def test_names_are_not_categories(tmp_path):
    rows = "".join(f"{i % 2},name {i},{i},{i % 2}\n" for i in range(1_200))
    (tmp_path / "t.csv").write_text("client,name,a,label\n" + rows)
    with pytest.raises(SettingError, match=r"column 'name' has 1,200 different texts, more than 1,000 categories"):
        pfedbred.load(str(tmp_path / "t.csv"))
    assert pfedbred.load(str(tmp_path / "t.csv"), features=["a"]).shape == (1,)


# To predictions -----------------------------------------------------------------------------------------------------


def test_an_exported_model_takes_raw_columns_by_name(table, tmp_path, call):
    """As NumPy computes them from the tensors: a client's own fills, unknown texts, columns in any order."""
    federation = pfedbred.load(table, test_fraction=0.25, seed=3)
    pfedbred.run(federation=federation, algorithm="local", settings={"R": 2}, rounds=1, out=tmp_path / "run")
    cells = [[None, "red"], [33.0, "mauve"], [20, None]]
    encoding = federation.encoding
    for client in (None, 1):
        model = pfedbred.load_model(pfedbred.export(tmp_path / "run", client=client))
        inputs = encoding.encode(numbers_of(encoding.columns, cells), client)
        layer = model.params["output"]
        logits = inputs @ np.asarray(layer["weight"]).T + np.asarray(layer["bias"])
        np.testing.assert_allclose(model.logits(cells), logits, atol=1e-5)
        named = [{"colour": colour, "more": 1, "age": age} for age, colour in cells]
        np.testing.assert_allclose(model.logits(named), logits, atol=1e-5)
    assert not np.allclose(encoding.own.fill[1], encoding.everyone.fill)
    (tmp_path / "new.csv").write_text("more,colour,age\n9,red,\n9,mauve,33\n9,,20\n")
    code, out, err = call("predict", tmp_path / "run" / "client-1.safetensors", "new.csv")
    assert code == 0, err
    assert out.split() == [str(each) for each in logits.argmax(1)]
    (tmp_path / "bad.csv").write_text("colour\nred\n")
    code, _, err = call("predict", tmp_path / "run" / "client-1.safetensors", "bad.csv")
    assert code == 2
    assert "bad.csv has no column 'age', which the model needs; it has colour" in err
    prepared.save(federation, tmp_path / "t.fed")
    code, out, err = call("predict", tmp_path / "run" / "global.safetensors", "t.fed")
    assert code == 0, err
    assert len(out.split()) == len(federation.test.y)
