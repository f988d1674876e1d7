"""Federations and the split by labels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pfedbred
from pfedbred.data import by_labels


def numbered(samples_per_label, classes):
    """Samples that can be told apart: x is the sample's own number."""
    y = np.repeat(np.arange(classes), samples_per_label).astype(np.int32)
    return np.arange(len(y), dtype=np.float32)[:, None], y


@given(
    clients=st.integers(1, 30),
    classes=st.integers(2, 12),
    labels=st.integers(1, 12),
    samples=st.integers(60, 150),
    seed=st.integers(0, 1000),
)
def test_the_split_by_labels(clients, classes, labels, samples, seed):
    labels = min(labels, classes)
    x, y = numbered(samples, classes)
    federation = by_labels(x, y, clients=clients, labels_per_client=labels, seed=seed)
    assert federation.clients == clients
    taken = np.concatenate([federation.train.x, federation.test.x])[:, 0].astype(int)
    assert len(set(taken)) == len(taken)  # no sample twice, and so none in both train and test
    held = np.unique([(u + j) % classes for u in range(clients) for j in range(labels)])
    assert len(taken) == samples * len(held)  # and none left over
    for u in range(clients):
        expected = {(u + j) % classes for j in range(labels)}
        for split in (federation.train, federation.test):
            mine, mine_y = split.client(u)
            assert set(mine_y) == expected
            np.testing.assert_array_equal(mine_y, y[mine[:, 0].astype(int)])  # labels stay with their samples


def test_the_split_depends_on_the_seed_alone():
    x, y = numbered(80, 10)
    first, again, other = (by_labels(x, y, clients=8, labels_per_client=3, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.train.x, again.train.x)
    assert not np.array_equal(first.train.offsets, other.train.offsets)


def test_digits(digits):
    assert digits.clients == 20
    assert digits.shape == (64,)
    assert digits.classes == 10
    assert len(digits.train.y) + len(digits.test.y) == 1797
    assert all(len(set(digits.train.client(i)[1])) == 3 for i in range(20))
    assert 0.22 < len(digits.test.y) / 1797 < 0.28
    assert digits.train.x.min() == 0
    assert digits.train.x.max() == 1


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        ([], [], "same clients"),
        ([(np.zeros((2, 1)), np.zeros(2, int))], [], "same clients"),
        ([(np.zeros((2, 1)), np.zeros(3, int))], [(np.zeros((2, 1)), np.zeros(2, int))], "client 0 has 2 training"),
        ([(np.zeros((0, 1)), np.zeros(0, int))], [(np.zeros((2, 1)), np.zeros(2, int))], "client 0 has 0 training"),
        ([(np.zeros((2, 1)), np.zeros(2, int))], [(np.zeros((2, 1)), np.zeros(1, int))], "client 0 has 2 test"),
        ([(np.zeros((2, 1)), np.array([0, -1]))], [(np.zeros((1, 1)), np.zeros(1, int))], "whole numbers from 0"),
        ([(np.zeros((2, 1)), np.zeros(2, int))], [(np.zeros((1, 3)), np.zeros(1, int))], "samples of shape"),
        ([(np.zeros((2, 1)), np.array([0, 0.5]))], [(np.zeros((1, 1)), np.zeros(1, int))], "whole numbers from 0"),
    ],
)
def test_mistakes_are_named(train, test, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.from_clients(train, test)


def test_unknown_datasets_are_named():
    with pytest.raises(pfedbred.SettingError, match="did you mean 'digits'"):
        pfedbred.load("didgits")
