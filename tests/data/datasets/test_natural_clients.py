"""Named datasets with natural clients or a default split of their own, from tiny files in the same layout."""

import re
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from support.hub_files import REAL, needs, png, write_parquet

import pfedbred
from pfedbred import models
from pfedbred.data.datasets.shakespeare import ALPHABET, shakespeare
from pfedbred.data.sources.tables import TableRows


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder for data, and an empty cache."""
    monkeypatch.delenv("PFEDBRED_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


def write(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def shades(count, side):
    """Images that are each of one shade, their own."""
    return [png(np.full((side, side), shade, np.uint8)) for shade in range(count)]


def rows_of(federation, value):
    """What ``value(x)`` says of each client's samples, training and test together."""
    both = (federation.train, federation.test)
    return [sorted(value(x) for split in both for x in split.client(i)[0]) for i in range(federation.clients)]


def test_writers_of_the_training_digits_are_clients(folder):
    """Each writer keeps its own digits, a quarter for testing; the test set's writers only when they are asked for."""
    for part, first, writers in (("train", 0, [7, 40] * 8), ("test", 16, [3] * 4)):
        write(
            folder / "mnist_writers" / f"{part}.parquet",
            {
                "image": shades(32, 28)[first : first + len(writers)],
                "label": list(np.arange(len(writers)) % 10),
                "writer": pyarrow.array(writers, pyarrow.int32()),
                "hsf": writers,
            },
        )
    federation = pfedbred.load("mnist-writers", data_dir=str(folder))
    assert federation.names == ("7", "40")
    assert federation.train.sizes.tolist() == [6, 6]
    assert federation.test.sizes.tolist() == [2, 2]
    assert rows_of(federation, lambda x: int(x[0, 0])) == [list(range(0, 16, 2)), list(range(1, 16, 2))]
    for split in (federation.train, federation.test):
        assert split.y.tolist() == (split.x[:, 0, 0] % 10).tolist()
    assert pfedbred.load("mnist-writers(test)", data_dir=str(folder)).names == ("3",)
    assert pfedbred.load("mnist-writers(all)", data_dir=str(folder)).names == ("3", "7", "40")
    again = pfedbred.load("mnist-writers", data_dir=str(folder), seed=1)
    assert again.names == federation.names
    assert again.test.x.tolist() != federation.test.x.tolist()
    with pytest.raises(pfedbred.SettingError, match="writers must be one of train, test, all, not 'none'"):
        pfedbred.load("mnist-writers(none)", data_dir=str(folder))


def test_writers_are_sampled_as_leaf_does(folder):
    """So many writers at random, nine tenths of each for training; the writers and their division follow the seed."""
    columns = {"image": shades(200, 28), "label": [0, 1] * 100, "writer": list(np.repeat(np.arange(10), 20))}
    write(folder / "mnist_writers" / "train.parquet", columns)
    federations = [pfedbred.load("mnist-writers-leaf", data_dir=str(folder), clients=4, seed=s) for s in (0, 0, 1)]
    for federation in federations:
        assert (federation.name, federation.clients) == ("mnist-writers-leaf", 4)
        assert federation.train.sizes.tolist() == [18] * 4
        whole = [list(range(20 * int(name), 20 * int(name) + 20)) for name in federation.names]
        assert rows_of(federation, lambda x: int(x[0, 0])) == whole
    assert federations[0].test.x.tolist() == federations[1].test.x.tolist() != federations[2].test.x.tolist()
    assert federations[0].names != federations[2].names
    with pytest.raises(pfedbred.SettingError, match="mnist-writers-leaf has 10 writers here, not 198"):
        pfedbred.load("mnist-writers-leaf", data_dir=str(folder))


@pytest.mark.parametrize(
    ("name", "file", "client", "side", "labels"),
    [
        ("chinese-mnist", "chinese_mnist/chinese_mnist.parquet", "writer", 64, "100000000"),
        ("audiomnist", "audiomnist/audiomnist_logmel32.parquet", "speaker", 32, None),
    ],
)
def test_images_with_clients(folder, name, file, client, side, labels):
    columns = {"image": shades(8, side), "label": [0, 1, 2, 3] * 2, client: ["02"] * 4 + ["01"] * 4}
    write(folder / file, {**columns, "other": [0] * 8})
    for _ in range(2):  # decoded, and from the cache
        federation = pfedbred.load(name, data_dir=str(folder))
        assert federation.names == ("01", "02")
        assert federation.shape == (side, side)
        assert federation.train.x.dtype == np.uint8
        assert rows_of(federation, lambda x: int(x[0, 0])) == [[4, 5, 6, 7], [0, 1, 2, 3]]
        assert (federation.labels[-1] if federation.labels else None) == labels
        np.testing.assert_allclose(np.asarray(federation.inputs(federation.train).take(np.arange(6))).max(), 7 / 255)


def test_signals_are_numbers_of_16_bits(folder):
    """Time first; as inputs, in units of 1/4000."""
    signals = np.random.default_rng(0).integers(-(2**15), 2**15, (4, 9, 128)).astype("<i2")
    cells = pyarrow.array([each.tobytes() for each in signals], pyarrow.binary(2304))
    columns = {"signal_int16": cells, "label": [0, 5, 1, 2], "subject": [1, 1, 1, 1]}
    write(folder / "uci_har" / "uci_har_inertial.parquet", columns)
    federation = pfedbred.load("uci-har", data_dir=str(folder), test_fraction=0.0)
    assert (federation.shape, federation.classes, federation.train.x.dtype) == ((128, 9), 6, np.int16)
    by_label = np.argsort(federation.train.y)
    inputs = np.asarray(federation.inputs(federation.train).take(by_label))
    np.testing.assert_allclose(inputs, signals.transpose(0, 2, 1)[[0, 2, 3, 1]] / 4000, rtol=1e-6)
    assert federation.labels[5] == "laying"
    write(
        folder / "uci_har" / "uci_har_inertial.parquet",
        {**columns, "signal_int16": [each.tobytes()[:8] for each in signals]},
    )
    with pytest.raises(pfedbred.SettingError, match=r"row 0: 8 bytes, not 9 signals x 128 x 2"):
        pfedbred.load("uci-har", data_dir=str(folder))


def test_vectors_with_labels_that_are_floating_point_numbers(folder):
    features = np.random.default_rng(0).normal(2, 3, (8, 9)).astype(np.float32)
    lists = pyarrow.FixedSizeListArray.from_arrays(features.ravel(), 9)
    columns = {"features": lists, "y": pyarrow.array([0.0, 1.0] * 4, pyarrow.float32()), "task": [0] * 4 + [1] * 4}
    write(folder / "landmine" / "landmine.parquet", columns)
    federation = pfedbred.load("landmine", data_dir=str(folder))
    assert (federation.clients, federation.shape, federation.labels) == (2, (9,), ("clutter", "mine"))
    assert federation.task == "binary"
    expected = [sorted(features[part, 0].tolist()) for part in (slice(0, 4), slice(4, 8))]
    assert rows_of(federation, lambda x: float(x[0])) == expected
    inputs = np.asarray(federation.inputs(federation.train).take(np.arange(6)))
    np.testing.assert_allclose(inputs.std(axis=0), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([[1.0, 2.0], [3.0]], r"x.parquet, row 1: 1 numbers in 'v'; the first has 2"),
        ([[1.0, None], [3.0, 4.0]], "column 'v' must hold lists of numbers"),
        ([["a"], ["b"]], "column 'v' must hold lists of numbers"),
        ([1.0, 2.0], "column 'v' must hold lists of numbers"),
        ([[1.0], None], r"x.parquet, row 1: column 'v' is empty"),
    ],
)
def test_columns_that_are_no_vectors(cells, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        TableRows.of([pyarrow.table({"v": cells})], ["x.parquet"], ()).vectors("v")


def test_vectors_of_several_files():
    parts = [pyarrow.table({"v": [[1, 2], [3, 4]]}), pyarrow.table({"v": [[5, 6]]})]
    assert TableRows.of(parts, ["a", "b"], ()).vectors("v").tolist() == [[1, 2], [3, 4], [5, 6]]
    with pytest.raises(pfedbred.SettingError, match="b, row 0: column 'v' must hold byte strings of one length"):
        TableRows.of([pyarrow.table({"v": [b"ab"]}), pyarrow.table({"v": [b"a"]})], ["a", "b"], ()).byte_strings("v")


def test_datasets_without_clients_are_divided_by_label(folder):
    """CIFAR-100 pooled and over 20 clients, AG News also from its test set alone; a quarter of each for testing."""
    rng = np.random.default_rng(0)
    images = [png(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(4)] * 60
    for part, rows in (("train", slice(0, 200)), ("test", slice(200, 240))):
        columns = {"img": images[rows], "fine_label": (np.arange(240) % 100)[rows]}
        write_parquet(folder / "cifar100", part, columns)
    federation = pfedbred.load("cifar100", data_dir=str(folder), clients=3)
    assert (federation.clients, federation.shape, federation.classes) == (3, (32, 32, 3), 100)
    assert len(federation.train.y) + len(federation.test.y) == 240
    assert pfedbred.data.DATASETS["cifar100"].clients == pfedbred.data.DATASETS["agnews"].clients == 20
    texts = ["stocks rise", "team wins", "chip made", "talks held"] * 20
    write(folder / "agnews_test" / "agnews_test.parquet", {"text": texts, "label": [2, 1, 3, 0] * 20})
    for expected in (80, 96):
        federation = pfedbred.load("agnews", data_dir=str(folder), clients=2)
        assert len(federation.train.y) + len(federation.test.y) == expected
        assert 0.2 < len(federation.test.y) / expected < 0.3
        assert federation.labels == ("World", "Sports", "Business", "Sci/Tech")
        assert federation.text.unit == "word"
        write_parquet(folder / "agnews", "train", {"text": texts + texts[:16], "label": [2, 1, 3, 0] * 24})


SAID = ["Now is the  winter of our\tdiscontent$ Made glorious summer by this sun of York;", "And all the clouds"]


def test_shakespeare_is_cut_into_characters(folder):
    """Every 80 characters and the one after them, over all of a role's speeches, in LEAF's alphabet."""
    whole = "Now is the winter of our discontent Made glorious summer by this sun of York; And all the clouds"
    columns = {"client": ["r", "other", "r"], "text": [SAID[0], "Too short é", SAID[1]]}
    write(folder / "shakespeare" / "shakespeare_roles.parquet", {**columns, "play": ["p"] * 3})
    pool = shakespeare(str(folder), None, 0)
    assert pool.owners == ("r",)
    assert pool.classes == len(ALPHABET) == 80
    assert len(pool.y) == len(whole) - 80
    assert pool.text.encode([whole[:80]], 80).tolist() == pool.x[:1].tolist()
    for row in range(len(pool.y)):
        assert "".join(pool.text.vocabulary[number - 2] for number in pool.x[row]) == whole[row : row + 80]
        assert ALPHABET[pool.y[row]] == whole[row + 80]


def test_shakespeare_as_leaf_has_cut_it(folder):
    columns = {"character_id": ["r", "r", "r"], "x": ["a" * 80, "é" + "a" * 79, "b" * 80], "y": ["}", "c", "\n"]}
    write_parquet(folder / "shakespeare", "train", columns)
    pool = shakespeare(str(folder), None, 0)
    assert pool.x[:, 0].tolist() == [ALPHABET.index("a") + 2, ALPHABET.index("b") + 2]
    assert pool.y.tolist() == [79, 0]
    write_parquet(folder / "shakespeare", "train", {**columns, "y": ["}", "cc", "\n"]})
    with pytest.raises(pfedbred.SettingError, match="row 1: expected 80 characters in 'x' and one in 'y'"):
        shakespeare(str(folder), None, 0)


def test_roles_are_divided_in_time_as_leaf_does(folder):
    """The first four fifths train; no test window shares a character with a training one; short roles are not used."""
    rng = np.random.default_rng(0)
    said = {f"r{i}": "".join(rng.choice(list("abcd e"), size)) for i, size in enumerate((600, 560, 300, 900))}
    said = {role: " ".join(text.split()) for role, text in said.items()}
    write(folder / "shakespeare" / "shakespeare_roles.parquet", {"client": list(said), "text": list(said.values())})
    federation = pfedbred.load("shakespeare", data_dir=str(folder), clients=3)
    assert federation.names == ("r0", "r1", "r3")
    for i, role in enumerate(federation.names):
        samples = len(said[role]) - 80
        train = int(0.8 * samples)
        windows = [[federation.text.vocabulary[number - 2] for number in x] for x in federation.train.client(i)[0]]
        assert ["".join(each) for each in windows] == [said[role][j : j + 80] for j in range(train)]
        last = ["".join(federation.text.vocabulary[number - 2] for number in x) for x in federation.test.client(i)[0]]
        assert last == [said[role][j : j + 80] for j in range(train + 79, samples)]
    sampled = pfedbred.load("shakespeare", data_dir=str(folder))
    assert 1 <= sampled.clients < 3  # about a fifth of the samples
    with pytest.raises(pfedbred.SettingError, match="has 3 roles with enough text, not 4"):
        pfedbred.load("shakespeare", data_dir=str(folder), clients=4)


def test_absent_files_of_a_dataset_that_the_hub_does_not_have(folder):
    with pytest.raises(
        pfedbred.SettingError,
        match=r"landmine was not found: put a table with the columns features, y, task as .*landmine/",
    ):
        pfedbred.load("landmine")
    (folder / "landmine").mkdir(parents=True)
    with pytest.raises(pfedbred.SettingError, match=r"landmine was not found: .*data/landmine/train-\*.parquet"):
        pfedbred.load("landmine", data_dir=str(folder))


REAL_DATA = {
    # name: folder, clients, shape of a sample, labels, samples, and the sizes of the smallest and the largest client
    "agnews": ("agnews_test", 20, (25,), 4, 7_600, None),
    "audiomnist": ("audiomnist", 60, (32, 32), 10, 30_000, (500, 500)),
    "chinese-mnist": ("chinese_mnist", 100, (64, 64), 15, 15_000, (150, 150)),
    "cifar100": ("cifar100", 20, (32, 32, 3), 100, 60_000, None),
    "landmine": ("landmine", 29, (9,), 2, 14_820, (445, 690)),
    "mnist-writers": ("mnist_writers", 539, (28, 28), 10, 60_000, (19, 131)),
    "mnist-writers(test)": ("mnist_writers", 297, (28, 28), 10, 10_000, (8, 130)),
    "uci-har": ("uci_har", 30, (128, 9), 6, 10_299, (281, 409)),
}


@pytest.mark.full
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(facts[0])) for name, facts in REAL_DATA.items()])
def test_real_data(name, folder):
    _, clients, shape, classes, samples, sizes = REAL_DATA[name]
    federation = pfedbred.load(name, data_dir=str(REAL))
    assert (federation.clients, federation.shape, federation.classes) == (clients, shape, classes)
    own = federation.train.sizes + federation.test.sizes
    assert own.sum() == samples
    assert sizes in (None, (own.min(), own.max()))
    assert 0.24 < len(federation.test.y) / samples < 0.26
    counts = federation.train.label_counts(classes).sum(axis=0)
    assert counts.min() > 0
    if name == "landmine":
        assert 0.05 < counts[1] / counts.sum() < 0.07
    if name == "cifar100":
        assert set(counts + federation.test.label_counts(classes).sum(axis=0)) == {600}


@pytest.mark.full
@needs("mnist_writers")
def test_real_writers_as_many_as_the_papers(folder):
    federation = pfedbred.load("mnist-writers-leaf", data_dir=str(REAL))
    assert (federation.clients, len(federation.train.y), len(federation.test.y)) == (198, 20_015, 2_218)
    assert (federation.train.sizes.min(), federation.test.sizes.min()) == (48, 5)


@pytest.mark.full
@needs("shakespeare")
def test_real_shakespeare(folder):
    pool = shakespeare(str(REAL), None, 0)
    assert 1_100 < len(pool.owners) <= 1_378
    federation = pfedbred.load("shakespeare", data_dir=str(REAL))
    held = np.isin(np.asarray(pool.owners)[pool.owner], federation.names).sum()
    assert 0.19 < held / len(pool.y) < 0.22
    assert (federation.shape, federation.classes) == ((80,), 80)


def test_every_dataset_is_in_the_documentation_with_its_models():
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)(?:\(.*?\))?` \| .* \| .* \| (.*) \| .* \|$", page, re.MULTILINE))
    assert rows == {name: ", ".join(dataset.models) for name, dataset in pfedbred.data.DATASETS.items()}


def test_usual_models_exist():
    assert {name for dataset in pfedbred.data.DATASETS.values() for name in dataset.models} <= set(models.MODELS)
