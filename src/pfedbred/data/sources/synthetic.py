"""Synthetic(alpha, beta): clients whose models and inputs differ by a chosen amount.

Each client has random streams of its own, so that it is the same client whatever the number of the others, and can be
made alone: all of them at once are a pool, as they are asked for a population.

References: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Section 5.1, after Caldas et al.,
"LEAF", 2018.
"""

from __future__ import annotations

import numpy as np

from pfedbred.data.federation import Samples
from pfedbred.data.partition.splits import rows_by_owner
from pfedbred.data.pool import Assignment, Pool, divide
from pfedbred.data.population import Population

_FEATURES, _CLASSES = 60, 10
_SPREAD = np.arange(1, _FEATURES + 1) ** -0.6
_MEAN_SIZE = 250  # training and test together, about


def _client(alpha: float, beta: float, seed: int, k: int) -> Samples:
    """Client k labels x ~ N(v_k, diag(j^-1.2)) by argmax(W_k x + b_k).

        W_k, b_k ~ N(u_k, 1), u_k ~ N(0, alpha);     v_k ~ N(B_k, 1), B_k ~ N(0, beta)

    alpha is how much models differ, beta how much inputs do. Sizes follow a power law: 50 + LogNormal(4, 2), at most
    2,000 (the law's tail would make single clients of millions).
    """
    rng = np.random.default_rng([seed, k])
    size = min(2_000, 50 + int(rng.lognormal(4, 2)))
    u, centre = rng.normal(0, alpha**0.5), rng.normal(0, beta**0.5)
    weight, bias = rng.normal(u, 1, (_CLASSES, _FEATURES)), rng.normal(u, 1, _CLASSES)
    x = rng.normal(centre, 1, _FEATURES) + _SPREAD * rng.normal(size=(size, _FEATURES))
    # Not x @ weight.T: BLAS would start threads, which go on spinning beside the training of a sample.
    scores = np.einsum("nf,cf->nc", x, weight) + bias
    return x.astype(np.float32), np.argmax(scores, axis=1).astype(np.int32)


def _stream(seed: int, k: int) -> np.random.Generator:
    """What divides client k's samples into training and test."""
    return np.random.default_rng([seed, k, 1])


def synthetic_pool(alpha: float, beta: float, clients: int, seed: int, name: str) -> Pool:
    """The samples of all clients."""
    made = [_client(alpha, beta, seed, k) for k in range(clients)]
    owner = np.repeat(np.arange(clients), [len(y) for _, y in made])
    x, y = (np.concatenate(part) for part in zip(*made, strict=True))
    return Pool(name, x, y, _CLASSES, owner=owner, owners=tuple(map(str, range(clients))))


def by_client(pool: Pool, *, clients: int, seed: int, test_fraction: float) -> Assignment:
    """Every client's samples divided by a random stream of its own."""
    assert pool.owner is not None
    parts = [
        divide([rows], test_fraction, _stream(seed, k)) for k, rows in enumerate(rows_by_owner(pool.owner, clients))
    ]
    return Assignment([each.train[0] for each in parts], [each.test[0] for each in parts], names=pool.owners)


def synthetic_population(
    alpha: float, beta: float, clients: int, seed: int, name: str, test_fraction: float
) -> Population:
    """The same clients, each made when it is asked for."""

    def client(k: int) -> tuple[Samples, Samples]:
        x, y = _client(alpha, beta, seed, k)
        parts = divide([np.arange(len(y))], test_fraction, _stream(seed, k))
        (train,), (test,) = parts.train, parts.test
        return (x[train], y[train]), (x[test], y[test])

    return Population(
        name, clients, (_FEATURES,), _CLASSES, client, client_bytes=_MEAN_SIZE * 4 * (_FEATURES + 1), seed=seed
    )
