"""Every split, on distinguishable samples: none is used twice or both trained and tested on; the seed decides."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pfedbred
from pfedbred import data
from pfedbred.data.partition import SPLITS
from pfedbred.data.partition.cyclic import cyclic_labels
from pfedbred.data.partition.leaf import by_groups, by_writer, sampled_owners
from pfedbred.data.pool import Pool

pytest.importorskip("flwr_datasets", reason="the general splits need flwr-datasets: pip install 'pfedbred[data]'")


def numbered(y, classes=None, owner=None, **more):
    """Distinguishable samples: x is the number of the sample."""
    y = np.asarray(y, np.int32)
    owners = None if owner is None else tuple(f"u{i}" for i in range(int(np.max(owner)) + 1))
    return Pool(
        "numbered",
        np.arange(len(y), dtype=np.float32)[:, None],
        y,
        classes or int(y.max()) + 1,
        owner=owner,
        owners=owners,
        **more,
    )


def used(assignment):
    return np.concatenate([*assignment.train, *assignment.test]).astype(int)


def split(name, pool, clients, seed, **arguments):
    return SPLITS[name](pool, clients=clients, seed=seed, test_fraction=0.25, **arguments)


@settings(max_examples=25)
@given(
    name=st.sampled_from(["iid", "dirichlet", "labels", "quantity"]),
    clients=st.integers(1, 12),
    classes=st.integers(2, 6),
    samples=st.integers(200, 400),
    seed=st.integers(0, 1000),
)
def test_every_split_uses_each_sample_at_most_once(name, clients, classes, samples, seed):
    pool = numbered(np.random.default_rng(seed).integers(0, classes, samples), classes)
    arguments = {"labels": {"k": min(2, classes)}, "dirichlet": {"alpha": 5.0}}.get(name, {})
    assignment = split(name, pool, clients, seed, **arguments)
    assert len(assignment.train) == len(assignment.test) == clients
    rows = used(assignment)
    assert len(set(rows)) == len(rows)  # none twice, and so none in both training and test
    if name != "labels":  # which leaves out labels that no client holds
        assert sorted(rows) == list(range(samples))
    for train, test in zip(assignment.train, assignment.test, strict=True):
        assert len(train) >= 1
        assert len(test) == min(len(train) + len(test) - 1, round(0.25 * (len(train) + len(test))))


@pytest.mark.parametrize("name", ["iid", "dirichlet", "labels", "quantity", "column"])
def test_the_seed_decides_everything(name):
    rng = np.random.default_rng(0)
    pool = numbered(rng.integers(0, 4, 300), 4, owner=rng.integers(0, 20, 300))
    first, again, other = (split(name, pool, 5, seed) for seed in (7, 7, 8))
    for one, two in zip([*first.train, *first.test], [*again.train, *again.test], strict=True):
        np.testing.assert_array_equal(one, two)
    assert any(len(one) != len(two) or np.any(one != two) for one, two in zip(first.train, other.train, strict=True))


def test_iid_is_equal_and_mixed():
    pool = numbered(np.repeat([0, 1], 500))
    assignment = split("iid", pool, 10, 0)
    for train, test in zip(assignment.train, assignment.test, strict=True):
        mine = np.concatenate([train, test])
        assert len(mine) == 100
        assert 30 < np.sum(pool.y[mine]) < 70


def test_dirichlet_is_uneven_for_small_alpha_and_even_for_large():
    """The variance of a Dirichlet(alpha) share over N clients is (1/N)(1 - 1/N) / (N alpha + 1)."""
    pool = numbered(np.repeat(np.arange(10), 400))

    def shares(alpha):
        assignment = split("dirichlet", pool, 10, 1, alpha=alpha)
        rows = [np.concatenate(both) for both in zip(assignment.train, assignment.test, strict=True)]
        return np.array([[np.mean(pool.y[mine] == label) * len(mine) / 400 for mine in rows] for label in range(10)])

    for alpha in (0.3, 3.0, 100.0):
        expected = 0.1 * 0.9 / (10 * alpha + 1)
        assert 0.6 * expected < np.var(shares(alpha)) < 1.5 * expected


def test_labels_gives_k_labels():
    pool = numbered(np.repeat(np.arange(5), 60))
    assignment = split("labels", pool, 10, 0, k=2)
    for i, (train, test) in enumerate(zip(assignment.train, assignment.test, strict=True)):
        held = set(pool.y[np.concatenate([train, test])])
        assert len(held) == 2
        assert i % 5 in held


def test_quantity_changes_sizes_and_not_labels():
    """The variance of a Dirichlet(alpha) share over N clients is (1/N)(1 - 1/N) / (N alpha + 1)."""
    pool = numbered(np.tile(np.arange(2), 1000))
    shares = []
    for seed in range(10):
        assignment = split("quantity", pool, 20, seed, alpha=0.5)
        clients = [np.concatenate(both) for both in zip(assignment.train, assignment.test, strict=True)]
        sizes = np.array([len(mine) for mine in clients])
        assert sizes.sum() == 2_000
        assert sizes.min() >= 2
        shares.append(sizes / 2_000)
        for mine in clients:
            assert abs(pool.y[mine].mean() - 0.5) < 2.5 / np.sqrt(len(mine))  # five standard deviations
    assert 0.7 < np.var(shares) / (0.05 * 0.95 / (20 * 0.5 + 1)) < 1.4


def test_column_keeps_owners_together():
    owner = np.array([2, 0, 2, 1, 0, 2, 2])
    assignment = split("column", numbered(np.zeros(7), 2, owner=owner), None, 0)
    assert assignment.names == ("u0", "u1", "u2")
    for i, (train, test) in enumerate(zip(assignment.train, assignment.test, strict=True)):
        assert sorted(np.concatenate([train, test])) == np.flatnonzero(owner == i).tolist()


@given(
    clients=st.integers(1, 30),
    classes=st.integers(2, 12),
    labels=st.integers(1, 12),
    samples=st.integers(60, 150),
    seed=st.integers(0, 1000),
)
def test_the_split_by_labels(clients, classes, labels, samples, seed):
    labels = min(labels, classes)
    pool = numbered(np.repeat(np.arange(classes), samples))
    assignment = cyclic_labels(pool, clients=clients, labels_per_client=labels, seed=seed, test_fraction=0.25)
    rows = used(assignment)
    assert len(set(rows)) == len(rows)  # no sample twice, and so none in both train and test
    held = np.unique([(u + j) % classes for u in range(clients) for j in range(labels)])
    assert len(rows) == samples * len(held)  # and none left over
    for u in range(clients):
        expected = {(u + j) % classes for j in range(labels)}
        for part in (assignment.train, assignment.test):
            assert set(pool.y[part[u]]) == expected


def test_leaf_takes_users_until_it_has_enough():
    """Five per cent of the samples, by whole users, and of those the ones with enough samples."""
    sizes = np.random.default_rng(1).integers(1, 30, 2000)
    pool = numbered(np.zeros(sizes.sum()), 2, owner=np.repeat(np.arange(2000), sizes))
    rng = np.random.default_rng(0)
    chosen = sampled_owners(pool, fraction=0.05, min_samples=1, at_least=1, rng=rng)
    held = sizes[chosen].sum()
    assert 0.05 * sizes.sum() <= held < 0.05 * sizes.sum() + 30
    few = sampled_owners(pool, fraction=0.05, min_samples=10, at_least=1, rng=np.random.default_rng(0))
    assert set(few) == {user for user in chosen if sizes[user] >= 10}
    assert len(sampled_owners(pool, fraction=0.05, min_samples=1, at_least=5000, rng=rng)) == 2000


def test_writers_keep_nine_tenths_for_training():
    pool = numbered(np.zeros(400), 2, owner=np.repeat(np.arange(4), 100))
    assignment = by_writer(pool, clients=None, seed=0)
    assert [len(rows) for rows in assignment.train] == [90] * 4
    assert [len(rows) for rows in assignment.test] == [10] * 4
    assert by_writer(pool, clients=2, seed=0).names != ("u0", "u1", "u2", "u3")


@settings(max_examples=20)
@given(seed=st.integers(0, 500), divided=st.booleans())
def test_groups_keep_users_whole(seed, divided):
    """A user's samples stay together, every group has ten samples, and LEAF's division into parts is kept."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, 300)
    owner = np.repeat(np.arange(300), sizes)
    is_test = rng.random(len(owner)) < 0.2 if divided else None
    pool = numbered(np.zeros(len(owner)), 2, owner=owner, is_test=is_test, raw=False)
    assignment = by_groups(pool, clients=5, seed=seed)
    rows = used(assignment)
    assert sorted(rows) == list(range(len(owner)))
    group = np.empty(len(owner), int)
    for i, (train, test) in enumerate(zip(assignment.train, assignment.test, strict=True)):
        assert len(train) + len(test) >= 10
        group[train], group[test] = i, i
        if divided:
            assert not pool.is_test[train].any()
            assert pool.is_test[test].all()
    assert all(len(set(group[owner == user])) == 1 for user in range(300))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "nope"}, "unknown split 'nope'"),
        ({"split": "dirichlet(0)"}, "dirichlet's alpha must be a number from 0.001 to 1000000, not '0'"),
        ({"split": "dirichlet(1e-300)"}, "dirichlet's alpha must be a number from 0.001 to 1000000, not '1e-300'"),
        ({"split": "quantity(1e-300)"}, "quantity's alpha must be a number from 0.001 to 1000000, not '1e-300'"),
        ({"split": "dirichlet(1e300)"}, "dirichlet's alpha must be a number from 0.001 to 1000000, not '1e300'"),
        ({"split": "quantity(1e30)"}, "quantity's alpha must be a number from 0.001 to 1000000, not '1e30'"),
        ({"split": "labels(2147483647)"}, "digits has only 10 labels"),
        ({"split": "dirichlet(1, 2)"}, "dirichlet takes alpha"),
        ({"split": "iid(3)"}, "iid takes no values"),
        ({"split": "labels(11)"}, "digits has only 10 labels"),
        ({"split": "labels(2"}, "split must be a name, or a name with values"),
        ({"split": "column"}, "does not say which client each sample belongs to"),
        ({"split": "quantity", "clients": 1000}, "too few for 1000 clients"),
        ({"split": "dirichlet(0.001)", "clients": 200}, "over 200 clients: some would get no samples: use fewer"),
        ({"split": "iid", "labels_per_client": 2}, r"does not apply to the split iid; use labels\(2\)"),
        ({"split": "paper", "test_fraction": 0.1}, None),
        ({"client_column": "x"}, "client_column is for your own files"),
        ({"clients": 500}, "use fewer clients"),
        ({"clients": 0}, "clients must be a whole number >= 1"),
        ({"split": "iid", "clients": -1}, "clients must be a whole number >= 1"),
        ({"labels_per_client": 11}, "labels_per_client must be 1 to 10"),
        ({"glove": "g.txt"}, "glove is for texts"),
    ],
)
def test_impossible_splits_are_rejected(options, words):
    if words is None:
        assert len(pfedbred.load("digits", **options).test.y) < 200
        return
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.load("digits", **options)


def test_without_flwr_datasets_a_split_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "flwr_datasets", None)
    monkeypatch.setitem(__import__("sys").modules, "flwr_datasets.partitioner", None)
    with pytest.raises(pfedbred.SettingError, match=r"the split iid needs flwr_datasets.*pip install"):
        pfedbred.load("digits", split="iid")
    assert pfedbred.load("digits").clients == 20


def test_synthetic_clients_differ_by_alpha_and_beta():
    """beta moves the clients' inputs apart: the variance of v_k over clients is 1 + beta."""
    for beta in (0.0, 4.0):
        pool = data.DATASETS["synthetic"].pool(None, 200, 0, alpha=1.0, beta=beta)
        centres = np.stack([pool.x[pool.owner == k].mean(axis=0) for k in range(200)])
        assert abs(centres.var() / (1 + beta) - 1) < 0.35
    federation = pfedbred.load("synthetic(0.5, 0.5)", clients=30)
    assert (federation.clients, federation.shape, federation.classes) == (30, (60,), 10)
    fewer, more = (data.DATASETS["synthetic"].pool(None, clients, 0) for clients in (5, 9))
    np.testing.assert_array_equal(fewer.x[fewer.owner == 3], more.x[more.owner == 3])  # the same client
    labels = [np.bincount(pool.y[pool.owner == k], minlength=10).argmax() for k in range(200)]
    assert len(set(labels)) > 5  # clients' models differ


@pytest.mark.parametrize("split", ["paper", "iid", "dirichlet", "labels", "quantity"])
def test_more_clients_than_samples_are_rejected_before_they_take_memory(split):
    pfedbred.load("digits")  # libraries load before memory is counted
    tracemalloc.start()
    try:
        with pytest.raises(pfedbred.SettingError, match="digits has 1797 samples, too few for 2000000 clients"):
            pfedbred.load("digits", split=split, clients=2_000_000)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
