r"""How far one client's personal model deviates from the others', by label (the paper's Personalization section).

L_ic  mean loss of P_i on client i's own test samples with label c; 0 where it has none
G_ic  mean loss of P_i on all clients' test samples with label c
Lbar_c = sum_i L_ic n_ic / sum_i n_ic,     Gbar_c = mean_i G_ic
Delta L_ic = L_ic - Lbar_c,                Delta G_ic = G_ic - Gbar_c
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.experiment.result import Run
from pfedbred.io.shapes import COUNT, NUMBER, Maybe
from pfedbred.runs.schema import PLATFORM
from pfedbred.types import Array, Tree

DEVIATION = {
    **{kind: [Maybe(NUMBER)] for kind in ("global", "local")},
    "samples": {kind: [COUNT] for kind in ("global", "local")},
    "fingerprint": {"rounds": COUNT},
    "platform": PLATFORM,
}
"""What a deviation's record must hold."""


class Deviation(NamedTuple):
    """Delta L and Delta G, by client and label."""

    local: np.ndarray
    global_: np.ndarray


def deviation(run: Run[Any], seed: int = 0) -> Deviation:
    """The deviation of every client's personal model, for the seed at position ``seed``."""
    federation, models = run.backend.samples, run.backend.models(run.state)
    assert federation is not None
    assert models is not None
    personal = models[1]
    mine = jax.tree.map(lambda leaf: leaf[seed], personal)
    test = federation.test
    inputs, labels = jax.tree.map(jnp.asarray, (federation.inputs(test), test.y))
    predict, losses = run.backend.algorithm.predict, run.backend.task.losses

    def of_client(model: Tree) -> Array:
        """The loss of a model on every test sample of all clients, a block at a time."""
        return jax.lax.map(
            lambda row: losses(predict(model, inputs.take(row[None])), labels[row][None])[0],
            jnp.arange(len(test.y)),
            batch_size=min(1024, len(test.y)),
        )

    by_client = np.asarray(jax.jit(lambda models: jax.lax.map(of_client, models))(mine), np.float64)
    return deviations(by_client, test.y, test.offsets, federation.classes)


def deviations(losses: np.ndarray, labels: np.ndarray, offsets: np.ndarray, classes: int) -> Deviation:
    """The deviations, from the loss of each client's model (rows) on each test sample of all clients (columns)."""
    clients = len(losses)
    is_label = labels[:, None] == np.arange(classes)
    everyone = is_label.sum(axis=0)
    on_all = losses @ is_label / np.maximum(everyone, 1)
    on_own, count = np.zeros((clients, classes)), np.zeros((clients, classes), int)
    for i in range(clients):
        rows = slice(offsets[i], offsets[i + 1])
        count[i] = is_label[rows].sum(axis=0)
        on_own[i] = losses[i, rows] @ is_label[rows] / np.maximum(count[i], 1)
    mean_own = (on_own * count).sum(axis=0) / np.maximum(count.sum(axis=0), 1)
    return Deviation(on_own - mean_own, on_all - on_all.mean(axis=0))
