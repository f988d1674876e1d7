"""Image sources and the paper's splits: on images made here, and on the real ones where they are."""

import io
import os
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import pfedbred
from pfedbred.data import sources
from pfedbred.data.paper import paper_split
from pfedbred.data.sources import Images

REAL = Path(os.environ.get("PFEDBRED_DATA") or Path(__file__).parents[2] / "shared" / "data")
needs_mnist = pytest.mark.skipif(
    not (REAL / "mnist").is_dir(), reason="the real MNIST is not here: set PFEDBRED_DATA to a folder that holds it"
)


def numbered(per_label):
    """Images that can be told apart: each carries its own number in four bytes."""
    y = np.repeat(np.arange(10), per_label).astype(np.int32)
    return Images(np.arange(len(y), dtype=np.uint32).view(np.uint8).reshape(-1, 4), y)


def number(x):
    return np.ascontiguousarray(x).view(np.uint32).ravel()


@settings(max_examples=15)
@given(
    clients=st.sampled_from([10, 20, 50, 100]),
    labels=st.integers(1, 4),
    seed=st.integers(0, 1000),
    rule=st.sampled_from(["mnist", "cifar10"]),
)
def test_the_papers_split(clients, labels, seed, rule):
    images = numbered(2000)
    federation = paper_split(images, clients=clients, labels_per_client=labels, seed=seed, name="x", sizes=rule)
    assert federation.clients == clients
    taken = number(np.concatenate([federation.train.x, federation.test.x]))
    assert len(set(taken)) == len(taken)  # no sample twice, and so none in both train and test
    for u in range(clients):
        (train, train_y), (test, test_y) = federation.train.client(u), federation.test.client(u)
        held = np.concatenate([train_y, test_y])
        expected = {(u + j) % 10 for j in range(labels)}
        assert set(held) == expected
        assert all(np.sum(held == label) >= 10 for label in expected)
        assert len(train) == int(0.75 * len(held))
        np.testing.assert_array_equal(train_y, images.y[number(train)])
        np.testing.assert_array_equal(test_y, images.y[number(test)])


def test_the_split_depends_on_the_seed_alone():
    first, again, other = (
        paper_split(numbered(2000), clients=20, labels_per_client=3, seed=seed, name="x") for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first.train.x, again.train.x)
    np.testing.assert_array_equal(first.test.y, again.test.y)
    assert not np.array_equal(first.train.offsets, other.train.offsets)


def test_slot_labels_touch_ten_samples_of_each_label():
    """The j-th label's first ten samples say j; all the others tell the truth."""
    images = numbered(2000)
    arguments = {"clients": 20, "labels_per_client": 3, "seed": 5, "name": "x"}
    noisy, clean = paper_split(images, slot_labels=True, **arguments), paper_split(images, **arguments)
    np.testing.assert_array_equal(noisy.train.x, clean.train.x)
    for u in range(20):
        wrong = {0: 0, 1: 0, 2: 0}
        for ours, theirs in ((noisy.train, clean.train), (noisy.test, clean.test)):
            for said, true in zip(ours.client(u)[1], theirs.client(u)[1], strict=True):
                if said != true:
                    assert said == (true - u) % 10
                    wrong[int(said)] += 1
        assert wrong == {j: 0 if (u + j) % 10 == j else 10 for j in range(3)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 15}, "multiple of 10 clients"),
        ({"labels_per_client": 11}, "labels_per_client must be 1 to 10"),
        ({"clients": 1000}, "use fewer clients"),
    ],
)
def test_impossible_splits_are_refused(options, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        paper_split(numbered(1100), **{"clients": 20, "labels_per_client": 3, "seed": 0, "name": "x", **options})


def write_parquet(folder, part, images, labels, column="image"):
    cells = []
    for pixels in images:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, format="PNG")
        cells.append({"bytes": file.getvalue(), "path": None})
    folder.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({column: cells, "label": labels})
    pyarrow.parquet.write_table(table, folder / f"{part}-00000-of-00001.parquet")


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch):
    """A folder in the hub's layout, with a few images; and no other place to look."""
    monkeypatch.delenv("PFEDBRED_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    train, test = (rng.integers(0, 256, (count, 28, 28), dtype=np.uint8) for count in (5, 3))
    write_parquet(tmp_path / "data" / "mnist", "train", train, [0, 1, 2, 3, 4])
    write_parquet(tmp_path / "data" / "mnist", "test", test, [7, 8, 9])
    return tmp_path, np.concatenate([train, test])


@pytest.mark.parametrize("place", ["option", "environment", "cache"])
def test_images_are_found(tiny_mnist, place, monkeypatch):
    folder, expected = tiny_mnist
    if place == "environment":
        monkeypatch.setenv("PFEDBRED_DATA", str(folder / "data"))
    if place == "cache":
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "elsewhere"))
        (folder / "elsewhere").mkdir()
        (folder / "data").rename(folder / "elsewhere" / "pfedbred")
    images = sources.images("mnist", str(folder / "data") if place == "option" else None)
    np.testing.assert_array_equal(images.x, expected)
    assert images.y.tolist() == [0, 1, 2, 3, 4, 7, 8, 9]


def test_absent_and_broken_sources_say_what_to_do(tiny_mnist, monkeypatch):
    folder, _ = tiny_mnist
    with pytest.raises(pfedbred.SettingError, match=r"fashion-mnist is not here: put .*fashion_mnist/train-"):
        sources.images("fashion-mnist", str(folder / "data"))
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)  # as if not installed
    with pytest.raises(pfedbred.SettingError, match="cifar10 is not here: put"):
        sources.images("cifar10")
    write_parquet(folder / "data" / "cifar10", "train", [np.zeros((4, 4, 3), np.uint8)], [0], column="picture")
    with pytest.raises(pfedbred.SettingError, match="has no column 'img', only picture, label"):
        sources.images("cifar10", str(folder / "data"))
    path = folder / "data" / "mnist" / "train-00000-of-00001.parquet"
    table = pyarrow.table({"image": [{"bytes": b"no image", "path": None}], "label": [0]})
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(pfedbred.SettingError, match="row 0 does not hold an image"):
        sources.images("mnist", str(folder / "data"))
    path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(pfedbred.SettingError, match="cannot read"):
        sources.images("mnist", str(folder / "data"))


@needs_mnist
def test_real_mnist_is_normalised_on_the_device():
    """Bytes in memory; as inputs, mean 0 and variance 1 in every pixel that varies, over the pooled images."""
    federation = pfedbred.load("mnist", data_dir=str(REAL))
    assert federation.train.x.dtype == np.uint8
    assert (federation.clients, federation.shape, federation.classes) == (100, (28, 28), 10)
    pool = sources.images("mnist", str(REAL))
    assert len(pool.y) == 70_000
    inputs = (pool.x[:, 10:18, 10:18].astype(np.float64) - federation.shift[10:18, 10:18]) * federation.scale[
        10:18, 10:18
    ]
    np.testing.assert_allclose(inputs.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(inputs.std(axis=0), 1, atol=1e-4)
    taken = np.asarray(federation.inputs(federation.train).take(np.array([3])))
    by_hand = (federation.train.x[3] - federation.shift) * federation.scale
    np.testing.assert_allclose(taken[0], by_hand, rtol=1e-5, atol=1e-6)
