"""Evaluation: the global model G and the personal models P, on training and test samples, client by client.

G is tested on the union of the local test sets, P of each client on its own. The samples are cut into blocks that
belong to one client each, so that clients of very different size cost what they hold and no more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.data.federation import Federation, Split
from pfedbred.data.minibatches import Inputs
from pfedbred.engine import devices, executors
from pfedbred.types import Array, Tree

_MOST_BLOCKS = 1024
_LARGEST = 2**28  # bytes of an array while one seed is evaluated


class Blocks(NamedTuple):
    """Runs of at most ``Evaluator.width`` samples of one client."""

    client: Array
    start: Array
    length: Array


class Samples(NamedTuple):
    """One split on the device, and its blocks."""

    x: Inputs
    y: Array
    blocks: Blocks


class Tally(NamedTuple):
    """Of each client (or block): correct predictions and the sum of losses."""

    correct: Array
    loss: Array


class Counts(NamedTuple):
    """Tallies of both models on both splits."""

    global_train: Tally
    global_test: Tally
    personal_train: Tally
    personal_test: Tally


class Scores(NamedTuple):
    """One model on one split. Arrays begin with the seeds; those named ``client_`` have the clients next.

    Attributes:
      accuracy: fraction of all samples, that is, weighted by the clients' sizes.
      loss: mean over all samples.
      worst_decile: mean accuracy of the tenth of the clients (at least one) for whom it is lowest.
      client_std: standard deviation of accuracy over the clients.
      client_accuracy: of each client; NaN for one without samples.
      client_loss: likewise.
    """

    accuracy: np.ndarray
    loss: np.ndarray
    worst_decile: np.ndarray
    client_std: np.ndarray
    client_accuracy: np.ndarray
    client_loss: np.ndarray


class ModelScores(NamedTuple):
    """One model on both splits."""

    train: Scores
    test: Scores


class Evaluation(NamedTuple):
    """Both models."""

    global_: ModelScores
    personal: ModelScores


class Evaluator:
    """Evaluates one algorithm on one federation."""

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        federation: Federation,
        train: Inputs,
        executor: str,
        mesh: Mesh | None = None,
    ) -> None:
        self._sharding = devices.everywhere(mesh) if mesh else None
        self._predict, self._losses = algorithm.predict, task.losses
        self._clients = federation.clients
        self._sizes = {"train": federation.train.sizes, "test": federation.test.sizes}
        typical = float(np.median(federation.train.sizes))
        self._width = int(np.clip(2 ** math.ceil(math.log2(max(typical, 1))), 16, 256))
        self.samples = [
            self._on_device(train, federation.train),  # on the device already, for training
            self._on_device(devices.place(federation.inputs(federation.test), self._sharding), federation.test),
        ]
        self._executor = executor
        self._tally_blocks = functools.cache(lambda chunk: executors.every(self._tally_block, executor, chunk, mesh))

    def _on_device(self, inputs: Inputs, split: Split) -> Samples:
        starts, clients, lengths = [], [], []
        for i, (begin, end) in enumerate(zip(split.offsets[:-1], split.offsets[1:], strict=True)):
            for start in range(begin, end, self._width):
                clients.append(i)
                starts.append(start)
                lengths.append(min(self._width, end - start))
        blocks = Blocks._make(np.asarray(column, np.int32) for column in (clients, starts, lengths))
        y, blocks = devices.place((split.y, blocks), self._sharding)
        return Samples(inputs, y, blocks)

    def _tally_block(self, shared: tuple[Samples, Tree, Tree], block: Blocks) -> tuple[Tally, Tally]:
        samples, global_, personal = shared
        place = jnp.arange(self._width)
        rows = jnp.minimum(block.start + place, len(samples.y) - 1)
        x, y, real = samples.x.take(rows), samples.y[rows], place < block.length

        def tally(model: Tree) -> Tally:
            logits = self._predict(model, x)
            # A model that has become NaN predicts nothing; argmax would say label 0 and be right now and then.
            correct = (jnp.argmax(logits, -1) == y) & jnp.all(jnp.isfinite(logits), -1) & real
            return Tally(jnp.sum(correct), jnp.sum(jnp.where(real, self._losses(logits, y), 0)))

        mine = jax.tree.map(lambda leaf: leaf[block.client], personal)
        return tally(global_), tally(mine)

    def _at_once(self, shared: tuple[Samples, Tree, Tree]) -> int:
        """How many blocks are tallied side by side: as many as keep the largest array of a model within its limit."""
        block = jax.tree.map(itemgetter(0), shared[0].blocks)
        steps = jax.make_jaxpr(self._tally_block)(shared, block).eqns
        largest = max(math.prod(each.aval.shape) * each.aval.dtype.itemsize for step in steps for each in step.outvars)
        return max(1, min(_MOST_BLOCKS, _LARGEST // largest))

    def count(self, samples: list[Samples], global_: Tree, personal: Tree) -> Counts:
        """Tallies of the global model and of the personal models (stacked along the first axis)."""
        tallies: dict[str, Any] = {}
        for name, split in zip(self._sizes, samples, strict=True):
            if split.blocks.client.size:
                shared = (split, global_, personal)
                chunk = self._at_once(shared) if self._executor == "vmap" else None
                blocks = self._tally_blocks(chunk)(shared, split.blocks)
            else:
                blocks = (Tally(jnp.zeros(0, int), jnp.zeros(0)),) * 2
            for model, tally in zip(("global", "personal"), blocks, strict=True):
                tallies[f"{model}_{name}"] = Tally(
                    *(jax.ops.segment_sum(leaf, split.blocks.client, self._clients) for leaf in tally)
                )
        return Counts(**tallies)

    def summarise(self, counts: Counts) -> Evaluation:
        """Accuracies and losses from tallies that begin with the seeds."""
        return summarise(jax.device_get(counts), self._sizes)  # at once: one after another takes longer than counting


def summarise(counts: Counts, sizes: Mapping[str, np.ndarray]) -> Evaluation:
    """Accuracies and losses from tallies that begin with the seeds; ``sizes`` are the clients', of train and test."""

    def scores(model: str) -> ModelScores:
        return ModelScores(*(_scores(getattr(counts, f"{model}_{name}"), sizes[name]) for name in ("train", "test")))

    return Evaluation(scores("global"), scores("personal"))


def _scores(tally: Tally, sizes: np.ndarray) -> Scores:
    correct, loss = np.asarray(tally.correct, np.float64), np.asarray(tally.loss, np.float64)
    total = sizes.sum()
    have = sizes > 0
    per_client = np.full(correct.shape, np.nan)
    per_client_loss = np.full(correct.shape, np.nan)
    np.divide(correct, sizes, out=per_client, where=have)
    np.divide(loss, sizes, out=per_client_loss, where=have)
    if total == 0:
        nothing = np.full(len(correct), np.nan)
        return Scores(nothing, nothing, nothing, nothing, per_client, per_client_loss)
    ordered = np.sort(per_client[:, have], axis=1)
    tenth = math.ceil(have.sum() / 10)
    return Scores(
        accuracy=correct.sum(1) / total,
        loss=loss.sum(1) / total,
        worst_decile=ordered[:, :tenth].mean(1),
        client_std=ordered.std(1),
        client_accuracy=per_client,
        client_loss=per_client_loss,
    )
