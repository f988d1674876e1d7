"""Named datasets, from tiny files in the hub's layout and in LEAF's, and from the real files where there are any."""

import json
import logging
import sys
import types

import numpy as np
import pyarrow
import pytest
from support.hub_files import REAL, needs, png, write_leaf, write_parquet

import pfedbred
from pfedbred.data.datasets import sent140 as sent140_
from pfedbred.data.datasets.cifar10 import cifar10
from pfedbred.data.datasets.fashion_mnist import fashion_mnist
from pfedbred.data.datasets.femnist import femnist
from pfedbred.data.datasets.mnist import mnist
from pfedbred.data.datasets.sent140 import sent140
from pfedbred.data.scaling import by_one_number, by_pixel, standardise, to_plus_minus_one
from pfedbred.data.sources import tables
from pfedbred.data.sources.tables import TableRows


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder for data, and an empty cache."""
    monkeypatch.delenv("PFEDBRED_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


@pytest.fixture
def tiny_mnist(folder):
    rng = np.random.default_rng(0)
    train, test = (rng.integers(0, 256, (count, 28, 28), dtype=np.uint8) for count in (5, 3))
    write_parquet(folder / "mnist", "train", {"image": [png(each) for each in train], "label": [0, 1, 2, 3, 4]})
    write_parquet(folder / "mnist", "test", {"image": [png(each) for each in test], "label": [7, 8, 9]})
    return folder, np.concatenate([train, test])


@pytest.mark.parametrize("place", ["option", "environment", "cache"])
def test_images_are_found(tiny_mnist, place, monkeypatch):
    folder, expected = tiny_mnist
    if place == "environment":
        monkeypatch.setenv("PFEDBRED_DATA", str(folder))
    if place == "cache":
        folder.rename(folder.parent / "pfedbred")
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent))
    pool = mnist(str(folder) if place == "option" else None, 100, 1)
    np.testing.assert_array_equal(pool.x, expected)
    assert pool.y.tolist() == [0, 1, 2, 3, 4, 7, 8, 9]


def test_a_dataset_that_is_nowhere_is_downloaded(folder, monkeypatch):
    """The `datasets` library is asked for the hub's address, and only once: then the decoded images are cached."""
    pixels = np.arange(28 * 28, dtype=np.uint8).reshape(28, 28)
    asked = []

    def load_dataset(address, revision=None):
        asked.append((address, revision))
        table = pyarrow.table({"image": [png(pixels)] * 2, "label": [4, 2]})
        return {"train": types.SimpleNamespace(data=types.SimpleNamespace(table=table))}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    for _ in range(2):
        pool = mnist(None, 100, 1)
        assert asked == [("ylecun/mnist", None)]
        assert pool.y.tolist() == [4, 2]
        np.testing.assert_array_equal(pool.x[0], pixels)


def test_errors_about_absent_files_say_what_to_put_where(folder, monkeypatch):
    with pytest.raises(pfedbred.SettingError, match=r"fashion-mnist was not found: put .*data/fashion_mnist/train-"):
        fashion_mnist(str(folder), 100, 1)
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if not installed
    with pytest.raises(pfedbred.SettingError, match=r"cifar10 was not found: put .*cache/pfedbred/cifar10/train-.*pip"):
        cifar10(None, 20, 1)
    with pytest.raises(pfedbred.SettingError, match=r"or LEAF's files as .*sent140/train/\*.json"):
        sent140(str(folder), 10, 0)

    def offline(address, revision=None):
        assert not logging.getLogger("huggingface_hub").isEnabledFor(logging.WARNING)  # two lines for each attempt
        raise ConnectionError("no route to the hub\nand a long story")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=offline))
    with pytest.raises(pfedbred.SettingError, match=r"downloading failed: no route to the hub$"):
        femnist(None, None, 0)


def test_errors_about_broken_files_name_the_file_and_the_row(tiny_mnist):
    folder, _ = tiny_mnist
    write_parquet(folder / "cifar10", "train", {"picture": [png(np.zeros((4, 4, 3), np.uint8))], "label": [0]})
    with pytest.raises(pfedbred.SettingError, match=r"train-.*parquet has no column 'img', only picture, label"):
        cifar10(str(folder), 20, 1)
    good, bad = png(np.zeros((28, 28), np.uint8)), {"bytes": b"no image", "path": None}
    other, wide = png(np.zeros((5, 5), np.uint8)), png(np.zeros((28, 28), np.uint16))
    for column, row, words in (
        ({"image": [good, bad], "label": [0, 1]}, 1, "does not hold an image"),
        ({"image": [good, other], "label": [0, 1]}, 1, r"an image of uint8 of shape \(5, 5\)"),
        ({"image": [good, wide], "label": [0, 1]}, 1, r"an image of uint16 of shape \(28, 28\)"),
        ({"image": [good, good], "label": [0, 10]}, 1, "label 10 is not one of 0 to 9"),
        ({"image": [good, good], "label": [0, -1]}, 1, "label -1 is not a whole number from 0"),
        ({"image": [good, good], "label": [None, 1]}, 0, "column 'label' is empty"),
    ):
        write_parquet(folder / "mnist", "test", column)
        with pytest.raises(pfedbred.SettingError, match=rf"test-00000-of-00001.parquet, row {row}.*{words}"):
            mnist(str(folder), 100, 1)
    write_parquet(folder / "mnist", "test", {"image": [good, good], "label": ["a", "b"]})
    with pytest.raises(pfedbred.SettingError, match="the files beside it do not have the same columns"):
        mnist(str(folder), 100, 1)
    write_parquet(folder / "mnist", "train", {"image": [good, good], "label": ["a", "b"]})
    with pytest.raises(pfedbred.SettingError, match="row 0: column 'label' must hold whole numbers"):
        mnist(str(folder), 100, 1)
    (folder / "mnist" / "train-00000-of-00001.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(pfedbred.SettingError, match=r"cannot read .*train-00000"):
        mnist(str(folder), 100, 1)


def test_progress_is_shown_while_images_are_decoded(monkeypatch, capsys):
    monkeypatch.setattr(tables, "_PROGRESS_SECONDS", -1.0)
    cells = [png(np.full((2, 2), value, np.uint8)) for value in (3, 7)]
    decoded = TableRows.of([pyarrow.table({"image": cells})], ["x.parquet"], ()).images("image")
    assert decoded[:, 0, 0].tolist() == [3, 7]
    assert capsys.readouterr().err.splitlines() == ["decoding images: 1 of 2", "decoding images: 2 of 2"]


def test_labels_of_every_type():
    types = [getattr(pyarrow, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]
    for kind in (*types, pyarrow.float32(), pyarrow.dictionary(pyarrow.int8(), pyarrow.int64())):
        halves = [pyarrow.array(part, kind) for part in ([3, 0], [], [127])]
        table = TableRows(pyarrow.table({"y": pyarrow.chunked_array(halves)}), ["x.parquet"], [0])
        labels = table.whole_numbers("y")
        assert labels.dtype == np.int32
        assert labels.tolist() == [3, 0, 127]
    for kind, value in ((pyarrow.uint64(), 2**64 - 1), (pyarrow.int64(), -(2**63)), (pyarrow.uint32(), 2**31)):
        table = TableRows(pyarrow.table({"y": pyarrow.array([1, value], kind)}), ["x.parquet"], [0])
        with pytest.raises(pfedbred.SettingError, match=rf"x\.parquet, row 1: label {value} is not a whole number"):
            table.whole_numbers("y")
    for kind, values in ((pyarrow.float64(), [1.5]), (pyarrow.bool_(), [True]), (pyarrow.string(), ["1"])):
        table = TableRows(pyarrow.table({"y": pyarrow.array(values, kind)}), ["x.parquet"], [0])
        with pytest.raises(pfedbred.SettingError, match="column 'y' must hold whole numbers"):
            table.whole_numbers("y")


def test_femnist_from_the_hub_and_from_leaf(folder):
    """Both layouts give the same writers and pixels; LEAF's division into training and test is kept."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 28, 28), dtype=np.uint8)
    writer, label = np.repeat(["w1", "w2"], 20), rng.integers(0, 5, 40)
    label[0] = 4
    write_parquet(
        folder / "femnist",
        "train",
        {"image": [png(each) for each in pixels], "writer_id": list(writer), "character": label},
    )
    hub = pfedbred.load("femnist", data_dir=str(folder))
    assert hub.names == ("w1", "w2")
    assert hub.train.sizes.tolist() == [18, 18]
    assert hub.classes == 5
    assert hub.train.x.dtype == np.uint8

    leaf = folder.parent / "leaf"
    for part, rows in (("train", slice(0, 15)), ("test", slice(15, 20))):
        users = {}
        for number, user in enumerate(("w1", "w2")):
            mine = pixels[20 * number :][rows], label[20 * number :][rows]
            users[user] = ((mine[0].reshape(-1, 784) / 255).tolist(), mine[1].tolist())
        write_leaf(leaf / "femnist" / part / f"all_{part}.json", users)
    found = pfedbred.load("femnist", data_dir=str(leaf))
    assert found.names == ("w1", "w2")
    assert found.train.sizes.tolist() == [15, 15]
    np.testing.assert_array_equal(found.train.x, np.concatenate([pixels[:15], pixels[20:35]]))
    np.testing.assert_array_equal(found.test.y, np.concatenate([label[15:20], label[35:]]))
    np.testing.assert_allclose(np.asarray(found.inputs(found.train).take(np.array([0])))[0], pixels[0] / 255, rtol=1e-6)


def tweets(rng, count):
    words = ["good", "bad", "day", "sun", "rain", "I", "don't", "like", "it", "!"]
    return [["1", "date", "NO_QUERY", "me", " ".join(rng.choice(words, 6)), "training"] for _ in range(count)]


def write_originals(folder, **changes):
    """CIFAR-10's layout of PNG files with a row for each image, two images each; returns the images and labels."""
    x = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    files = {f"data_batch_{i + 1}.png": x[2 * i : 2 * i + 2] for i in range(5)} | {"test_batch.png": x[10:]}
    folder.mkdir(parents=True, exist_ok=True)
    for name, images in files.items():
        (folder / name).write_bytes(png(images.reshape(2, 1024, 3))["bytes"])
    y = np.arange(12) % 10
    labels = {"train_lables.json": json.dumps(y[:10].tolist()), "test_lables.json": json.dumps(y[10:].tolist())}
    for name, content in {**labels, **changes}.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return x, y


def test_cifar10_prefers_the_original_pixels(folder):
    x, y = write_originals(folder / "cifar10")
    write_parquet(folder / "cifar10", "train", {"img": [png(x[0] // 2)] * 3, "label": [1, 2, 3]})
    for _ in range(2):  # decoded, and from the cache
        pool = cifar10(str(folder), 20, 1)
        np.testing.assert_array_equal(pool.x, x)
        np.testing.assert_array_equal(pool.y, y)
        assert pool.source == "the original pixels"
    federation = pfedbred.load("cifar10", data_dir=str(folder), split="iid", clients=2)
    assert federation.facts["source"] == "the original pixels"
    (folder / "cifar10" / "data_batch_3.png").unlink()  # incomplete
    pool = cifar10(str(folder), 20, 1)
    assert pool.y.tolist() == [1, 2, 3]
    assert pool.source is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_batch_2.png": b"GIF89"}, "data_batch_2.png does not hold an image"),
        ({"test_batch.png": png(np.zeros((2, 1024), np.uint8))["bytes"]}, "test_batch.png: expected rows of 1,024 RGB"),
        ({"test_lables.json": "{}"}, "test_lables.json: expected a list of labels from 0 to 9"),
        ({"train_lables.json": "[1, 10]"}, "train_lables.json: expected a list of labels from 0 to 9"),
        ({"test_lables.json": "[1]"}, "cifar10 has 12 samples and 11 labels"),
    ],
)
def test_broken_originals_are_named(folder, changes, words):
    write_originals(folder / "cifar10", **changes)
    with pytest.raises(pfedbred.SettingError, match=words):
        cifar10(str(folder), 20, 1)


def test_sent140_from_leaf(folder):
    rng = np.random.default_rng(0)
    users = {f"user{i}": (tweets(rng, 2), rng.integers(0, 2, 2).tolist()) for i in range(200)}
    write_leaf(folder / "sent140" / "all_data.json", users)
    federation = pfedbred.load("sent140", data_dir=str(folder), clients=4)
    assert federation.clients == 4
    assert federation.shape == (25,)
    assert federation.about["embedding"] == "learned"
    assert len(federation.train.y) + len(federation.test.y) == 400
    assert 0.08 < len(federation.test.y) / 400 < 0.12
    assert federation.text.count == 2 + 10
    assert federation.train.x.max() == 11
    assert (federation.train.x[:, 7:] == 0).all()  # seven tokens at most, then padding


def test_sent140_from_the_hub_is_sampled_by_leafs_rule(folder, monkeypatch):
    monkeypatch.setattr(sent140_, "LEAF_SAMPLE", 8000)
    rng = np.random.default_rng(0)
    text = [each[4] for each in tweets(rng, 9000)]
    user = [f"u{i}" for i in np.repeat(np.arange(3000), 3)]
    write_parquet(
        folder / "sent140", "train", {"text": text, "user": user, "sentiment": rng.choice([0, 4], 9000).tolist()}
    )
    federation = pfedbred.load("sent140", data_dir=str(folder))
    assert federation.clients == 10
    assert set(federation.train.y) == {0, 1}
    assert len(federation.train.y) + len(federation.test.y) == 3000  # a thousand users of three tweets
    monkeypatch.setattr(sent140_, "LEAF_SAMPLE", 9000)  # no more than LEAF would sample
    federation = pfedbred.load("sent140", data_dir=str(folder))
    assert len(federation.train.y) + len(federation.test.y) == 9000


def test_sent140_from_a_table_of_some_tweets(folder):
    """All of them, before LEAF's files; users with few tweets are left out only on request."""
    rng = np.random.default_rng(0)
    user = [f"u{i}" for i in np.repeat(np.arange(200), np.arange(200) % 4 + 1)]
    text = [each[4] for each in tweets(rng, len(user))]
    label = rng.integers(0, 2, len(user)).tolist()
    write_parquet(folder / "sent140" / "pieces", "all", {"text": text, "user": user, "label": label})
    write_leaf(folder / "sent140" / "all_data.json", {"a": (tweets(rng, 2), [0, 1])})
    federation = pfedbred.load("sent140", data_dir=str(folder))
    assert len(federation.train.y) + len(federation.test.y) == len(user) == 500
    assert federation.train.y.sum() + federation.test.y.sum() == sum(label)
    few = pfedbred.load("sent140", data_dir=str(folder), split="paper(3)")
    assert len(few.train.y) + len(few.test.y) == 50 * 3 + 50 * 4


def test_sent140_finds_word_vectors_in_the_data_folder(folder):
    rng = np.random.default_rng(0)
    users = {f"user{i}": (tweets(rng, 2), rng.integers(0, 2, 2).tolist()) for i in range(100)}
    write_leaf(folder / "sent140" / "all_data.json", users)
    (folder / "glove6b").mkdir()
    known = ["good", "bad", "day"]
    vectors = rng.normal(size=(3, 60)).astype(np.float32)
    np.savez(folder / "glove6b" / "glove.npz", words=known, vectors=vectors)
    federation = pfedbred.load("sent140", data_dir=str(folder), clients=4)
    assert federation.about["embedding"] == "from glove.npz, 50 principal components"
    assert federation.text.vocabulary == ("bad", "day", "good")
    assert federation.words.vectors.shape == (5, 50)
    # Of three words two directions hold everything: the distances between them are those of the file.
    for one, other in ((0, 1), (0, 2), (1, 2)):
        places = [federation.text.vocabulary.index(known[each]) + 2 for each in (one, other)]
        mine = federation.words.vectors[places]
        distance = np.linalg.norm(vectors[one] - vectors[other])
        np.testing.assert_allclose(np.linalg.norm(mine[0] - mine[1]), distance, rtol=1e-4)
    learned = pfedbred.load("sent140(learned)", data_dir=str(folder), clients=4)
    assert (learned.about["embedding"], learned.words.vectors) == ("learned", None)
    for size in (100, 50):  # those of the paper's size come first
        lines = "".join(f"{word}{' 1.5' * size}\n" for word in known)
        (folder / "glove6b" / f"glove.6B.{size}d.txt").write_text(lines)
    whole = pfedbred.load("sent140", data_dir=str(folder), clients=4)
    assert whole.about["embedding"] == "from glove.6B.50d.txt"
    assert (whole.words.vectors[2:] == 1.5).all()
    given = pfedbred.load("sent140", data_dir=str(folder), clients=4, glove=str(folder / "glove6b" / "glove.npz"))
    assert given.words.vectors.shape == (5, 60)  # as they are, because they were asked for


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not a JSON file"),
        ("[]", "it has no user_data"),
        ('{"user_data": {"a": {"x": [[1]]}}}', "user 'a' has no lists x and y"),
        ('{"user_data": {"a": {"x": [], "y": [1]}}}', "user 'a' has 0 samples and 1 labels"),
        ('{"user_data": {"a": {"x": [["1", "2"]], "y": [1]}}}', "user 'a', sample 0: expected the fields"),
        ('{"user_data": {"a": {"x": [["1", "2", "3", "4", "t"]], "y": ["x"]}}}', "label 'x' is not a whole number"),
        ('{"user_data": {"a": {"x": [["1", "2", "3", "4", "t"]], "y": [2]}}}', "label 2 is not one of 0 to 1"),
    ],
)
def test_broken_leaf_files_name_the_user(folder, content, words):
    (folder / "sent140").mkdir(parents=True)
    (folder / "sent140" / "all_data.json").write_text(content)
    with pytest.raises(pfedbred.SettingError, match=f"all_data.json.*{words}"):
        sent140(str(folder), 10, 0)


def test_normalisations_by_hand():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (9000, 3), dtype=np.uint8)
    x[:, 2] = 7  # a constant feature
    floats = x.astype(float)
    train = np.arange(5000)
    for rule, mean, spread in (
        (by_pixel, floats.mean(0), floats.std(0) + 0.001),
        (by_one_number, floats.mean(), floats.std()),
        (to_plus_minus_one, 127.5, 127.5),
        (standardise, floats[:5000].mean(0), np.array([*floats[:5000, :2].std(0), 1.0])),
    ):
        shift, scale = rule(x, train)
        np.testing.assert_allclose((floats - shift) * scale, (floats - mean) / spread, atol=1e-9)


@pytest.mark.slow
@needs("mnist")
def test_real_mnist_is_normalised_on_the_device(folder):
    """Bytes in memory; as inputs, mean 0 and variance 1 in every pixel that varies, over the pooled images."""
    federation = pfedbred.load("mnist", data_dir=str(REAL))
    assert federation.train.x.dtype == np.uint8
    assert (federation.clients, federation.shape, federation.classes) == (100, (28, 28), 10)
    assert (len(federation.train.y), len(federation.test.y)) == (44_383, 14_846)
    pool = mnist(str(REAL), 100, 1)
    assert len(pool.y) == 70_000
    inputs = (pool.x[:, 10:18, 10:18].astype(np.float64) - federation.shift[10:18, 10:18]) * federation.scale[
        10:18, 10:18
    ]
    np.testing.assert_allclose(inputs.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(inputs.std(axis=0), 1, atol=1e-4)
    taken = np.asarray(federation.inputs(federation.train).take(np.array([3])))
    by_hand = (federation.train.x[3] - federation.shift) * federation.scale
    np.testing.assert_allclose(taken[0], by_hand, rtol=1e-5, atol=1e-6)


@pytest.mark.full
@needs("sent140")
@needs("glove6b100d")
def test_real_sent140(folder):
    federation = pfedbred.load("sent140", data_dir=str(REAL))
    assert federation.clients == 10
    assert len(federation.train.y) + len(federation.test.y) == 57_645
    assert federation.labels == ("negative", "positive")
    assert federation.words.vectors.shape == (federation.text.count, 50)
    known = (federation.train.x > 1).sum() / (federation.train.x > 0).sum()
    assert 0.84 < known < 0.86  # of the tokens, mostly without "i" and "a"


@needs("femnist")
def test_real_femnist(folder):
    federation = pfedbred.load("femnist", data_dir=str(REAL))
    assert (federation.clients, federation.shape, federation.classes) == (12, (28, 28), 10)
    assert len(federation.train.y) + len(federation.test.y) == 5997


@pytest.mark.slow
@needs("cifar10")
def test_real_cifar10(folder):
    federation = pfedbred.load("cifar10", data_dir=str(REAL))
    assert (federation.clients, federation.shape, federation.classes) == (20, (32, 32, 3), 10)
    inputs = np.asarray(federation.inputs(federation.train).take(np.arange(2000)))
    assert inputs.min() == -1
    assert inputs.max() == 1
