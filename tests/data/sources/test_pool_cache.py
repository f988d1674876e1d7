"""Decoded images are cached once, never used when their source has changed, and never needed."""

import os
import shutil

import numpy as np
import pytest
from support.hub_files import png, write_leaf, write_parquet

import pfedbred
from pfedbred.data.datasets.femnist import femnist
from pfedbred.data.datasets.mnist import mnist
from pfedbred.data.sources import pool_cache
from pfedbred.data.sources.tables import TableRows

SHADES = (10, 60, 200)


def write_mnist(folder, shades=SHADES, labels=(0, 1, 2)):
    columns = {"image": [png(np.full((28, 28), shade, np.uint8)) for shade in shades], "label": list(labels)}
    write_parquet(folder / "mnist", "train", columns)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PFEDBRED_DATA", raising=False)
    write_mnist(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def decoded(monkeypatch):
    """How often a column of images has been decoded."""
    calls = []
    images = TableRows.images
    monkeypatch.setattr(TableRows, "images", lambda self, column: calls.append(column) or images(self, column))
    return calls


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "pfedbred" / "pools" / "mnist.safetensors"


def load(folder):
    """MNIST, with everything that a federation takes from the pool."""
    pool = mnist(str(folder), 100, 1)
    shift, scale = pool.normalise(pool.x, np.arange(len(pool.y)))
    return pool.x[:, 0, 0].tolist(), pool.y.tolist(), pool.name, pool.classes, shift[0, 0], scale[0, 0]


def test_images_are_decoded_once(folder, decoded, cache, capsys):
    first, again = load(folder), load(folder)
    assert first == again
    assert first[:4] == (list(SHADES), [0, 1, 2], "mnist", 10)
    np.testing.assert_allclose(first[4:], (np.mean(SHADES), 1 / (np.std(SHADES) + 0.001)))
    assert len(decoded) == 1
    assert [each.name for each in cache.parent.iterdir()] == [cache.name]
    assert capsys.readouterr().err == ""


def test_the_cache_is_for_its_owner_alone(folder, cache):
    before = os.umask(0o022)
    try:
        load(folder)
    finally:
        os.umask(before)
    assert [oct(each.stat().st_mode & 0o777) for each in cache.parents[:3]] == ["0o700"] * 3


def test_other_named_image_datasets_keep_their_clients(folder, decoded):
    """What FEMNIST needs beside images: writers, LEAF's division, whether LEAF has sampled the users."""
    users = {"w1": ([[1.0] * 784] * 2, [0, 1]), "w2": ([[0.2] * 784], [1])}
    for part in ("train", "test"):
        write_leaf(folder / "femnist" / part / "all.json", users)
    pixels = [png(np.zeros((28, 28), np.uint8))] * 2
    write_parquet(folder / "hub" / "femnist", "train", {"image": pixels, "writer_id": ["b", "a"], "character": [0, 1]})
    for place, raw in ((folder, False), (folder / "hub", True)):
        first, again = (femnist(str(place), None, 0) for _ in range(2))
        assert first.raw == again.raw == raw
        assert first.owners == again.owners
        assert first.classes == again.classes == 2
        for name in ("x", "y", "owner", "is_test"):
            np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert len(decoded) == 1  # of the hub's files; LEAF's have no images to decode


def test_a_changed_source_is_decoded_again(folder, decoded, cache):
    """A change of content, of the modification time alone, and of the folder; the old entry is replaced."""
    load(folder)
    write_mnist(folder, shades=(1, 2, 3, 4), labels=(9, 8, 7, 6))
    assert load(folder)[:2] == ([1, 2, 3, 4], [9, 8, 7, 6])
    file = folder / "mnist" / "train-00000-of-00001.parquet"
    os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns + 1))
    load(folder)
    assert len(decoded) == 3
    shutil.copytree(folder, folder.parent / "elsewhere")  # with the same sizes and modification times
    load(folder.parent / "elsewhere")
    assert len(decoded) == 4
    assert [each.name for each in cache.parent.iterdir()] == [cache.name]


def test_another_version_of_the_format_is_not_used(folder, decoded, monkeypatch):
    load(folder)
    monkeypatch.setattr(pool_cache, "_KIND", pool_cache._KIND._replace(format="pfedbred pool 0"))
    load(folder)
    assert len(decoded) == 2


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["flipped", "cut", "empty", "folder"],
)
def test_a_damaged_cache_is_only_a_warning(folder, decoded, cache, damage, capsys):
    expected = load(folder)
    damage(cache)
    assert load(folder) == expected
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 1
    assert printed[0].startswith("pfedbred: warning: ")
    assert str(cache) in printed[0]
    assert "decoded" in printed[0]
    if cache.is_file():  # replaced
        assert load(folder) == expected
        assert len(decoded) == 2
        assert capsys.readouterr().err == ""


def test_an_unwritable_cache_is_only_a_warning(folder, monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load(folder)[0] == list(SHADES)
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 1
    assert "the images will be decoded again next time" in printed[0]


def test_a_full_disk_leaves_nothing_behind(folder, monkeypatch, cache, capsys):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert load(folder)[0] == list(SHADES)
    assert "No space left on device" in capsys.readouterr().err
    assert list(cache.parent.iterdir()) == []


def test_wrong_files_are_not_cached(folder, cache):
    write_mnist(folder, labels=(0, 1, 10))
    with pytest.raises(pfedbred.SettingError, match="label 10 is not one of 0 to 9"):
        load(folder)
    assert not cache.exists()
