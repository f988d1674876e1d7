"""How a federation's labels are distributed: the samples of each client by label, or by interval of numbers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from pfedbred.data.federation import Federation, Part, Split

_INTERVALS = 10


class LabelTable(NamedTuple):
    """Names of the labels, or of intervals; and for each part, the clients' number of samples: clients x labels."""

    names: tuple[str, ...]
    counts: Mapping[Part, np.ndarray]


def label_table(federation: Federation, clients: np.ndarray | None = None) -> LabelTable:
    """The table of all clients, or of the given ones. A sample with several labels counts for each of them."""
    everyone = np.arange(federation.clients) if clients is None else clients
    names, edges = federation.labels or tuple(map(str, range(federation.classes))), None
    if federation.label_kind == "numbers":
        edges = _edges(np.concatenate([split.y for split in federation.parts.values()]).astype(np.float64))
        names = tuple(f"{low:.4g} to {high:.4g}" for low, high in itertools.pairwise(edges.tolist()))
    counts = {part: _counts(split, everyone, len(names), edges) for part, split in federation.parts.items()}
    return LabelTable(names, counts)


def _edges(y: np.ndarray) -> np.ndarray:
    """The ends of intervals of equal width."""
    low, high = float(y.min()), float(y.max())
    return np.linspace(low, high if high > low else low + 1, _INTERVALS + 1)


def _counts(split: Split, clients: np.ndarray, labels: int, edges: np.ndarray | None) -> np.ndarray:
    counts = np.zeros((len(clients), labels), np.int64)
    for place, client in enumerate(clients):
        y = split.y[split.offsets[client] : split.offsets[client + 1]]
        if y.ndim == 2:
            counts[place] = y.sum(axis=0)
        else:
            column = y if edges is None else np.clip(np.searchsorted(edges, y, side="right") - 1, 0, labels - 1)
            counts[place] = np.bincount(column, minlength=labels)
    return counts
