"""The paper's splits of MNIST, Fashion-MNIST and CIFAR-10: few labels per client, sizes by a power law."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np

from pfedbred.data.pool import Assignment, Pool
from pfedbred.errors import SettingError

_FIRST = 10  # samples of each of its labels that every client gets before sizes are drawn
_LABELS = 10


def paper_split(
    pool: Pool,
    *,
    clients: int,
    labels_per_client: int,
    seed: int,
    sizes: Literal["mnist", "cifar10"] = "mnist",
    slot_labels: bool = False,
) -> Assignment:
    """Client u holds the labels (u + j) mod 10, j = 0 .. L - 1; three quarters of its samples are for training.

    First every client takes ten samples of each of its labels. Then, with props ~ LogNormal(0, 2) of shape (10, N, L)
    scaled for each label to the available samples, client u takes, for its j-th label l,

        int(props[l, u // (N / 10), j]) * randint(1, 10) + randint(10, 200)          (``mnist``)
        2 (int(props[l, u // (N / 10), j]) + randint(300, 600))                      (``cifar10``)

    more samples, if that many are left (randint includes both ends). No sample is used twice; the seed decides
    everything. Sizes are drawn from NumPy's and Python's legacy generators, in the order in which the paper's
    experiments drew them, so that seed 1 reproduces the client sizes of the paper's MNIST column.

    Args:
      pool: the official training and test sets together.
      clients: N, a multiple of ten.
      labels_per_client: L.
      seed: seed of the split.
      sizes: which of the two rules to use.
      slot_labels: whether the first ten samples of a client's j-th label are labelled j instead: the label noise of the
        paper's MNIST column.
    """
    if clients % _LABELS:
        raise SettingError(f"the paper's split needs a multiple of {_LABELS} clients, not {clients}")
    if not 1 <= labels_per_client <= _LABELS:
        raise SettingError(f"labels_per_client must be 1 to {_LABELS}, not {labels_per_client}")
    rng = np.random.default_rng(seed)
    stock = [list(rng.permutation(np.flatnonzero(pool.y == label))) for label in range(_LABELS)]
    counts = np.array([len(rows) for rows in stock])
    reserved = 1000 if sizes == "mnist" else clients
    if np.any(counts < max(reserved, _FIRST * labels_per_client * clients // _LABELS)):
        raise SettingError(f"{pool.name} has too few samples of a label for {clients} clients: use fewer clients")
    draw = random.Random(seed)
    props = np.random.RandomState(seed).lognormal(0.0, 2.0, (_LABELS, clients, labels_per_client))
    props *= (counts - reserved)[:, None, None] / props.sum(axis=(1, 2), keepdims=True)

    slots = [(u, j, (u + j) % _LABELS) for u in range(clients) for j in range(labels_per_client)]
    rows: list[list[int]] = [[] for _ in range(clients)]
    y = pool.y.copy()
    for u, j, label in slots:
        first = [stock[label].pop() for _ in range(_FIRST)]
        rows[u] += first
        if slot_labels:
            y[first] = j
    for u, j, label in slots:
        drawn = int(props[label, u // (clients // _LABELS), j])
        if sizes == "mnist":
            added, factor = draw.randint(10, 200), draw.randint(1, 10)
            more = drawn * factor + added
        else:
            more = 2 * (drawn + draw.randint(300, 600))
        if more < len(stock[label]):
            rows[u] += [stock[label].pop() for _ in range(more)]

    train, test = [], []
    for mine in rows:
        mixed = rng.permutation(np.asarray(mine))
        cut = int(0.75 * len(mine))
        train.append(mixed[:cut])
        test.append(mixed[cut:])
    return Assignment(train, test, y)
