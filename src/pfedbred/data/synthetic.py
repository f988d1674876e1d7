"""Synthetic(alpha, beta): clients whose models and inputs differ by a chosen amount.

References: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Section 5.1, after Caldas et al.,
"LEAF", 2018.
"""

from __future__ import annotations

import numpy as np

from pfedbred.data.pool import Pool

_FEATURES, _CLASSES = 60, 10


def synthetic_pool(alpha: float, beta: float, clients: int, seed: int, name: str) -> Pool:
    """Client k labels x ~ N(v_k, diag(j^-1.2)) by argmax(W_k x + b_k).

        W_k, b_k ~ N(u_k, 1), u_k ~ N(0, alpha);     v_k ~ N(B_k, 1), B_k ~ N(0, beta)

    alpha is how much models differ, beta how much inputs do. Sizes follow a power law: 50 + LogNormal(4, 2), at most
    2,000 (the law's tail would make single clients of millions). Each client has a random stream of its own, so that
    it is the same client whatever the number of the others.
    """
    spread = np.arange(1, _FEATURES + 1) ** -0.6
    x, y, owner = [], [], []
    for k in range(clients):
        rng = np.random.default_rng([seed, k])
        size = min(2_000, 50 + int(rng.lognormal(4, 2)))
        u, centre = rng.normal(0, alpha**0.5), rng.normal(0, beta**0.5)
        weight, bias = rng.normal(u, 1, (_CLASSES, _FEATURES)), rng.normal(u, 1, _CLASSES)
        mine = rng.normal(centre, 1, _FEATURES) + spread * rng.normal(size=(size, _FEATURES))
        x.append(mine.astype(np.float32))
        y.append(np.argmax(mine @ weight.T + bias, axis=1))
        owner.append(np.full(size, k))
    names = tuple(str(k) for k in range(clients))
    return Pool(name, np.concatenate(x), np.concatenate(y), _CLASSES, owner=np.concatenate(owner), owners=names)
