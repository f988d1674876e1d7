"""Synthetic(alpha, beta): clients whose models and inputs differ by a chosen amount.

Each client has its own random streams, so that it does not depend on the number of clients and can be generated alone:
a pool holds all clients at once, a population generates each on demand.

References: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Section 5.1, after Caldas et al.,
"LEAF", 2018.
"""

from __future__ import annotations

import numpy as np

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.federation import Arrays
from pfedbred.data.partition.owners import rows_by_owner
from pfedbred.data.pool import TEST_FRACTION, Assignment, Pool, divide
from pfedbred.data.population import Population
from pfedbred.settings.values import NonNegative

_FEATURES, _CLASSES = 60, 10
_SPREAD = np.arange(1, _FEATURES + 1) ** -0.6
_MEAN_SIZE = 250  # roughly, of training and test samples together


def synthetic(
    data_dir: str | None, clients: int, seed: int, *, alpha: NonNegative = 1.0, beta: NonNegative = 1.0
) -> Pool:
    """Synthetic(alpha, beta): alpha is how much the clients' models differ, beta how much their inputs differ."""
    made = [_client(alpha, beta, seed, k) for k in range(clients)]
    owner = np.repeat(np.arange(clients), [len(y) for _, y in made])
    x, y = (np.concatenate(part) for part in zip(*made, strict=True))
    return Pool("synthetic", x, y, _CLASSES, owner=owner, owners=tuple(map(str, range(clients))))


def by_client(pool: Pool, *, clients: int, seed: int, test_fraction: float = TEST_FRACTION) -> Assignment:
    """Every client's samples, divided into training and test by the client's own random stream."""
    assert pool.owner is not None
    parts = [
        divide([rows], test_fraction, _stream(seed, k)) for k, rows in enumerate(rows_by_owner(pool.owner, clients))
    ]
    return Assignment([each.train[0] for each in parts], [each.test[0] for each in parts], names=pool.owners)


def on_demand(clients: int, seed: int, *, alpha: float, beta: float) -> Population:
    """The clients of that split, each generated on demand."""

    def client(k: int) -> tuple[Arrays, Arrays]:
        x, y = _client(alpha, beta, seed, k)
        parts = divide([np.arange(len(y))], TEST_FRACTION, _stream(seed, k))
        (train,), (test,) = parts.train, parts.test
        return (x[train], y[train]), (x[test], y[test])

    client_bytes = _MEAN_SIZE * 4 * (_FEATURES + 1)
    return Population("synthetic", clients, (_FEATURES,), _CLASSES, client, client_bytes, seed)


def _client(alpha: float, beta: float, seed: int, k: int) -> Arrays:
    """Client k labels x ~ N(v_k, diag(j^-1.2)) by argmax(W_k x + b_k).

        W_k, b_k ~ N(u_k, 1), u_k ~ N(0, alpha);     v_k ~ N(B_k, 1), B_k ~ N(0, beta)

    Sizes follow a power law: 50 + LogNormal(4, 2), at most 2,000 (the tail would give single clients millions).
    """
    rng = np.random.default_rng([seed, k])
    size = min(2_000, 50 + int(rng.lognormal(4, 2)))
    u, centre = rng.normal(0, alpha**0.5), rng.normal(0, beta**0.5)
    weight, bias = rng.normal(u, 1, (_CLASSES, _FEATURES)), rng.normal(u, 1, _CLASSES)
    x = rng.normal(centre, 1, _FEATURES) + _SPREAD * rng.normal(size=(size, _FEATURES))
    # Not x @ weight.T: BLAS would start threads that keep spinning while the round trains.
    scores = np.einsum("nf,cf->nc", x, weight) + bias
    return x.astype(np.float32), np.argmax(scores, axis=1).astype(np.int32)


def _stream(seed: int, k: int) -> np.random.Generator:
    """The random stream that divides client k's samples into training and test."""
    return np.random.default_rng([seed, k, 1])


DATASET = Dataset(synthetic, by_client, clients=100, models=("mclr",), population=on_demand)
