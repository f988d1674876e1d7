"""Federations: loaded by name, by path or as an object, made from clients or arrays, checked, divided."""

from pathlib import Path

import numpy as np
import pytest

import pfedbred
from pfedbred import data
from pfedbred.settings.values import Count


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
def test_wrong_clients_are_named(train, test, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.from_clients(train, test)


def test_unknown_datasets_are_named():
    with pytest.raises(pfedbred.SettingError, match="did you mean 'digits'"):
        pfedbred.load("didgits")


def test_objects_are_accepted_like_names(prepared):
    """A federation, a population or a function that returns one is used as it is; a Path is a path."""
    federation, path = prepared
    population = data.population("synthetic", clients=3)
    assert pfedbred.load(federation) is federation
    assert pfedbred.load(lambda: federation) is federation
    assert pfedbred.load(population) is population
    assert pfedbred.load(lambda: population) is population
    assert data.population(population) is population
    assert data.population(federation) is None
    np.testing.assert_array_equal(pfedbred.load(path).train.x, federation.train.x)
    for dataset in (federation, lambda: federation, population, path):
        with pytest.raises(pfedbred.SettingError, match=r"is already split: clients cannot be changed"):
            pfedbred.load(dataset, clients=3)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (3, "dataset must be a name, a path, a Dataset, a Federation, a Population or a function .*, not 3"),
        (None, "dataset must be .*, not None"),
        (lambda: [1, 2], "the dataset function must return a Federation, not a list"),
        (Path("digits"), "there is no file digits"),
    ],
)
def test_other_objects_are_rejected(dataset, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.load(dataset)


def every_third(pool, *, clients, seed=0):
    """A user's split: one row in three for testing."""
    rows = np.arange(len(pool.y)).reshape(clients, -1)
    return data.Assignment([mine[1::3] for mine in rows], [mine[::3] for mine in rows])


def test_a_split_can_be_a_function():
    x, y = np.arange(12.0)[:, None], np.arange(12) % 2
    federation = pfedbred.from_arrays(x, y, split=every_third, clients=2)
    assert federation.train.x[:, 0].tolist() == [1, 4, 7, 10]
    assert federation.test.x[:, 0].tolist() == [0, 3, 6, 9]
    assert federation.about["split"].endswith("test_loading.every_third")
    with pytest.raises(pfedbred.SettingError, match=r"every_third needs a number of clients"):
        pfedbred.from_arrays(x, y, split=every_third)
    with pytest.raises(pfedbred.SettingError, match=r"test_fraction cannot be chosen with the split .*every_third"):
        pfedbred.from_arrays(x, y, split=every_third, clients=2, test_fraction=0.5)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (3, "split must be a name or a function that returns an Assignment, not 3"),
        (lambda pool: [[0], [1]], "must return an Assignment, not a list"),
        (lambda pool: data.Assignment([[0], [1]], [[2]]), "2 clients for training and 1 for testing"),
        (lambda pool: data.Assignment([], []), "0 clients for training and 0 for testing"),
        (lambda pool: data.Assignment([[0, 4]], [[1]]), "row numbers from 0 to 3"),
        (lambda pool: data.Assignment([[0]], [[-1]]), "row numbers from 0 to 3"),
        (lambda pool: data.Assignment([[0.5]], [[1]]), "row numbers from 0 to 3"),
        (lambda pool: data.Assignment([[0], [1, 2]], [[], [2, 3]]), "row 2 both for training and for testing"),
        (lambda pool: data.Assignment([[0]], [[1]], np.zeros(3, int)), r"labels of shape \(3,\), not \(4,\)"),
        (lambda pool: data.Assignment([[0], []], [[1], []]), "client 1 has no training samples"),
    ],
)
def test_wrong_splits_are_rejected(split, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.from_arrays(np.eye(4), [0, 1, 0, 1], split=split)


def test_a_new_dataset_is_one_entry_of_the_table(monkeypatch):
    def pool(data_dir, clients, seed, *, size: Count = 4):
        return data.Pool("mine", np.eye(size, dtype=np.float32), np.arange(size, dtype=np.int32) % 2, 2)

    monkeypatch.setitem(data.DATASETS, "mine", data.Dataset(pool, every_third, clients=2))
    assert pfedbred.load("mine(6)").train.x.argmax(axis=1).tolist() == [1, 4]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split": "iid", "clients": 5, "seed": 3, "test_fraction": 0.5},
        {"clients": 4, "labels_per_client": 2, "task": "classification", "data_dir": "none"},
    ],
)
def test_a_dataset_can_be_an_object(options):
    named, given = (pfedbred.load(each, **options) for each in ("digits", data.DATASETS["digits"]))
    assert given.facts == named.facts
    assert given.about == named.about
    np.testing.assert_array_equal(given.train.x, named.train.x)
    np.testing.assert_array_equal(given.test.y, named.test.y)


def test_a_dataset_object_has_the_rules_of_a_name():
    digits = data.DATASETS["digits"]
    assert data.find(digits) == (digits, {})
    assert data.find(data.DATASETS["synthetic"])[1] == {"alpha": 1, "beta": 1}
    assert data.population(data.DATASETS["synthetic"], clients=3).clients == 3
    assert data.population(digits) is None
    with pytest.raises(pfedbred.SettingError, match="label_column is for your own files and hub"):
        pfedbred.load(digits, label_column="y")


def test_arrays_with_names_for_clients_and_labels():
    """Every client gets its rows, labels are numbered in alphabetical order, a quarter is for testing."""
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
    """Every client is on one side or the other, with all of its samples; the seed decides on which."""
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
def test_at_least_one_client_trains_and_one_is_held_out(digits, fraction):
    with pytest.raises(pfedbred.SettingError, match="at least one must be held out and one must train"):
        digits.hold_out(fraction, seed=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "synthetic with 2,000 clients needs about 0.2 GB, but only 0.1 GB are available: use fewer clients"),
        (
            ("--participation", "sample", "--aggregated", 1900),
            "only 0.1 GB are available: average fewer clients per round",
        ),
    ],
)
def test_clients_that_do_not_fit_into_memory_are_refused_before_they_are_made(options, words, call, monkeypatch):
    resource = pytest.importorskip("resource")
    limits = {resource.RLIMIT_AS: 10**8}
    monkeypatch.setattr(resource, "getrlimit", lambda each: (limits.get(each, resource.RLIM_INFINITY),) * 2)
    code, _, err = call("run", "--dataset", "synthetic", "--clients", 2000, "--rounds", 1, *options)
    assert code == 2
    assert words in err
