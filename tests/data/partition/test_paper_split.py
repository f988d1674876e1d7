"""The paper's splits, on generated labels and on the label counts of MNIST."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pfedbred
from pfedbred.data import paper_split
from pfedbred.data.pool import Pool

MNIST_COUNTS = (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)


def numbered(counts):
    """Samples of ten labels; a sample is its row."""
    y = np.repeat(np.arange(10), counts).astype(np.int32)
    return Pool("numbered", np.zeros((len(y), 1), np.uint8), y, 10)


@settings(max_examples=15)
@given(
    clients=st.sampled_from([10, 20, 50, 100]),
    labels=st.integers(1, 4),
    seed=st.integers(0, 1000),
    rule=st.sampled_from(["mnist", "cifar10"]),
)
def test_the_papers_split(clients, labels, seed, rule):
    pool = numbered(2000)
    assignment = paper_split(pool, clients=clients, labels_per_client=labels, seed=seed, sizes=rule)
    assert len(assignment.train) == len(assignment.test) == clients
    taken = np.concatenate([*assignment.train, *assignment.test])
    assert len(set(taken)) == len(taken)  # no sample is used twice
    np.testing.assert_array_equal(assignment.y, pool.y)
    for u in range(clients):
        held = np.concatenate([assignment.train[u], assignment.test[u]])
        expected = {(u + j) % 10 for j in range(labels)}
        assert set(pool.y[held]) == expected
        assert all(np.sum(pool.y[held] == label) >= 10 for label in expected)
        assert len(assignment.train[u]) == int(0.75 * len(held))


def test_seed_one_gives_the_clients_of_the_papers_mnist_their_sizes():
    """44,000 training and 15,000 test samples; and each client's amount by a plain transcription of the rule."""
    np.random.seed(1)  # noqa: NPY002  (the experiments' own generators)
    random.seed(1)
    props = np.random.lognormal(0, 2.0, (10, 100, 3))  # noqa: NPY002
    left = [count - 300 for count in MNIST_COUNTS]
    expected = []
    scaled = [(MNIST_COUNTS[label] - 1000) * props[label] / props[label].sum() for label in range(10)]
    for u in range(100):
        size = 30
        for j in range(3):
            label = (u + j) % 10
            first = random.randint(10, 200)
            amount = int(scaled[label][u // 10][j]) * random.randint(1, 10) + first
            if amount < left[label]:
                left[label] -= amount
                size += amount
        expected.append(size)
    assignment = paper_split(numbered(MNIST_COUNTS), clients=100, labels_per_client=3, seed=1)
    sizes = [len(train) + len(test) for train, test in zip(assignment.train, assignment.test, strict=True)]
    assert sizes == expected
    assert round(sum(map(len, assignment.train)), -3) == 44_000
    assert round(sum(map(len, assignment.test)), -3) == 15_000


def test_the_split_depends_on_the_seed_alone():
    first, again, other = (
        paper_split(numbered(2000), clients=20, labels_per_client=3, seed=seed) for seed in (3, 3, 4)
    )
    for one, two in zip([*first.train, *first.test], [*again.train, *again.test], strict=True):
        np.testing.assert_array_equal(one, two)
    assert [len(rows) for rows in first.train] != [len(rows) for rows in other.train]


def test_slot_labels_touch_ten_samples_of_each_label():
    """The j-th label's first ten samples say j; all the others tell the truth."""
    pool = numbered(2000)
    arguments = {"clients": 20, "labels_per_client": 3, "seed": 5}
    noisy, clean = paper_split(pool, slot_labels=True, **arguments), paper_split(pool, **arguments)
    np.testing.assert_array_equal(np.concatenate(noisy.train), np.concatenate(clean.train))
    for u in range(20):
        wrong = {0: 0, 1: 0, 2: 0}
        for row in np.concatenate([noisy.train[u], noisy.test[u]]):
            said, true = noisy.y[row], pool.y[row]
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
def test_impossible_splits_are_rejected(options, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        paper_split(numbered(1100), **{"clients": 20, "labels_per_client": 3, "seed": 0, **options})
