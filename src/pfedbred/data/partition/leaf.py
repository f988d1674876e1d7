"""LEAF's splits of FEMNIST, Sent140 and Shakespeare: a sample of the users, each a client or one of a group.

Reference: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018.
"""

from __future__ import annotations

import numpy as np

from pfedbred.data.partition.owners import of_owners, rows_by_owner
from pfedbred.data.pool import Assignment, Pool, divide
from pfedbred.errors import SettingError
from pfedbred.settings import Count


def sampled_owners(
    pool: Pool, *, fraction: float, min_samples: int, at_least: int, rng: np.random.Generator
) -> np.ndarray:
    """LEAF's sample: users in random order until they hold ``fraction`` of all samples, then those with enough.

    At least ``at_least`` users are drawn if there are that many, so that a pool that is a small part of the data is
    used whole.
    """
    assert pool.owner is not None
    assert pool.owners is not None
    sizes = np.bincount(pool.owner, minlength=len(pool.owners))
    order = rng.permutation(len(sizes))
    held = np.cumsum(sizes[order])
    enough = max(int(np.searchsorted(held, fraction * len(pool.y))) + 1, at_least)
    taken = np.sort(order[:enough])
    return taken[sizes[taken] >= min_samples]


def by_writer(pool: Pool, *, clients: int | None = None, seed: int, test_fraction: float = 0.1) -> Assignment:
    """LEAF's FEMNIST: writers who hold 5 % of the samples (198 in the paper), nine tenths of each for training."""
    rng = np.random.default_rng(seed)
    if pool.owners is None:
        raise SettingError(f"{pool.name} does not name the writer of each sample")
    if clients is not None:
        if clients > len(pool.owners):
            raise SettingError(f"{pool.name} has {len(pool.owners)} writers here, not {clients}")
        chosen = np.sort(rng.choice(len(pool.owners), clients, replace=False))
    elif pool.raw:
        chosen = sampled_owners(pool, fraction=0.05, min_samples=2, at_least=198, rng=rng)
    else:
        chosen = np.arange(len(pool.owners))
    if not len(chosen):
        raise SettingError(f"{pool.name} has no writer with at least 2 samples")
    return of_owners(pool, chosen, test_fraction, rng)


def by_groups(
    pool: Pool, *, clients: int, seed: int, test_fraction: float = 0.1, min_samples: Count | None = None
) -> Assignment:
    """LEAF's Sent140 with its users in groups, whose shares of the users are drawn from Dirichlet(0.5).

    Users come from LEAF's sample: 5 % of the samples, at least 3 per user. If the pool is already such a sample, all
    are taken, or those with at least ``min_samples``. Every group has at least 10 samples.
    """
    rng = np.random.default_rng(seed)
    if pool.owner is None or pool.owners is None:
        raise SettingError(f"{pool.name} does not name the writer of each sample")
    rows = rows_by_owner(pool.owner, len(pool.owners))
    users = np.flatnonzero([len(each) >= (min_samples or 0) for each in rows])
    if pool.raw:
        users = sampled_owners(pool, fraction=0.05, min_samples=min_samples or 3, at_least=1000, rng=rng)
    sizes = np.array([len(rows[user]) for user in users], int)
    if sizes.sum() < 20 * clients:
        raise SettingError(f"{pool.name} has {sizes.sum()} samples, too few for {clients} groups: use fewer clients")
    for _ in range(10_000):
        shares = rng.dirichlet(np.full(clients, 0.5))
        group = rng.permutation(np.searchsorted(np.cumsum(shares), (np.arange(len(users)) + 0.5) / len(users)))
        group = np.minimum(group, clients - 1)
        if np.bincount(group, sizes, clients).min() >= 10:
            break
    else:
        raise SettingError(f"{pool.name}: cannot form {clients} groups of at least 10 samples each: use fewer clients")
    members = (users[group == number] for number in range(clients))
    parts = [np.sort(np.concatenate([rows[user] for user in each])) for each in members]
    return divide(parts, test_fraction, rng, pool.is_test)


def by_role(pool: Pool, *, clients: int | None = None, seed: int, test_fraction: float = 0.2) -> Assignment:
    """LEAF's Shakespeare: roles who hold 20 % of the samples, the first four fifths of what each says for training.

    Samples are windows of one text, each shifted by one character. Windows that share characters with both parts belong
    to neither; roles without any left for testing are not used.
    """
    rng = np.random.default_rng(seed)
    if pool.owner is None or pool.owners is None:
        raise SettingError(f"{pool.name} does not name the role of each sample")
    overlap = pool.x.shape[1] - 1
    rows = rows_by_owner(pool.owner, len(pool.owners))
    trained = [max(1, int((1 - test_fraction) * len(mine))) for mine in rows]
    enough = np.flatnonzero([count + overlap < len(mine) for count, mine in zip(trained, rows, strict=True)])
    if clients is not None:
        if clients > len(enough):
            raise SettingError(f"{pool.name} has {len(enough)} roles with enough text, not {clients}")
        chosen = np.sort(rng.choice(enough, clients, replace=False))
    else:
        chosen = np.intersect1d(sampled_owners(pool, fraction=0.2, min_samples=1, at_least=1, rng=rng), enough)
    if not len(chosen):
        raise SettingError(f"{pool.name} has no role with enough text")
    train, test = [rows[i][: trained[i]] for i in chosen], [rows[i][trained[i] + overlap :] for i in chosen]
    return Assignment(train, test, names=tuple(pool.owners[i] for i in chosen))
