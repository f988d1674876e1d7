"""Data of one's own, from every kind of file."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import pfedbred


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
    with pytest.raises(pfedbred.SettingError, match="does not say whose its samples are"):
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
        ({"age": [1.0] * 5 + [float("nan")] + [2.0] * 34}, {}, "mine.csv, row 5: (column 'age' is|a feature is)"),
        ({"age": ["old"] * 40}, {}, "column 'age' does not hold numbers"),
        ({}, {"client_column": "store"}, "has no column 'store', only shop, age, visits, bought"),
        ({}, {"label_column": "sold"}, "has no column 'sold'"),
        ({}, {"label_column": None}, "has no column 'label'"),
        ({}, {"features": ["height"]}, "has no column 'height'"),
        ({}, {"client_column": None}, "(does not say whose|does not hold numbers)"),
    ],
)
def test_mistakes_name_the_file_and_the_column(change, options, words, tmp_path):
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
        ({"x": np.ones((3, 2))}, "one row and one label a sample"),
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


def test_a_path_that_is_not_there():
    with pytest.raises(pfedbred.SettingError, match="there is no file"):
        pfedbred.load("absent/mine.npz")
    with pytest.raises(pfedbred.SettingError, match="not a kind of file that can be read"):
        pfedbred.load(__file__)
