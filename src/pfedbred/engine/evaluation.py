"""Evaluation: the global model G and the personal models P, on each part of the samples, client by client.

G is evaluated on the union of the clients' samples, P of each client on its own. The samples are cut into blocks that
belong to one client each, so that the cost depends on the number of samples, however unequal the clients. On training
samples only the metrics that every evaluation has (such as accuracy and loss) are computed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.data.federation import Federation, Part, Split
from pfedbred.data.minibatches import Inputs
from pfedbred.engine import devices, executors, metrics
from pfedbred.engine.metrics import Metric, Predictions
from pfedbred.engine.packing import Packed, pack, shapes_of, unpack
from pfedbred.engine.scores import MODELS, Evaluation, Sums, Tallies, chosen_metrics, combine, summarise
from pfedbred.types import Array, Tree

_MOST_BLOCKS = 1024
_LARGEST = 2**28  # bytes of an array while one seed is evaluated


class Blocks(NamedTuple):
    """Runs of samples of one client, at most as long as a block of their split."""

    client: Array
    start: Array
    length: Array


class EvaluationSet(NamedTuple):
    """One split on the device, and its blocks."""

    x: Inputs
    y: Array
    blocks: Blocks


class Outputs(NamedTuple):
    """What G and P predict for the samples of one part, client after client.

    Attributes:
      global_: by seed and sample: logits, (seeds, n, labels), or numbers in the units of the labels, (seeds, n).
      personal: the same for each client's own model.
      labels: (n,).
      offsets: where each client's samples begin, and where the last one's end.
    """

    global_: np.ndarray
    personal: np.ndarray
    labels: np.ndarray
    offsets: np.ndarray


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
        chosen: Sequence[Metric] = metrics.resolve(""),
    ) -> None:
        """``train``: the training inputs, already on the device; ``chosen``: the metrics on all other samples."""
        self._sharding = devices.everywhere(mesh) if mesh else None
        self._predict, self._task = algorithm.predict, task
        self._clients = federation.clients
        self.metrics = chosen_metrics(federation.parts, chosen, task)
        self._width = {part: _block_width(split.sizes) for part, split in federation.parts.items()}
        self.sets = [
            self._on_device(
                train if part == "train" else devices.place(federation.inputs(split), self._sharding),
                split,
                self._width[part],
            )
            for part, split in federation.parts.items()
        ]
        self._offsets = {part: split.offsets for part, split in federation.parts.items()}
        self._executor = executor
        self._shapes: dict[Part, Tree] = {}  # of a part's statistics, once they are traced
        self._tally_blocks = {
            part: functools.cache(
                functools.partial(executors.every, functools.partial(self._tally_block, part), executor, mesh=mesh)
            )
            for part in self.metrics
        }

    def _on_device(self, inputs: Inputs, split: Split, width: int) -> EvaluationSet:
        starts, clients, lengths = [], [], []
        for i, (begin, end) in enumerate(zip(split.offsets[:-1], split.offsets[1:], strict=True)):
            for start in range(begin, end, width):
                clients.append(i)
                starts.append(start)
                lengths.append(min(width, end - start))
        blocks = Blocks._make(np.asarray(column, np.int32) for column in (clients, starts, lengths))
        y, blocks = devices.place((split.y, blocks), self._sharding)
        return EvaluationSet(inputs, y, blocks)

    def _statistics(self, part: Part, shared: tuple[EvaluationSet, Tree, Tree], block: Blocks) -> Sums:
        """The metrics' statistics of a block; the models are along the first axis."""
        outputs, y = self._predict_block(part, shared, block)
        mask = jnp.arange(self._width[part]) < block.length

        def tally(outputs: Array) -> Sums:
            predictions = Predictions(self._task.scores(outputs), y, self._task.losses(outputs, y), mask)
            return {metric.name: metric.sums(predictions) for metric in self.metrics[part]}

        if self._executor == "loop":  # for functions that cannot be traced
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(tally, outputs))
        return jax.vmap(tally)(jnp.stack(outputs))  # half as many kernels on a GPU as one model after the other

    def _tally_block(self, part: Part, shared: tuple[EvaluationSet, Tree, Tree], block: Blocks) -> Packed:
        statistics = self._statistics(part, shared, block)
        self._shapes[part] = shapes_of(statistics)
        return pack(statistics, axes=1)

    def _predict_block(
        self, part: Part, shared: tuple[EvaluationSet, Tree, Tree], block: Blocks
    ) -> tuple[list[Array], Array]:
        """The outputs of G and P for the samples of a block, and their labels; beyond its length they are padding."""
        samples, global_, personal = shared
        rows = jnp.minimum(block.start + jnp.arange(self._width[part]), len(samples.y) - 1)
        own = jax.tree.map(lambda leaf: leaf[block.client], personal)
        x = samples.x.take(rows)
        return [self._predict(model, x) for model in (global_, own)], samples.y[rows]

    def _chunk(self, part: Part, shared: tuple[EvaluationSet, Tree, Tree]) -> int:
        """How many blocks run side by side: as many as keep the largest array of a model within its limit."""
        block = jax.tree.map(itemgetter(slice(1)), shared[0].blocks)  # under vmap, which convolutions depend on
        steps = jax.make_jaxpr(jax.vmap(functools.partial(self._tally_block, part), (None, 0)))(shared, block).eqns
        largest = max(math.prod(each.aval.shape) * each.aval.dtype.itemsize for step in steps for each in step.outvars)
        return max(1, min(_MOST_BLOCKS, _LARGEST // largest))

    def tally(self, sets: list[EvaluationSet], global_: Tree, personal: Tree) -> Tallies:
        """Statistics of the global model and of the personal models (stacked along the first axis)."""
        tallies: dict[str, Sums] = {}
        for part, samples in zip(self.metrics, sets, strict=True):
            shared = (samples, global_, personal)
            if samples.blocks.client.size:
                chunk = self._chunk(part, shared) if self._executor == "vmap" else None
                blocks = self._tally_blocks[part](chunk=chunk)(shared, samples.blocks)
                packed = {
                    name: jax.ops.segment_sum(leaf, samples.blocks.client, self._clients)
                    for name, leaf in blocks.items()
                }
            else:
                empty = jax.eval_shape(functools.partial(self._tally_block, part), *_one_row(shared))
                packed = jax.tree.map(lambda leaf: jnp.zeros((self._clients, *leaf.shape), leaf.dtype), empty)
            both = unpack(packed, self._shapes[part], axes=1)
            for place, model in enumerate(MODELS):
                tallies[f"{model}_{part}"] = jax.tree.map(itemgetter((slice(None), place)), both)
        return tallies

    def evaluate(self, global_: Tree, personal: Tree) -> Evaluation:
        """The metrics of models that begin with the seeds."""

        def seed(sets: list[EvaluationSet], both: tuple[Tree, Tree]) -> Packed:
            return self.pack(self.tally(sets, *both))

        if self._executor != "loop":
            seed = jax.jit(seed, out_shardings=self._sharding)
        models = devices.place((global_, personal), self._sharding)
        seeds = len(jax.tree.leaves(global_)[0])
        packed = [seed(self.sets, jax.tree.map(itemgetter(place), models)) for place in range(seeds)]
        return self.summarise(jax.tree.map(lambda *leaves: jnp.stack(leaves), *packed))

    def outputs(self, part: Part, global_: Tree, personal: Tree) -> Outputs:
        """Predictions of models whose first axis is the seeds: of G, and of each client's P for its own samples."""
        samples, offsets = self.sets[list(self.metrics).index(part)], self._offsets[part]
        labels, seeds = np.asarray(samples.y), len(jax.tree.leaves(global_)[0])
        if not len(labels):
            nothing = np.zeros((seeds, 0) if self._task.kind.labels == "numbers" else (seeds, 0, 1))
            return Outputs(nothing, nothing, labels, offsets)

        def scores(shared: tuple[EvaluationSet, Tree, Tree], block: Blocks) -> list[Array]:
            return [self._task.scores(each) for each in self._predict_block(part, shared, block)[0]]

        shared: Any = (samples, *devices.place((global_, personal), self._sharding))
        one = (samples, *jax.tree.map(itemgetter(0), shared[1:]))
        every = executors.every(scores, self._executor, self._chunk(part, one) if self._executor == "vmap" else None)
        if self._executor != "loop":
            every = jax.jit(every, out_shardings=self._sharding)
        real = np.arange(self._width[part]) < np.asarray(samples.blocks.length)[:, None]
        found = []
        for seed in range(seeds):
            one = (samples, *jax.tree.map(itemgetter(seed), shared[1:]))
            found.append([devices.fetch(each)[real] for each in every(one, samples.blocks)])
        both = [np.stack(each) for each in zip(*found, strict=True)]
        return Outputs(both[0], both[1], labels, offsets)

    def pack(self, tallies: Tallies) -> Packed:
        """What the host needs of the statistics."""
        combined = combine(tallies, self.metrics)
        self._combined = shapes_of(combined)
        return pack(combined)

    def summarise(self, packed: Packed) -> Evaluation:
        """The metrics' values from packed statistics that begin with the seeds."""
        return summarise(unpack(jax.device_get(dict(packed)), self._combined), self.metrics)


def _block_width(sizes: np.ndarray) -> int:
    """The median number of samples of a client, rounded up to a multiple of 16, at most 256."""
    typical = float(np.median(sizes[sizes > 0])) if np.any(sizes) else 1.0
    return int(min(16 * math.ceil(typical / 16), 256))


def _one_row(shared: tuple[EvaluationSet, Tree, Tree]) -> Any:
    """Shapes of an empty split as if it had one sample, and of a block."""
    samples, *models = shared
    x, y = (jax.ShapeDtypeStruct((1, *each.shape[1:]), each.dtype) for each in (samples.x.x, samples.y))
    block: Any = Blocks._make(jax.ShapeDtypeStruct((), jnp.int32) for _ in Blocks._fields)
    inputs: Any = x
    labels: Any = y
    return (samples._replace(x=samples.x._replace(x=inputs), y=labels), *models), block
