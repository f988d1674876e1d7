"""Federations: made from clients or arrays, checked, taken apart."""

import numpy as np
import pytest

import pfedbred


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
        (
            [(np.zeros((1, 1)), np.zeros(1, int)), (np.array([[1.0], [np.nan]]), np.zeros(2, int))],
            [(np.zeros((1, 1)), np.zeros(1, int))] * 2,
            "client 1, sample 1 of the training set has a feature that is not a finite number",
        ),
        (
            [(np.zeros((1, 1)), np.zeros(1, int))],
            [(np.array([[np.inf]]), np.zeros(1, int))],
            "client 0, sample 0 of the test set has a feature",
        ),
    ],
)
def test_mistakes_are_named(train, test, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.from_clients(train, test)


def test_unknown_datasets_are_named():
    with pytest.raises(pfedbred.SettingError, match="did you mean 'digits'"):
        pfedbred.load("didgits")


def test_arrays_with_names_for_clients_and_labels():
    """Every client gets its own rows, labels are numbered in alphabetical order, a quarter is for testing."""
    x = np.arange(16.0)[:, None]
    y = np.array(["cat", "dog"] * 8)
    shop = np.array(["b"] * 12 + ["a"] * 4)
    federation = pfedbred.from_arrays(x, y, shop)
    assert federation.names == ("a", "b")
    assert federation.labels == ("cat", "dog")
    assert federation.train.sizes.tolist() == [3, 9]
    assert federation.test.sizes.tolist() == [1, 3]
    for i, own in enumerate([range(12, 16), range(12)]):
        mine = np.concatenate([federation.train.client(i)[0], federation.test.client(i)[0]])[:, 0]
        assert sorted(mine) == list(own)
    for split in (federation.train, federation.test):
        np.testing.assert_array_equal(split.y, split.x[:, 0].astype(int) % 2)


def test_label_counts_by_hand():
    federation = pfedbred.from_clients(
        [(np.zeros((3, 1)), np.array([2, 0, 2])), (np.zeros((1, 1)), np.array([1]))],
        [(np.zeros((0, 1)), np.zeros(0, int)), (np.zeros((2, 1)), np.array([1, 1]))],
    )
    assert federation.train.label_counts(3).tolist() == [[1, 0, 2], [0, 1, 0]]
    assert federation.test.label_counts(3).tolist() == [[0, 0, 0], [0, 2, 0]]


def test_clients_can_be_held_out(digits):
    """Everybody is on one side or the other, with all of their samples; the seed decides who."""
    training, new = digits.hold_out(0.2, seed=3)
    assert (training.clients, new.clients) == (16, 4)
    assert sorted(map(int, training.names + new.names)) == list(range(20))
    for part in (training, new):
        for i, name in enumerate(part.names):
            for ours, theirs in ((part.train, digits.train), (part.test, digits.test)):
                np.testing.assert_array_equal(ours.client(i)[0], theirs.client(int(name))[0])
                np.testing.assert_array_equal(ours.client(i)[1], theirs.client(int(name))[1])
    assert digits.hold_out(0.2, seed=3)[1].names == new.names
    assert digits.hold_out(0.2, seed=4)[1].names != new.names


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_somebody_trains_and_somebody_is_held_out(digits, fraction):
    with pytest.raises(pfedbred.SettingError, match="at least one must be kept out and one must train"):
        digits.hold_out(fraction, seed=0)
