r"""Responses: whether a client's updates follow the server's steps as those of a training client do.

Let u_i(w) be the update of a client that starts at w, and s the server's step from one round to the next. Training
goes downhill, so u_i is roughly minus a gradient, and the gradient of a convex loss is monotone:

    r_i = <u_i(w + s) - u_i(w), s> / (||s|| ||u_i(w + s)||) <= 0

whatever data the client has: no other client is needed for comparison. An update with its sign flipped has r_i >= 0. A
network's loss is not convex, and early in training all r_i may be positive; so the test is relative. Let a_i be
the known responses, each the average of a client's latest r_i, m the median of |a_i| and d their spread (1.4826 times
the median deviation from m): a flip changes neither. If noise cannot flip a sign, m > 2.5 d, and three quarters have
the sign of the median response, a response is reversed if it has the other sign, is not small (above m / 4), and is
known from at least two rounds.

r_i is known for a client whose updates the server received in two consecutive rounds. Responses are compared only if
at least eight are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from pfedbred.aggregation.median import masked_median
from pfedbred.types import Array

_NEW = 0.2  # smallest weight of the latest response in an average
_CLEAR, _SMALL, _MINORITY = 2.5, 0.25, 0.25
_TWICE = 2
_SIGMA = 1.4826
_FEWEST = 8


class Responses(NamedTuple):
    """What the server remembers from round to round.

    Attributes:
      step: its last step, by array: the change in the upload of a client whose training changes nothing.
      along: <u_i, step> of the updates before that step, by client number; NaN where there was none.
      averages: of the latest r_i, by client number; NaN where none is known yet.
      times: how many r_i are known, by client number.
    """

    step: list[Array]
    along: Array
    averages: Array
    times: Array


def unknown(update: Sequence[Array], clients: int) -> Responses:
    """Before the first round; ``update`` has the shapes of one."""
    nothing = jnp.full(clients, jnp.nan, jnp.result_type(jnp.float32, *update))
    return Responses([jnp.zeros_like(leaf) for leaf in update], nothing, nothing, jnp.zeros(clients, jnp.int32))


def observe(
    before: Responses, with_step: tuple[Array, Array], norms: Array, numbers: Array, counted: Array
) -> Responses:
    """Adds the responses of a round's updates.

    Args:
      before: up to the round before.
      with_step: <u_i, step> with the last step, of the round's clients; and the length of the step.
      norms: of the updates.
      numbers: of the clients.
      counted: whose update is valid.
    """
    along, length = with_step
    change = along.astype(before.along.dtype) - before.along[numbers]
    found = (change / (length * norms)).astype(before.averages.dtype)
    known = counted & (norms > 0) & jnp.isfinite(found)
    found = jnp.clip(found, -1, 1)  # a much longer update in the previous round would make it arbitrarily large
    old, times = before.averages[numbers], before.times[numbers]
    weight = jnp.maximum(_NEW, 1 / (times + 1)).astype(found.dtype)
    new = jnp.where(jnp.isnan(old), found, old + weight * (found - old))
    return before._replace(
        averages=_replaced(before.averages, numbers, jnp.where(known, new, old)),
        times=_replaced(before.times, numbers, times + known),
    )


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
    """Which are known often enough and have the other sign than the median, if at most a quarter of enough have."""
    known, up, down = jnp.isfinite(averages), averages > 0, averages < 0
    count, ups, downs = (jnp.sum(each) for each in (known, known & up, known & down))
    # The sign of the median by counting. If half have each sign, all are against it, and these are not few.
    negative, positive = 2 * downs >= count, 2 * ups >= count
    few = (ups * negative + downs * positive <= _MINORITY * count) & (count >= _FEWEST)
    return known & ((up & negative) | (down & positive)) & few & (times >= _TWICE)


def record_step(now: Responses, step: Sequence[Array], along: Array, numbers: Array, counted: Array) -> Responses:
    """After the server's step; ``along`` are <u_i, step> of the updates that led to it."""
    along = jnp.where(counted, along, jnp.nan).astype(now.along.dtype)
    return now._replace(step=list(step), along=_replaced(jnp.full_like(now.along, jnp.nan), numbers, along))


def _replaced(values: Array, numbers: Array, new: Array) -> Array:
    """With ``new`` at those numbers. By a table that is the same for all arrays: scatters are slow on a GPU."""
    places = jnp.full(len(values), -1).at[numbers].set(jnp.arange(len(numbers)), unique_indices=True)
    return jnp.where(places < 0, values, new[places])
