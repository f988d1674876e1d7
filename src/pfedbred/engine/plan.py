"""How rounds are run and evaluated, apart from the algorithm; and the largest weight of a client in an average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.aggregation import Rule, weighted_mean
from pfedbred.aggregation.base import along_first
from pfedbred.algorithms.base import Algorithm, Uploads
from pfedbred.algorithms.local_optimizers import Optimizer
from pfedbred.data.augmentation import Augment
from pfedbred.data.minibatches import Batching
from pfedbred.engine import metrics, selection
from pfedbred.errors import SettingError
from pfedbred.types import Array, Key, Tree


@dataclass(frozen=True)
class Plan:
    """How rounds are run and evaluated, apart from the algorithm.

    Attributes:
      select: chooses I, whose uploads are averaged.
      participation: ``all`` clients train in every round and the selected are averaged (the paper's experiments), or
        only the ``sample`` that is averaged trains (practice).
      weights: of the average, by training samples (``data``: up to a :class:`WeightCap`; ``unbounded``: without a
        cap) or ``uniform``.
      batch_size: samples in a minibatch.
      executor: see :mod:`pfedbred.engine.executors`.
      chunk: clients that ``vmap`` runs at a time; if None, all, or as many as the device has memory for.
      rule: how uploads are combined.
      metrics: what is evaluated.
      diagnostics: whether the methods' diagnostics are collected.
      screening: how updates are compared: ``norms`` alone; ``responses`` and norms; or ``directions`` as well. With
        ``finite`` they are not: each counts that is finite.
      last_batch: what happens to a smaller last minibatch of a pass; see :class:`pfedbred.data.minibatches.Batching`.
      optimizer: takes the local steps, built from a method's step size; None for plain gradient descent.
      augment: changes training inputs at random, ``augment(key, x)``; None for no augmentation.
      steady: whether settings stay the same from round to round.
    """

    select: selection.Select
    participation: Literal["all", "sample"] = "all"
    weights: Literal["data", "unbounded", "uniform"] = "data"
    batch_size: int = 20
    executor: str = "auto"
    chunk: int | None = None
    rule: Rule = weighted_mean
    metrics: tuple[metrics.Metric, ...] = metrics.resolve("")
    diagnostics: bool = False
    screening: Literal["directions", "responses", "norms", "finite"] = "directions"
    last_batch: Literal["keep", "drop"] = "keep"
    optimizer: Optimizer | None = None
    augment: Augment | None = None
    steady: bool = True

    @property
    def batching(self) -> Batching:
        """How samples are cut into minibatches."""
        return Batching(self.batch_size, self.last_batch)

    def check_rule(self, algorithm: Algorithm, name: str = "this algorithm") -> None:
        """Rejects an aggregation rule for a server that has no average to apply it to."""
        if self.rule is not weighted_mean and not algorithm.server.averages:
            raise SettingError(f"aggregate must be mean for {name}: its server does not average uploads")

    def compares(self, algorithm: Algorithm) -> bool:
        """Whether screening compares more than the norms of the updates."""
        return (
            self.screening in ("directions", "responses") and algorithm.server.averages and algorithm.client.comparable
        )

    def remembers(self, algorithm: Algorithm) -> bool:
        """Whether screening remembers how clients respond to the server's steps.

        Not if clients are sampled, nor if an update depends on more than its starting point: with a schedule or an
        adaptive optimizer it changes although the server does not.
        """
        alike = self.steady and self.optimizer is None
        return self.compares(algorithm) and self.participation == "all" and alike

    def gather(
        self, uploads: Tree, numbers: Array, sizes: Array, valid: Array, key: Key, cap: WeightCap | None = None
    ) -> Uploads:
        """What the server aggregates: uploads along the first axis, the clients' numbers and their sample counts.

        ``cap`` is the :func:`weight_cap` of all clients that the server knows; by default, of these.
        """
        amount = jnp.ones(sizes.shape) if self.weights == "uniform" else sizes.astype(jnp.result_type(float))
        if self.weights == "data":
            cap = weight_cap(sizes) if cap is None else cap
            amount = jnp.minimum(amount, cap.samples(jnp.sum(valid)))
        amount = jnp.where(valid, amount, 0)
        weights = amount / jnp.maximum(jnp.sum(amount), 1)
        # A rejected upload may be NaN, and 0 * NaN is NaN.
        uploads = jax.tree.map(lambda leaf: jnp.where(along_first(valid, leaf), leaf, 0), uploads)
        return Uploads(uploads, numbers, weights, valid, key, self.rule)


class WeightCap(NamedTuple):
    """The largest number of samples that a client counts for in an average: the actual number is self-reported.

    Attributes:
      typical: the typical number of samples of a client.
      few: whether the server knows fewer than five clients.
    """

    typical: Any
    few: bool

    def samples(self, clients: Array | int) -> Array:
        """In an average of n ``clients``: 0.7 max(n, 3) times the typical size; three times if the server knows few.

        If the others have that size, its weight is about half (7/17 with very many clients, 7/15 with five, 3/6 with
        four), and at most 3/4, with two.
        """
        return jnp.where(self.few, 3.0, 0.7 * jnp.maximum(clients, 3)) * self.typical


def weight_cap(sizes: Array | np.ndarray) -> WeightCap:
    """From the median of the clients' sample counts; without the largest of fewer than five, where one can move it."""
    few, numpy = len(sizes) < 5, np if isinstance(sizes, np.ndarray) else jnp
    if len(sizes) < 2:
        return WeightCap(np.float64(np.inf), few)
    return WeightCap(numpy.median(numpy.sort(sizes)[:-1] if few else sizes), few)
