"""The user's own data, from every kind of file."""

import os
from functools import partial
from threading import Timer

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import pfedbred
from pfedbred.data.sources.tables import TableRows
from pfedbred.experiment.building import build


def table(rows=40):
    rng = np.random.default_rng(0)
    return {
        "shop": [f"shop {i % 4}" for i in range(rows)],
        "age": rng.normal(40, 10, rows).tolist(),
        "visits": rng.integers(0, 9, rows).tolist(),
        "bought": ["yes" if i % 3 else "no" for i in range(rows)],
    }


def write_csv(path, columns):
    lines = [",".join(columns)] + [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")


OPTIONS = {"client_column": "shop", "label_column": "bought"}


@pytest.mark.parametrize("kind", ["csv", "parquet", "folder", "dataset"])
def test_tables(kind, tmp_path):
    """Shops become clients, the other columns features of mean 0 and variance 1 on the training samples."""
    columns = table()
    if kind == "dataset":
        datasets = pytest.importorskip("datasets", reason="the datasets library is not installed")
        federation = pfedbred.from_dataset(datasets.Dataset.from_dict(columns), name="mine", **OPTIONS)
    else:
        path = tmp_path / ("mine" if kind == "folder" else f"mine.{kind}")
        if kind == "csv":
            write_csv(path, columns)
        elif kind == "parquet":
            pyarrow.parquet.write_table(pyarrow.table(columns), path)
        else:
            path.mkdir()
            for part in (0, 1):
                half = {name: values[20 * part : 20 * part + 20] for name, values in columns.items()}
                pyarrow.parquet.write_table(pyarrow.table(half), path / f"{part}.parquet")
        federation = pfedbred.load(str(path), **OPTIONS)
    assert federation.name == "mine"
    assert federation.names == ("shop 0", "shop 1", "shop 2", "shop 3")
    assert federation.labels == ("no", "yes")
    assert federation.shape == (2,)
    inputs = np.asarray(federation.inputs(federation.train).take(np.arange(len(federation.train.y))))
    np.testing.assert_allclose(inputs.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(inputs.std(0), 1, atol=1e-5)
    for i in range(4):
        found = {tuple(row) for split in (federation.train, federation.test) for row in split.client(i)[0].tolist()}
        ages, visits = np.float32(columns["age"]), columns["visits"]
        assert found == {(float(ages[row]), float(visits[row])) for row in range(i, 40, 4)}


def test_npz(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x=images, y=np.arange(12) % 3, client=np.repeat([10, 20, 30], 4))
    federation = pfedbred.load(str(tmp_path / "mine.npz"))
    assert federation.names == ("10", "20", "30")
    assert federation.train.x.dtype == np.uint8
    taken = np.asarray(federation.inputs(federation.train).take(np.array([0])))
    np.testing.assert_allclose(taken[0], federation.train.x[0] / 255, rtol=1e-6)
    np.savez(tmp_path / "alone.npz", x=images, y=np.arange(12) % 3)
    with pytest.raises(pfedbred.SettingError, match="does not say which client each sample belongs to"):
        pfedbred.load(str(tmp_path / "alone.npz"))


def test_columns_of_texts_and_of_chosen_features(tmp_path):
    columns = {**table(), "words": [f"hello number {i % 3}" for i in range(40)]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "mine.parquet")
    path = str(tmp_path / "mine.parquet")
    assert pfedbred.load(path, features=["age"], **OPTIONS).shape == (1,)
    federation = pfedbred.load(path, features=["words"], **OPTIONS)
    assert federation.shape == (25,)
    assert "hello" in federation.text.vocabulary


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"age": [1.0] * 5 + [float("inf")] + [2.0] * 34}, {}, "mine.csv, line 7: a feature is not a finite number"),
        ({"age": [1.0] * 5 + ["old"] + [2.0] * 34}, {}, "mine.csv, line 7: column 'age' does not hold numbers"),
        ({}, {"client_column": "store"}, "has no column 'store', only shop, age, visits, bought"),
        ({}, {"label_column": "sold"}, "has no column 'sold'"),
        ({}, {"label_column": None}, "has no column 'label' or 'y', only shop, .*--label-column$"),
        ({}, {"client_column": None}, "belongs to: pass client for arrays, name the column .*--client-column"),
        (
            {},
            {"label_column": "shop", "task": "regression"},
            "'shop' does not hold numbers; choose the label column .*",
        ),
        ({}, {"features": ["height"]}, "has no column 'height'"),
    ],
)
def test_errors_name_the_file_and_the_column(change, options, words, tmp_path):
    write_csv(tmp_path / "mine.csv", {**table(), **change})
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.load(str(tmp_path / "mine.csv"), **{**OPTIONS, **options})


def test_parquet_rows_are_counted_in_their_own_file(tmp_path):
    for part in (0, 1):
        columns = {**table(), "age": [1.0] * 39 + [float("inf") if part else 2.0]}
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / f"{part}.parquet")
    with pytest.raises(pfedbred.SettingError, match=r"1\.parquet, row 39: a feature is not a finite number"):
        pfedbred.load(str(tmp_path), **OPTIONS)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("mine.npz", b"PK nonsense", "cannot read .*mine.npz"),
        ("mine.npz", b"", "cannot read .*mine.npz"),
        ("mine.parquet", b"nonsense", "cannot read .*mine.parquet"),
        ("mine.csv", b"", "cannot read .*mine.csv"),
        ("mine.csv", b"a,b\n1,2,3\n", "cannot read .*mine.csv"),
    ],
)
def test_broken_files(name, content, words, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.load(str(tmp_path / name))


def test_npz_mistakes(tmp_path):
    path = tmp_path / "mine.npz"
    good = {"x": np.ones((4, 2)), "y": np.arange(4) % 2, "client": np.zeros(4)}
    for change, words in (
        ({"x": np.ones((3, 2))}, "one row and one label for each sample"),
        ({"x": np.array([["a", "1"]] * 4)}, r"x of shape \(4, 2\) holds texts where numbers are expected"),
        ({"client": np.zeros(3)}, "client has shape"),
        ({"x": np.array([[1.0, 2], [np.nan, 0], [0, 0], [0, 0]])}, "mine.npz, row 1: a feature is not"),
        ({"y": np.array([0, 1, -2, 0])}, "mine.npz, row 2: label -2"),
        ({"y": np.array([0, 1, 0.5, 0])}, "mine.npz, row 2: label 0.5"),
        ({"y": None}, "has no array 'y', only x, client"),
        ({"x": np.array([[1 + 2j]] * 4)}, "x must be numbers or texts"),
    ):
        np.savez(path, **{name: array for name, array in {**good, **change}.items() if array is not None})
        with pytest.raises(pfedbred.SettingError, match=words):
            pfedbred.load(str(path))
    np.savez(path, **{**good, "x": np.array([[object()]] * 4, dtype=object)})  # would need pickle
    with pytest.raises(pfedbred.SettingError, match="cannot read"):
        pfedbred.load(str(path))


def test_paths_that_cannot_be_read():
    with pytest.raises(pfedbred.SettingError, match="there is no file"):
        pfedbred.load("absent/mine.npz")
    with pytest.raises(pfedbred.SettingError, match=r"expected \.fed, \.npz, \.csv, \.parquet"):
        pfedbred.load(__file__)


def test_a_resolved_experiment_loads_the_same_data(tmp_path):
    """The settings that a run records give the same training and test samples again."""
    columns = table()
    columns |= {"client": columns.pop("shop"), "label": columns.pop("bought")}
    write_csv(tmp_path / "mine.csv", columns)
    given = pfedbred.Experiment(dataset=str(tmp_path / "mine.csv"), held_out_clients=0.25)
    first = build(given)
    again = build(first.experiment)
    np.testing.assert_array_equal(first.backend.federation.train.x, again.backend.federation.train.x)
    np.testing.assert_array_equal(first.newcomers.test.x, again.newcomers.test.x)
    assert first.experiment.aggregated == 3


def test_numbers_wider_than_devices_support(tmp_path):
    """64-bit whole numbers are kept if they fit into 32 bits; values that 32 bits cannot tell apart are rejected."""
    y, client = np.arange(8) % 2, np.repeat([0, 1], 4)
    small = pfedbred.from_arrays(np.arange(16).reshape(8, 2), y, client)
    assert small.train.x.dtype == np.int32
    with pytest.raises(pfedbred.SettingError, match=r"feature 1 varies by 7 around 1.7e\+12, too little"):
        pfedbred.from_arrays(np.stack([np.arange(8), 1_700_000_000_000 + np.arange(8)], axis=1), y, client)
    np.savez(tmp_path / "mine.npz", x=np.arange(16, dtype=np.uint16).reshape(8, 2), y=y, client=client)
    federation = pfedbred.load(str(tmp_path / "mine.npz"))
    pfedbred.data.prepared.save(federation, tmp_path / "mine.fed")
    inputs = np.asarray(federation.inputs(federation.train).take(np.arange(len(federation.train.y))))
    np.testing.assert_allclose(inputs.std(0), 1, atol=1e-5)
    with pytest.raises(pfedbred.SettingError, match="must be below 2"):
        pfedbred.from_clients([(np.full((1, 1), 2**40), np.zeros(1, int))], [(np.zeros((0, 1)), [])])
    times = 1.7e9 + np.arange(8.0)[:, None]
    with pytest.raises(pfedbred.SettingError, match=r"feature 0 varies by 7 around 1.7e\+09, too little"):
        pfedbred.from_clients([(times, y)], [(times, y)])


def test_bytes_are_divided_by_255_however_they_are_given():
    x, y = np.arange(0, 240, 10, dtype=np.uint8).reshape(12, 2), np.arange(12) % 2
    pairs = [(x[:6], y[:6]), (x[6:], y[6:])]
    for federation in (pfedbred.from_clients(pairs, pairs), pfedbred.from_arrays(x, y, y, test_fraction=0.5)):
        assert federation.train.x.dtype == np.uint8
        inputs = federation.inputs(federation.train).take(np.arange(len(federation.train.y)))
        np.testing.assert_allclose(inputs, federation.train.x / 255, rtol=1e-6)
    with pytest.raises(pfedbred.SettingError, match="training inputs are uint8, test inputs are float64"):
        pfedbred.from_clients(pairs, [(x / 255, y) for x, y in pairs])


def test_a_constant_feature_becomes_zero():
    x = np.full((3000, 1), 0.3, np.float32)
    shift, scale = pfedbred.data.pool.standardise(x, np.arange(3000))
    np.testing.assert_allclose((x - shift) * scale, 0, atol=1e-6)
    assert scale == 1


def test_labels_that_are_large_numbers_are_numbered(tmp_path):
    columns = {"client": [0, 0, 1, 1] * 3, "x": list(range(12)), "label": [4294967297, 94110] * 6}
    write_csv(tmp_path / "mine.csv", columns)
    federation = pfedbred.load(str(tmp_path / "mine.csv"))
    assert federation.classes == 2
    assert set(federation.labels) == {"4294967297", "94110"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"client,x,label\na,1,no\n,2,yes\n", "line 3: column 'client' is empty"),
        (b"client,x,label\na,1,no\nb,2,\n", "line 3: column 'label' is empty"),
        ("client,x,label\ncaf\u00e9,1,no\n".encode("latin-1"), "not text in UTF-8"),
        ("caf\u00e9,x,label\na,1,no\n".encode("latin-1"), "not a text file in UTF-8"),
        (b"client,x,x,label\na,1,2,no\n", "has the column 'x' twice"),
        (b"a,0.000,0.000,2\nb,1,3,2\n", "seems to have no header line: '0.000' appears twice"),
        (b"client,x,z,label\na,1,1,no\na,2,1,no\na,abc,1,yes\n", "line 4: column 'x' does not hold numbers"),
        (b"client,x,label\na,1,no\na,2,no\na,abc,yes\n", "line 4: column 'x' does not hold numbers"),
    ],
)
def test_empty_and_malformed_cells(content, words, tmp_path):
    (tmp_path / "mine.csv").write_bytes(content)
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.load(str(tmp_path / "mine.csv"))


def test_many_decimal_numbers_are_not_classes(tmp_path):
    """A few of them may be grades."""
    rows = 60
    columns = {"client": [0, 1] * 30, "x": list(range(rows)), "label": [1.5 + i for i in range(rows)]}
    write_csv(tmp_path / "mine.csv", columns)
    words = r"column 'label' has 60 different decimal numbers in 60 rows.*--task regression"
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.load(str(tmp_path / "mine.csv"), task="classification")
    assert pfedbred.load(str(tmp_path / "mine.csv"), task="regression").classes == 1
    write_csv(tmp_path / "mine.csv", {**columns, "label": [1.0, 1.5, 2.0] * 20})
    assert pfedbred.load(str(tmp_path / "mine.csv"), task="classification").labels == ("1.0", "1.5", "2.0")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.ones((0, 2)), np.ones(0), np.ones(0)), "one row and one label for each sample"),
        ((np.array([["a"], ["b"]]), np.array([0, 1]), np.array([0, 1])), "holds texts where numbers are expected"),
        ((np.ones((2, 2)), np.array([b"\xff", b"a"]), np.array([0, 1])), "y must be names or numbers, not bytes"),
        ((np.ones((2, 2)), np.array([0, 1]), np.array(["a", None], object)), "client is empty in row 1"),
        ((np.ones((2, 2)), np.array([0, 1]), np.array([0.0, np.nan])), "client is empty in row 1"),
    ],
)
def test_wrong_arrays_are_rejected(arguments, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.from_arrays(*arguments)


def test_clients_of_mixed_types_are_told_apart_by_name():
    federation = pfedbred.from_arrays(np.ones((4, 2)), np.array([0, 1, 0, 1]), np.array([1, "a", 1, "a"], object))
    assert federation.names == ("1", "a")


def test_other_mistakes(tmp_path):
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    with pytest.raises(pfedbred.SettingError, match="cannot read"):
        pfedbred.load(str(tmp_path / "array.npz"))
    np.savez(tmp_path / "mine.npz", x=np.ones((4, 2)), y=np.arange(4) % 2, client=np.arange(4) % 2)
    with pytest.raises(pfedbred.SettingError, match="features names columns of a table"):
        pfedbred.load(str(tmp_path / "mine.npz"), features=["a"])
    with pytest.raises(pfedbred.SettingError, match="has no array 'shop'"):
        pfedbred.load(str(tmp_path / "mine.npz"), client_column="shop")
    with pytest.raises(pfedbred.SettingError, match="too few for 9 clients"):
        pfedbred.load(str(tmp_path / "mine.npz"), split="iid", clients=9)
    (tmp_path / "leaf" / "train").mkdir(parents=True)
    (tmp_path / "leaf" / "train" / "a.json").write_text("{}")
    with pytest.raises(pfedbred.SettingError, match="holds LEAF's files"):
        pfedbred.load(str(tmp_path / "leaf"))
    with pytest.raises(pfedbred.SettingError, match=r"from_dataset takes a datasets.Dataset"):
        pfedbred.from_dataset({"train": 1})
    with pytest.raises(pfedbred.SettingError, match="unknown dataset"):
        pfedbred.load("x" * 6000)
    assert len(pfedbred.load("digits", test_fraction=0.0).test.y) == 0


@pytest.mark.parametrize("name", ["mine.fed", "mine.npz", "mine.csv", "mine.parquet", "part-0.parquet", "glove.txt"])
def test_a_fifo_is_refused_and_not_waited_for(name, tmp_path):
    path = tmp_path / name
    os.mkfifo(path)
    # Opening one waits for a writer. Here one comes after a second, so that a reader that waits fails, not hangs.
    late = Timer(1.0, lambda: os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK)))
    late.start()
    if name == "glove.txt":
        texts, labels, clients = np.array(["sun", "rain"] * 4, object), np.arange(8) % 2, np.repeat([0, 1], 4)
        read = partial(pfedbred.from_arrays, texts, labels, clients, glove=str(path))
    else:
        read = partial(pfedbred.load, str(tmp_path if name == "part-0.parquet" else path))
    with pytest.raises(pfedbred.SettingError, match=f"cannot read {path}: it is not a file"):
        read()
    late.cancel()


class Searched:
    """An Arrow table that counts what takes a pass over all its columns."""

    passes = 0

    def __init__(self, table):
        self._table = table

    def __getattr__(self, name):
        Searched.passes += name == "column_names"
        return getattr(self._table, name)

    def column(self, which):
        Searched.passes += isinstance(which, str)
        return self._table.column(which)


class Compared(str):
    """A text that counts how often it is compared."""

    __hash__ = str.__hash__
    times = 0

    def __eq__(self, other):
        Compared.times += 1
        return str.__eq__(self, other)


def test_the_columns_of_a_wide_table_are_not_looked_up_one_by_one(tmp_path, monkeypatch):
    names = [f"c{i}" for i in range(100)]
    path = tmp_path / "wide.csv"
    path.write_text("\n".join([",".join([*names, "label", "client"]), *(["0.5," * 100 + "1,a"] * 4)]))
    made = TableRows.__init__
    monkeypatch.setattr(TableRows, "__init__", lambda self, table, *rest: made(self, Searched(table), *rest))
    federation = pfedbred.load(str(path))
    assert 0 < Searched.passes < 20
    backwards = list(map(Compared, names[::-1]))
    assert federation.ordered(backwards, "").features == tuple(names[::-1])
    assert Compared.times < 10 * len(names)


def test_a_number_of_many_values_is_no_class_unless_that_is_said(tmp_path, call):
    """A price or an age in whole numbers: hundreds of classes would train for nothing."""
    rows = [f"{'ab'[i % 2]},{i % 7},{1000 + i}" for i in range(200)]
    path = tmp_path / "prices.csv"
    path.write_text("\n".join(["client,size,label", *rows]))
    code, _, problem = call("run", "--dataset", path, "--rounds", "1")
    assert (code, problem) == (
        2,
        f"pfedbred: {path}: column 'label' has 200 different numbers in 200 rows: to predict numbers, the task is "
        "regression (--task regression); if they are classes, use --task classification\n",
    )
    assert call("run", "--dataset", path, "--rounds", "1", "--task", "regression", "--dry-run")[0] == 0
    assert call("run", "--dataset", path, "--rounds", "1", "--task", "classification", "--dry-run")[0] == 0


def test_a_cell_is_given_by_its_line(tmp_path):
    """Lines count from 1 and the header is one of them; a text may hold line breaks of its own."""
    path = tmp_path / "notes.csv"
    path.write_text('client,note,label\na,"two\nlines",0\na,one,1\nb,one,\nb,one,0\n')
    with pytest.raises(pfedbred.SettingError, match=r"notes\.csv, line 5: column 'label' is empty"):
        pfedbred.load(str(path))
