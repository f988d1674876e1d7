"""How rounds are run and evaluated, apart from what the algorithm does; and how much a client counts in an average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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
    """How rounds are run and evaluated, apart from what the algorithm does.

    Attributes:
      select: chooses I, whose uploads are averaged.
      participation: ``all`` clients train in every round and the selected are averaged (the paper's experiments), or
        only the ``sample`` that is averaged trains (practice).
      weights: of the average, by training samples (``data``: up to :func:`largest_weight`; ``unbounded``: however
        many) or ``uniform``.
      batch_size: samples in a minibatch.
      executor: see :mod:`pfedbred.engine.executors`.
      chunk: clients that ``vmap`` runs at a time; if None, all, or as many as the device has memory for.
      rule: how uploads are combined.
      metrics: what is evaluated.
      diagnostics: whether the methods' diagnostics are collected.
      screening: how updates are compared: ``norms`` alone; ``responses`` and norms; or ``directions`` as well.
      last_batch: what happens to a smaller last minibatch of a pass; see :class:`pfedbred.data.minibatches.Batching`.
      optimizer: takes the local steps, built from a method's step size; None for plain gradient descent.
      augment: changes training inputs at random, ``augment(key, x)``; None leaves them.
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
    screening: Literal["directions", "responses", "norms"] = "directions"
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
        return self.screening != "norms" and algorithm.server.averages and algorithm.client.comparable

    def remembers(self, algorithm: Algorithm) -> bool:
        """Whether screening keeps how clients respond to the server's steps.

        Not where they come and go, nor where an update depends on more than where it starts: with a schedule or an
        optimizer that adapts, it changes though the server does not move.
        """
        alike = self.steady and self.optimizer is None
        return self.compares(algorithm) and self.participation == "all" and alike

    def gather(
        self, uploads: Tree, numbers: Array, sizes: Array, valid: Array, key: Key, typical: Array | float | None = None
    ) -> Uploads:
        """What the server aggregates: uploads along the first axis, the clients' numbers and their sample counts.

        ``typical`` is the :func:`typical_size` of all clients that the server knows; by default, of these.
        """
        amount = jnp.ones(sizes.shape) if self.weights == "uniform" else sizes.astype(jnp.result_type(float))
        if self.weights == "data":
            usual = typical_size(sizes) if typical is None else typical
            amount = jnp.minimum(amount, largest_weight(jnp.sum(valid), usual))
        amount = jnp.where(valid, amount, 0)
        weight = amount / jnp.maximum(jnp.sum(amount), 1)
        # A rejected upload may be NaN, and 0 * NaN is NaN.
        uploads = jax.tree.map(lambda leaf: jnp.where(along_first(valid, leaf), leaf, 0), uploads)
        return Uploads(uploads, numbers, weight, valid, key, self.rule)


def typical_size(sizes: Array | np.ndarray) -> Any:
    """The median of the clients' sample counts; infinite if there are fewer than five: that median is unreliable."""
    if len(sizes) < 5:
        return np.inf
    return np.median(sizes) if isinstance(sizes, np.ndarray) else jnp.median(sizes)


def largest_weight(clients: Array | int, typical: Array | float) -> Array:
    """The most samples a client counts for in an average of n ``clients``: 0.7 max(n, 3) times the typical size.

    If the others hold about that many, it is about half of the average (7/17 of very many clients, 7/15 of five, 21/41
    of three, 21/31 of two). A client's number of samples is self-reported.
    """
    return 0.7 * jnp.maximum(clients, 3) * typical
