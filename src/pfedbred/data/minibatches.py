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

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.types import Array, Key, Tree

_SHUFFLE_ROUNDS = 24
_PIECE = 64


class Batch(NamedTuple):
    """Inputs and labels of one minibatch."""

    x: Array
    y: Array


class Inputs(NamedTuple):
    """Samples as they are stored, and their normalisation: a model's inputs are (x - shift) * scale, if given.

    Images stay bytes until a minibatch is taken, which saves three quarters of the memory and of the traffic.
    """

    x: Array | np.ndarray
    shift: Array | np.ndarray | None = None
    scale: Array | np.ndarray | None = None

    def take(self, rows: Array | np.ndarray) -> Array:
        """The inputs of these rows."""
        x = self.x[rows]
        if self.shift is None or self.scale is None:
            return x
        return (x.astype(self.scale.dtype) - self.shift) * self.scale


class ClientData(NamedTuple):
    """What the client half of an algorithm sees of the data: the client's minibatches of this round.

    Attributes:
      x: training inputs of all clients in this program, one after another.
      y: their labels.
      rows: rows[b] are the samples of the round's minibatch b, all of them this client's.
      offset: row of the client's first training sample.
      size: number of the client's training samples.
    """

    x: Inputs
    y: Array
    rows: Array
    offset: Array
    size: Array

    def batch(self, number: int | Array) -> Batch:
        """Minibatch ``number`` of this round, counted from 0."""
        rows = self.rows[number]
        return Batch(self.x.take(rows), self.y[rows])

    def fold(self, step: Callable[[Tree, Batch, Array], Tree], start: Tree) -> Tree:
        """Goes through all of the client's training samples once, a piece at a time.

        ``step(carry, batch, real)`` returns the next carry; ``real`` marks the samples that are not padding.
        """

        def advance(piece: Array, carry: Tree) -> Tree:
            place = piece * _PIECE + jnp.arange(_PIECE)
            rows = self.offset + jnp.minimum(place, self.size - 1)
            return step(carry, Batch(self.x.take(rows), self.y[rows]), place < self.size)

        return jax.lax.fori_loop(0, (self.size + _PIECE - 1) // _PIECE, advance, start)


def draw_rows(key: Key, offset: Array, size: Array, drawn: Array, draws: int, batch_size: int) -> Array:
    """The next ``draws`` minibatches, as row numbers of shape (draws, batch_size).

    Args:
      key: the client's key, which never changes during a run.
      offset: the client's first row.
      size: number of the client's rows, at least 1.
      drawn: number of samples that the client has read so far, as uint32.
    """
    position = drawn + jnp.arange(draws * batch_size, dtype=jnp.uint32)
    rows = offset + shuffled(key, position, size).astype(offset.dtype)
    return rows.reshape(draws, batch_size)


def shuffled(key: Key, position: Array, size: Array) -> Array:
    """The sample at each ``position`` of an endless sequence of shuffled passes over ``size`` samples."""
    n = size.astype(jnp.uint32)
    passed, place = position // n, position % n
    return permute(key, passed, place, n)


def permute(key: Key, stream: Array, place: Array, n: Array) -> Array:
    """The image of ``place`` under a random permutation of {0, ..., n - 1} that (key, stream) determines."""
    words = jax.random.key_data(key).ravel().astype(jnp.uint32)
    seed = _mix(words[0] ^ _mix(words[-1] ^ _mix(stream.astype(jnp.uint32))))

    def swap_or_not(step: Array, place: Array) -> Array:
        subkey = _mix(seed + step.astype(jnp.uint32) * jnp.uint32(0x9E3779B9))
        pivot = subkey % n
        partner = jnp.where(pivot >= place, pivot - place, pivot + n - place)
        coin = _mix(subkey ^ _mix(jnp.maximum(place, partner))) >> 31
        return jnp.where(coin == 1, partner, place)

    return jax.lax.fori_loop(0, _SHUFFLE_ROUNDS, swap_or_not, place.astype(jnp.uint32))


def _mix(word: Array) -> Array:
    """A bijection of 32-bit words in which every input bit reaches every output bit (MurmurHash3's finaliser)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
