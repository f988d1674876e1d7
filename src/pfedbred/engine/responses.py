r"""Responses: whether a client's updates follow the server's steps as those of a training client do.

Let u_i(w) be the update of a client that starts at w, and s the server's step from w to where the client starts next
time. Training goes downhill, so u_i is roughly minus a gradient, and the gradient of a convex loss is monotone:

    r_i = <u_i(w + s) - u_i(w), s> / (||s|| ||u_i(w + s)||) <= 0

whatever data the client has: no other client is needed to tell. An update with its sign flipped has r_i >= 0. A
network's loss is not convex, and early in training all r_i may be positive; so the test is relative. Of the known
responses a_i, each the average of a client's latest r_i, let m be the median of |a_i| and d their spread (1.4826 times
the median deviation from m): a flip changes neither. Where noise cannot turn a sign, m > 2.5 d, and three quarters have
the sign of the median response, one is reversed if it has the other sign, is not small, above m / 4, and is known from
at least two steps.

r_i is known of a client whose update the server has had before, however many rounds ago: a server that averages few
clients in a round learns as much of each from one long step as from several short ones. Fewer than eight known
responses are not compared. What the server keeps of an update and of its start is a sketch: signs drawn once, and sums
over the entries whose places are the same modulo n. Its inner products are those of the vectors, up to 1/sqrt(n) of
their lengths (Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", 2002). There the classes are
random; here n is a prime, so that a layer's rows and columns, whose widths are often powers of two, spread over all of
them. n is 4,093, less with more than 1,024 clients, and at least 61. A vector of fewer entries than n is kept as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.aggregation.base import along_first
from pfedbred.aggregation.median import masked_median
from pfedbred.types import Array

_NEW = 0.2  # smallest weight of the latest response in an average
_CLEAR, _SMALL, _MINORITY = 2.5, 0.25, 0.25
_TWICE = 2
_SIGMA = 1.4826
FEWEST = 8  # clients that can be compared
_SIZE, _LEAST = 4096, 64  # of a sketch
_MOST = 2**22  # numbers in the sketches of all clients


class Responses(NamedTuple):
    """What the server remembers of its clients, each by client number.

    Attributes:
      updates: sketches of their latest updates; NaN where there was none.
      origins: sketches of where these started.
      averages: of the latest r_i; NaN where none is known yet.
      times: how many r_i are known.
    """

    updates: Array
    origins: Array
    averages: Array
    times: Array


def unknown(update: Sequence[Array], clients: int) -> Responses:
    """Before the first round; ``update`` has the shapes of one."""
    numbers = sum(leaf.size for leaf in update)
    size = min(numbers, _prime(max(_LEAST, min(_SIZE, _MOST // clients))))
    dtype = jnp.result_type(jnp.float32, *update)
    nothing, rows = jnp.full(clients, jnp.nan, dtype), jnp.full((clients, size), jnp.nan, dtype)
    return Responses(rows, rows, nothing, jnp.zeros(clients, jnp.int32))


def _prime(most: int) -> int:
    """The largest prime up to ``most``."""
    return next(n for n in range(most, 1, -1) if all(n % divisor for divisor in range(2, math.isqrt(n) + 1)))


def sketches(before: Responses, rows: Array) -> Array:
    """Of each row: the sums of its entries, with random signs, by their place modulo the size of a sketch."""
    size, numbers = before.updates.shape[1], rows.shape[1]
    if numbers <= size:
        return rows.astype(before.updates.dtype)
    add = partial(_sums, size=size, dtype=before.updates.dtype)
    return jax.lax.platform_dependent(rows, _signs(numbers), cpu=partial(add, steps=numbers // size), default=add)


def _signs(numbers: int) -> Array:
    """Always the same random signs, one from each bit drawn."""
    # Behind the barrier, so that the compiler does not draw them itself, one after another.
    key = jax.random.key(jax.lax.optimization_barrier(jnp.uint32(0)))
    drawn = jax.random.bits(key, (-(-numbers // 32),), jnp.uint32)
    bits = (drawn[:, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return 1 - 2 * bits.reshape(-1)[:numbers].astype(jnp.int8)


def _sums(rows: Array, signs: Array, *, size: int, dtype: jnp.dtype, steps: int = 0) -> Array:
    """Sums of signed entries by class, the first ``steps`` of each class in a loop: on a CPU eight times as fast."""

    def signed(begin: Array | int, length: int) -> Array:
        row = jax.lax.dynamic_slice_in_dim(rows, begin, length, axis=1)
        return row.astype(dtype) * jax.lax.dynamic_slice_in_dim(signs, begin, length).astype(dtype)

    added = jax.lax.fori_loop(
        0, steps, lambda step, added: added + signed(step * size, size), jnp.zeros((len(rows), size), dtype)
    )
    left = rows.shape[1] - steps * size
    padded = jnp.pad(signed(steps * size, left), ((0, 0), (0, -left % size)))
    return added + jnp.sum(padded.reshape(len(rows), -1, size), axis=1)


def measured(before: Responses, updates: Array, start: Array, numbers: Array) -> Array:
    """r_i of each update of a round, NaN where it is not known.

    Args:
      before: up to the round before.
      updates: sketches of them.
      start: the sketch of where they start.
      numbers: of the clients.
    """
    step = start - before.origins[numbers]
    change = updates - before.updates[numbers]
    length = jnp.sqrt(jnp.sum(step**2, 1) * jnp.sum(updates**2, 1))
    return jnp.sum(change * step, 1) / length


def observe(before: Responses, found: Array, numbers: Array, counted: Array) -> Responses:
    """With the responses ``found`` in a round, of the clients whose update counts."""
    known = counted & jnp.isfinite(found)
    found = jnp.clip(found, -1, 1)  # a much longer update before would make it as large as one likes
    old, times = before.averages[numbers], before.times[numbers]
    weight = jnp.maximum(_NEW, 1 / (times + 1)).astype(found.dtype)
    new = jnp.where(jnp.isnan(old), found, old + weight * (found - old))
    return before._replace(
        averages=_replaced(before.averages, numbers, jnp.where(known, new, old)),
        times=_replaced(before.times, numbers, times + known),
    )


def record(before: Responses, updates: Array, start: Array, numbers: Array, counted: Array) -> Responses:
    """With the sketches of a round's updates, where they count, and of where they started."""

    def latest(old: Array, new: Array) -> Array:
        return _replaced(old, numbers, jnp.where(counted[:, None], new, old[numbers]))

    return before._replace(updates=latest(before.updates, updates), origins=latest(before.origins, start[None]))


def are_reversed(averages: Array, times: Array) -> Array:
    """Which of the clients' responses are opposed to those of the others."""
    known, size = jnp.isfinite(averages), jnp.abs(averages)
    middle = masked_median(size, known)
    spread = _SIGMA * masked_median(jnp.abs(size - middle), known)
    return _minority(averages, times) & (middle > _CLEAR * spread) & (size > _SMALL * middle)


def unopposed(averages: Array, times: Array) -> Array:
    """Whether counts alone show that none is reversed: none has the other sign, or all that have it are small.

    If more than half are at least four times the largest of these, so is their median m, and none is above m / 4.
    """
    known, size = jnp.isfinite(averages), jnp.abs(averages)
    largest = jnp.max(jnp.where(_minority(averages, times), size, 0))
    return (largest == 0) | (2 * jnp.sum(known & (_SMALL * size >= largest)) > jnp.sum(known))


def _minority(averages: Array, times: Array) -> Array:
    """Which are known often enough and differ in sign from the median; none if few are known, or many differ."""
    known, up, down = jnp.isfinite(averages), averages > 0, averages < 0
    count, ups, downs = (jnp.sum(each) for each in (known, known & up, known & down))
    # The sign of the median by counting. If half have each sign, all are against it, and these are not few.
    negative, positive = 2 * downs >= count, 2 * ups >= count
    few = (ups * negative + downs * positive <= _MINORITY * count) & (count >= FEWEST)
    return known & ((up & negative) | (down & positive)) & few & (times >= _TWICE)


def _replaced(values: Array, numbers: Array, new: Array) -> Array:
    """With ``new`` at those numbers. By a table that is the same for all arrays: scatters are slow on a GPU."""
    places = jnp.full(len(values), -1).at[numbers].set(jnp.arange(len(numbers)), unique_indices=True)
    return jnp.where(along_first(places < 0, values), values, new[places])
