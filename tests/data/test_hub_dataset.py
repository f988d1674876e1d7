"""Any dataset of the hub by its full name and columns: from a local copy in each layout, or downloaded."""

import types

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from support.hub_files import png

import pfedbred
from pfedbred import data
from pfedbred.experiment.building import load_data


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder for data, and an empty cache; whatever is asked of the hub fails."""
    monkeypatch.delenv("PFEDBRED_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def offline(*address, revision=None):
        raise ConnectionError("no route to the hub\nand a long story")

    monkeypatch.setattr("datasets.load_dataset", offline)
    return tmp_path / "data"


def pictures(first=0, count=8):
    """Images of one shade each, with a label, a second label and the client."""
    shades = range(first, first + count)
    return {
        "img": [png(np.full((4, 4, 3), shade, np.uint8)) for shade in shades],
        "fine": [["cat", "dog"][shade % 2] for shade in shades],
        "coarse": [0] * count,
        "who": [f"w{shade // 4}" for shade in shades],
    }


def write(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


COLUMNS = {"label_column": "fine", "client_column": "who"}
LAYOUTS = {
    "root": ("animals/{}-00000-of-00001.parquet", ""),
    "owner": ("zoo/animals/{}-00000-of-00001.parquet", ""),
    "data": ("zoo/animals/data/{}-00000-of-00001.parquet", ""),
    "configuration": ("zoo/animals/plain/{}-00000-of-00001.parquet", ""),
    "converted": ("zoo/animals/default/{}/0000.parquet", ""),
    "chosen": ("zoo/animals/small/{}/0000.parquet", "/small"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_the_hub(layout, folder):
    """All parts together, the training samples first; the column of images is found, the others are not inputs."""
    file, chosen = LAYOUTS[layout]
    for part, first in (("test", 16), ("train", 0), ("validation", 8)):
        write(folder / file.format(part), pictures(first))
    if chosen:
        write(folder / "zoo" / "animals" / "large" / "train" / "0000.parquet", pictures(100))
    for _ in range(2):  # decoded, and from the cache
        federation = pfedbred.load(f"hub:zoo/animals{chosen}", data_dir=str(folder), **COLUMNS)
        assert federation.name == "animals"
        assert federation.names == tuple(f"w{i}" for i in range(6))
        assert federation.labels == ("cat", "dog")
        assert federation.features == ("img",)
        assert (federation.shape, federation.train.x.dtype) == ((4, 4, 3), np.uint8)
        for i in range(6):
            mine = [int(x[0, 0, 0]) for split in (federation.train, federation.test) for x in split.client(i)[0]]
            assert sorted(mine) == list(range(4 * i, 4 * i + 4))
        for split in (federation.train, federation.test):
            assert split.y.tolist() == (split.x[:, 0, 0, 0] % 2).tolist()


def test_other_columns_are_not_taken_from_the_cache(folder):
    write(folder / "zoo" / "animals" / "train.parquet", pictures())
    load = {"data_dir": str(folder), "client_column": "who"}
    assert pfedbred.load("hub:zoo/animals", label_column="fine", **load).classes == 2
    assert pfedbred.load("hub:zoo/animals", label_column="coarse", **load).classes == 1
    assert pfedbred.load("hub:zoo/animals", label_column="fine", image_column="img", **load).classes == 2


def halves(pool, *, seed):
    rows = np.arange(len(pool.y))
    return data.Assignment([rows[::2], rows[1::2]], [rows[:0]] * 2)


def test_a_dataset_without_clients_can_be_split(folder):
    write(folder / "zoo" / "animals" / "train.parquet", pictures())
    federation = pfedbred.load("hub:zoo/animals", label_column="fine", split=halves, data_dir=str(folder))
    assert (federation.clients, federation.names) == (2, None)


@pytest.mark.parametrize(
    ("columns", "options", "shape"),
    [
        ({"text": ["sun and rain"] * 8}, {}, (25,)),
        ({"a": list(range(8)), "b": [0.5] * 8}, {}, (2,)),
        ({"a": list(range(8)), "title": ["x"] * 8}, {"features": "a"}, (1,)),
        ({"v": [[float(i), 1.0, 2.0] for i in range(8)]}, {}, (3,)),
    ],
    ids=["text", "numbers", "features", "lists"],
)
def test_columns_that_are_not_images(columns, options, shape, folder):
    write(folder / "some" / "table" / "train.parquet", {**columns, "label": [0, 1] * 4, "client": [0] * 4 + [1] * 4})
    federation = pfedbred.load("hub:some/table", data_dir=str(folder), **options)
    assert (federation.clients, federation.shape) == (2, shape)


def test_what_is_not_here_is_downloaded(folder, monkeypatch):
    asked = []

    def load_dataset(*address, revision=None):
        asked.append((*address, revision))
        parts = {"train": pictures(), "test": pictures(8), "unsupervised": pictures(16)}
        return {
            part: types.SimpleNamespace(data=types.SimpleNamespace(table=pyarrow.table(columns)))
            for part, columns in parts.items()
        }

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    federation = pfedbred.load("hub:zoo/animals", **COLUMNS)
    assert federation.names == ("w0", "w1", "w2", "w3")
    pfedbred.load("hub:zoo/animals/small", **COLUMNS)
    assert asked == [("zoo/animals", None), ("zoo/animals", "small", None)]


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        ("hub:animals", {}, "a dataset of the hub is hub:OWNER/NAME, .*, not 'hub:animals'"),
        ("hub:../etc/passwd", {}, "a dataset of the hub is hub:OWNER/NAME"),
        ("hub:zoo/..", {}, "a dataset of the hub is hub:OWNER/NAME"),
        ("hub:zoo/absent", {}, r"hub:zoo/absent was not found: put .*data/zoo/absent/train-\*.parquet"),
        ("hub:zoo/several", {}, r"holds several configurations \(one, two\): choose one, as in hub:zoo/several/one"),
        ("hub:zoo/animals", {}, "hub:zoo/animals has no column 'label' or 'y', only img, .*--label-column$"),
        ("hub:zoo/animals", {"label_column": "kind"}, "has no column 'kind', only img, fine, coarse, who"),
        ("hub:zoo/animals", {"label_column": "fine"}, "animals does not say which client .*--client-column"),
        ("hub:zoo/animals", {**COLUMNS, "image_column": "coarse"}, "column 'coarse' does not hold images"),
        ("hub:zoo/animals", {**COLUMNS, "image_column": "img", "features": "who"}, "both name the inputs"),
        ("digits", {"image_column": "img"}, r"features is for your own files and hub:OWNER/NAME, not for .* 'digits'"),
    ],
)
def test_mistakes(dataset, options, words, folder):
    write(folder / "zoo" / "animals" / "train.parquet", pictures())
    for name in ("one", "two"):
        write(folder / "zoo" / "several" / name / "train.parquet", pictures())
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.load(dataset, data_dir=str(folder), **options)


def test_a_failed_download_is_one_line(folder):
    with pytest.raises(
        pfedbred.SettingError, match=r"hub:zoo/animals was not found: put .* failed: no route to the hub$"
    ):
        pfedbred.load("hub:zoo/animals", **COLUMNS)


def test_the_columns_are_options_of_an_experiment(folder, tmp_path):
    """An experiment file records them, and so it does those of the user's own files."""
    write(folder / "zoo" / "animals" / "train.parquet", pictures())
    given = pfedbred.Experiment(dataset="hub:zoo/animals", data_dir=str(folder), image_column="img", **COLUMNS)
    recorded = yaml.safe_load(yaml.safe_dump(given.checked().plain()))
    assert recorded["dataset"] == "hub:zoo/animals"
    assert (recorded["image_column"], recorded["label_column"], recorded["client_column"]) == ("img", "fine", "who")
    again = load_data(pfedbred.Experiment.from_mapping(recorded))
    assert (again.names, again.labels) == (("w0", "w1"), ("cat", "dog"))
    rows = [f"{i},{i % 3},{i % 2},s{i // 6}" for i in range(12)]
    (tmp_path / "mine.csv").write_text("\n".join(["a,b,bought,shop", *rows]))
    columns = {"label_column": "bought", "client_column": "shop"}
    for features in (["b"], "b"):
        own = pfedbred.Experiment(dataset=str(tmp_path / "mine.csv"), features=features, **columns)
        assert load_data(own).features == ("b",)


@pytest.mark.full
def test_a_run_on_a_dataset_of_the_hub(folder, call, tmp_path):
    write(folder / "zoo" / "animals" / "train.parquet", pictures())
    columns = ("--image-column", "img", "--label-column", "fine", "--client-column", "who")
    code, out, _ = call(
        *("run", "--dataset", "hub:zoo/animals", "--data-dir", folder, *columns),
        *("--rounds", 1, "--algorithm", "fedavg", "--set", "R=1"),
    )
    assert code == 0
    assert "animals: 2 clients (all averaged in a round), 6 training" in out
    recorded = yaml.safe_load((tmp_path / "runs" / "animals-mclr-fedavg" / "config.yaml").read_text())
    assert recorded["dataset"] == "hub:zoo/animals"
    assert recorded["image_column"] == "img"
    code, out, _ = call("data", "show", "hub:zoo/animals", "--data-dir", folder, *columns)
    assert code == 0
    assert (tmp_path / "animals.png").exists()


def test_short_names():
    names = {"hub:zoo/animals-1.0": "animals-1.0", "a/b.csv": "b", "synthetic(1, 1)": "synthetic(1, 1)"}
    assert {dataset: data.short_name(dataset) for dataset in names} == names
