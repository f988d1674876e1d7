r"""Minibatches by index: shuffled passes over each client's samples, without storing a permutation.

A client of n samples reads an endless sequence: pass 0 is a random order of its samples, then pass 1 another, and so
on. Minibatch number b of size B is positions bB .. bB + B - 1 of that sequence. The sample at a position is computed
from (key, position, n) alone, so nothing is stored but how far each client has read, clients of any size run in one
compiled program, and a client gets the same minibatches whichever clients it runs with.

The random order is a swap-or-not shuffle: a keyed permutation of {0, ..., n - 1} for any n that gives one image at a
time (Hoang, Morris and Rogaway, "An Enciphering Scheme Based on a Card Shuffle", CRYPTO 2012). jax.random.permutation
needs n at compile time and memory for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pfedbred.types import Array, Key, Tree

_SHUFFLE_ROUNDS = 24
_PIECE = 64


class Batch(NamedTuple):
    """Inputs and labels of one minibatch; ``real`` marks the samples that are not padding, None if all are real.

    Padding repeats the minibatch's samples in turn, which hardly changes their statistics. ``key`` is for random
    numbers drawn by the network or the method, None if they draw none.
    """

    x: Array
    y: Array
    real: Array | None = None
    key: Key | None = None

    def mean(self, values: Array) -> Array:
        """The mean over the samples, which are along the last axis of ``values``."""
        if self.real is None:
            return jnp.mean(values, axis=-1)
        return jnp.sum(jnp.where(self.real, values, 0), axis=-1) / jnp.sum(self.real)


class Inputs(NamedTuple):
    """Stored samples, and their normalisation: a model's inputs are (x - shift) * scale, if given.

    Images stay bytes until a minibatch is taken, which saves three quarters of memory and bandwidth.
    """

    x: Array | np.ndarray
    shift: Array | np.ndarray | None = None
    scale: Array | np.ndarray | None = None

    def take(self, rows: Array | np.ndarray | slice) -> Array:
        """The inputs of these rows."""
        x: Any = self.x[rows]
        if self.shift is None or self.scale is None:
            return x
        return (x.astype(self.scale.dtype) - self.shift) * self.scale


class Batching(NamedTuple):
    """How a client's samples are divided into minibatches.

    Attributes:
      size: samples in a minibatch.
      last: whether the last minibatch of a pass, if it is smaller, is used (``keep``) or left out (``drop``). A client
        with too few samples for one minibatch uses all of them in either case. This concerns work counted in epochs; a
        number of steps continues into the next pass.
    """

    size: int
    last: Literal["keep", "drop"] = "keep"

    def per_pass(self, samples: Any) -> Any:
        """Minibatches in a pass over this many samples."""
        if self.last == "keep":
            return (samples + self.size - 1) // self.size
        return np.maximum(samples // self.size, 1) if _on_host(samples) else jnp.maximum(samples // self.size, 1)


class Common(NamedTuple):
    """What all clients' minibatches have in common, as far as their sizes are known.

    Attributes:
      minibatches: minibatches in a pass if all clients have the same number, else None.
      padded: whether a minibatch may have fewer samples than the others.
      filled: whether minibatches fill every pass exactly, so that they need not follow the passes.
    """

    minibatches: int | None = None
    padded: bool = True
    filled: bool = False


def common(batching: Batching, sizes: np.ndarray | None) -> Common:
    """What clients of these sizes have in common; ``sizes`` is None if not known beforehand."""
    if sizes is None:
        return Common()
    counts = batching.per_pass(sizes)
    short = sizes % batching.size if batching.last == "keep" else sizes < batching.size
    same = bool(np.all(counts == counts[0]))
    return Common(int(counts[0]) if same else None, bool(np.any(short)), not np.any(sizes % batching.size))


def _on_host(samples: Any) -> bool:
    return isinstance(samples, int | np.ndarray | np.integer)


class Place(NamedTuple):
    """Where a client is in its passes, as arrays.

    Attributes:
      key: the client's key.
      used: minibatches used so far, as uint32.
      minibatches: minibatches in a pass.
      offset: the client's first row.
      size: number of the client's rows.
    """

    key: Key
    used: Array
    minibatches: Array
    offset: Array
    size: Array

    def rows(self, first: int | Array, count: int, batch_size: int) -> tuple[Array, Array]:
        """The samples of ``count`` minibatches from number ``first`` on, and which of them are not padding.

        Every pass begins a new minibatch, so the last one of a pass may have fewer samples. If minibatches fill every
        pass, they are those that :func:`draw_rows` draws.
        """
        n, per_pass = self.size.astype(jnp.uint32), self.minibatches.astype(jnp.uint32)
        batch = self.used + jnp.asarray(first, jnp.uint32) + jnp.arange(count, dtype=jnp.uint32)
        within = (batch % per_pass) * jnp.uint32(batch_size)
        place = within[:, None] + jnp.arange(batch_size, dtype=jnp.uint32)
        stream = jnp.broadcast_to((batch // per_pass)[:, None], place.shape)
        repeated = within[:, None] + (place - within[:, None]) % (n - within[:, None])
        # Unrolled where it runs in every step: a loop would cost more than its computation.
        order = permute(self.key, stream, repeated, n, unroll=count == 1)
        return self.offset + order.astype(self.offset.dtype), place < n


class Passes(NamedTuple):
    """Minibatches that follow the passes over a client's samples, for local work counted in epochs.

    Attributes:
      place: where the client is.
      batch_size: samples in a minibatch.
      minibatches: minibatches in a pass: an int if all clients have the same number.
      padded: whether a minibatch may have fewer samples.
      everyone: minibatches in a pass for every client of the program, if known at compile time.
    """

    place: Place
    batch_size: int
    minibatches: int | Array
    padded: bool
    everyone: np.ndarray | None = None


class OptimizerStates:
    """The states of the optimizers that one client's training uses, in order of use.

    It changes while training is traced, and exists only then.
    """

    def __init__(self, before: Sequence[Tree] | None, fresh: Array) -> None:
        """``before`` are the states after the previous round, which a ``fresh`` client does not have."""
        self._before, self._fresh = before, fresh
        self.after: list[Tree] = []

    def begin(self, new: Tree) -> Tree:
        """The state that the next optimizer starts from; ``new`` for a fresh client."""
        if self._before is None:
            return new
        kept = self._before[len(self.after)]
        return jax.tree.map(lambda new, old: jnp.where(self._fresh, new, old), new, kept)

    def end(self, state: Tree) -> None:
        """Keeps the final state of this optimizer."""
        self.after.append(state)


class ClientData(NamedTuple):
    """What the client half of an algorithm sees: the client's minibatches of this round, and how it takes its steps.

    Attributes:
      x: training inputs of all clients in this program, one after another.
      y: their labels.
      rows: rows[b] are the samples of the round's minibatch b, all of them this client's; None if they follow passes.
      offset: row of the client's first training sample.
      size: number of the client's training samples.
      passes: how minibatches follow the passes over the samples, for local work counted in epochs.
      optimizer: builds the optimizer of local steps from a step size; None for plain gradient descent.
      augment: changes the inputs of a training minibatch at random: ``augment(key, x)``; None leaves them.
      augment_key: its randomness.
      optimizer_states: the optimizers' states kept from round to round; None if they start afresh.
      real: which samples of ``rows`` are not padding; None if all are real.
      start: number of the minibatch that ``rows`` begins with.
      key: for the random numbers that networks and methods draw in training; None if they draw none.
    """

    x: Inputs
    y: Array
    rows: Array | None
    offset: Array
    size: Array
    passes: Passes | None = None
    optimizer: Callable[[Any], optax.GradientTransformation] | None = None
    augment: Callable[[Key, Array], Array] | None = None
    augment_key: Key | None = None
    optimizer_states: OptimizerStates | None = None
    real: Array | None = None
    start: int | Array = 0
    key: Key | None = None

    def batch(self, number: int | Array) -> Batch:
        """Minibatch ``number`` of this round, counted from 0."""
        if self.rows is None:
            return self.window(number, 1).batch(number)
        place = number - self.start
        rows = self.rows[place]
        x = self.x.take(rows)
        if self.augment is not None:
            assert self.augment_key is not None
            x = self.augment(jax.random.fold_in(self.augment_key, number), x)
        key = None if self.key is None else jax.random.fold_in(self.key, number)
        return Batch(x, self.y[rows], None if self.real is None else self.real[place], key)

    def window(self, first: int | Array, count: int) -> ClientData:
        """The same data with the samples of ``count`` minibatches from number ``first`` on looked up beforehand."""
        assert self.passes is not None
        return self.with_rows(*self.passes.place.rows(first, count, self.passes.batch_size), first)

    def with_rows(self, rows: Array, real: Array, start: int | Array) -> ClientData:
        """The same data, given the samples of some minibatches from number ``start`` on."""
        padded = self.passes is None or self.passes.padded
        return self._replace(rows=rows, real=real if padded else None, start=start)

    def fold(self, step: Callable[[Tree, Batch, Array], Tree], start: Tree) -> Tree:
        """Goes through all of the client's training samples once, a block at a time.

        ``step(carry, batch, real)`` returns the next carry; ``real`` marks the samples that are not padding.
        """

        def advance(piece: Array, carry: Tree) -> Tree:
            place = piece * _PIECE + jnp.arange(_PIECE)
            real = jnp.clip(self.size - piece * _PIECE, 1, _PIECE)
            rows = self.offset + piece * _PIECE + jnp.arange(_PIECE) % real
            key = None if self.key is None else jax.random.fold_in(self.key, ~piece)  # not that of a minibatch
            return step(carry, Batch(self.x.take(rows), self.y[rows], key=key), place < self.size)

        return jax.lax.fori_loop(0, (self.size + _PIECE - 1) // _PIECE, advance, start)


def example_data(sample: Batch) -> ClientData:
    """A client with this sample alone, for tracing the shapes of an algorithm's results."""
    zero, one = jnp.int32(0), jnp.int32(1)
    passes = Passes(Place(jax.random.key(0), jnp.uint32(0), one, zero, one), 1, 1, False)
    return ClientData(Inputs(sample.x), sample.y, None, zero, one, passes)


def draw_rows(key: Key, offset: Array, size: Array, drawn: Array, draws: int, batch_size: int) -> Array:
    """The next ``draws`` minibatches, as row numbers of shape (draws, batch_size).

    Args:
      key: the client's key, which never changes during a run.
      offset: the client's first row.
      size: number of the client's rows, at least 1.
      drawn: number of samples the client has read so far, as uint32.
    """
    position = drawn + jnp.arange(draws * batch_size, dtype=jnp.uint32)
    rows = offset + shuffled(key, position, size).astype(offset.dtype)
    return rows.reshape(draws, batch_size)


def shuffled(key: Key, position: Array, size: Array) -> Array:
    """The sample at each ``position`` of an endless sequence of shuffled passes over ``size`` samples."""
    n = size.astype(jnp.uint32)
    passed, place = position // n, position % n
    return permute(key, passed, place, n)


def permute(key: Key, stream: Array, place: Array, n: Array, unroll: bool = False) -> Array:
    """The image of ``place`` under a random permutation of {0, ..., n - 1} that (key, stream) determines."""
    words = jax.random.key_data(key).ravel().astype(jnp.uint32)
    seed = _mix(words[0] ^ _mix(words[-1] ^ _mix(stream.astype(jnp.uint32))))

    def swap_or_not(step: Array, place: Array) -> Array:
        subkey = _mix(seed + step.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))
        pivot = subkey % n
        partner = jnp.where(pivot >= place, pivot - place, pivot + n - place)
        coin = _mix(subkey ^ _mix(jnp.maximum(place, partner))) >> 31
        return jnp.where(coin == 1, partner, place)

    place = place.astype(jnp.uint32)
    if unroll:
        for step in range(_SHUFFLE_ROUNDS):
            place = swap_or_not(jnp.uint32(step), place)
        return place
    return jax.lax.fori_loop(0, _SHUFFLE_ROUNDS, swap_or_not, place)


def _mix(word: Array) -> Array:
    """A bijection of 32-bit words in which every input bit reaches every output bit (MurmurHash3's finaliser)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
