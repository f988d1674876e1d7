r"""Responses: whether a client's updates follow the server's steps as those of a training client do.

Let u_i(w) be the update of a client that starts at w, and s the server's step from one round to the next. Training
goes downhill, so u_i is roughly minus a gradient, and the gradient of a convex loss is monotone:

    r_i = <u_i(w + s) - u_i(w), s> / (||s|| ||u_i(w + s)||) <= 0

whatever data the client has: no other client is needed to tell. An update with its sign flipped has r_i >= 0. A
network's loss is not convex, and early in training all r_i may be positive; so the test is relative. Of the known
responses a_i, each the average of a client's latest r_i, let m be the median of |a_i| and d their spread (1.4826 times
the median deviation from m): a flip changes neither. Where noise cannot turn a sign, m > 2.5 d, and three quarters have
the sign of the median response, one is reversed if it has the other sign, is not small, above m / 4, and has been heard
twice.

r_i is known of a client whose update the server has had in two consecutive rounds. Fewer than eight known responses
are not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.aggregation.base import flat_rows
from pfedbred.aggregation.median import masked_median
from pfedbred.types import Array

_NEW = 0.2  # least weight of the latest in an average
_CLEAR, _SMALL, _MINORITY = 2.5, 0.25, 0.25
_TWICE = 2
_SIGMA = 1.4826
_FEWEST = 8


class Responses(NamedTuple):
    """What the server remembers from round to round.

    Attributes:
      step: its last step, by array: how far what an unchanged client uploads has moved.
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


def heard(before: Responses, updates: Sequence[Array], norms: Array, numbers: Array, counted: Array) -> Responses:
    """With the responses of a round's updates, given by array with the clients along the first axis."""
    length = jnp.sqrt(_dots([leaf[None] for leaf in before.step], before.step)[0])
    change = _dots(updates, before.step).astype(before.along.dtype) - before.along[numbers]
    found = (change / (length * norms)).astype(before.averages.dtype)
    known = counted & (norms > 0) & jnp.isfinite(found)
    found = jnp.clip(found, -1, 1)  # a much longer update in the round before would make it as large as one likes
    old = before.averages[numbers]
    weight = jnp.maximum(_NEW, 1 / (before.times[numbers] + 1)).astype(found.dtype)
    new = jnp.where(jnp.isnan(old), found, old + weight * (found - old))
    return before._replace(
        averages=before.averages.at[numbers].set(jnp.where(known, new, old)),
        times=before.times.at[numbers].add(known.astype(jnp.int32)),
    )


def reversed_(averages: Array, times: Array) -> Array:
    """Which of the clients' responses are opposed to those of the others."""
    known, size = jnp.isfinite(averages), jnp.abs(averages)
    middle = masked_median(size, known)
    spread = _SIGMA * masked_median(jnp.abs(size - middle), known)
    against = known & (averages * masked_median(averages, known) < 0)
    few = jnp.sum(against) <= _MINORITY * jnp.sum(known)
    clear = (middle > _CLEAR * spread) & few & (jnp.sum(known) >= _FEWEST)
    return against & clear & (size > _SMALL * middle) & (times >= _TWICE)


def stepped(
    now: Responses, step: Sequence[Array], updates: Sequence[Array], numbers: Array, counted: Array
) -> Responses:
    """After the server's step, which followed these updates."""
    along = jnp.where(counted, _dots(updates, step), jnp.nan).astype(now.along.dtype)
    return now._replace(step=list(step), along=jnp.full_like(now.along, jnp.nan).at[numbers].set(along))


def _dots(updates: Sequence[Array], step: Sequence[Array]) -> Array:
    """The inner product of each client's update with the step."""
    total = jnp.float32(0)
    for update, leaf in zip(updates, step, strict=True):
        wide = jnp.promote_types(leaf.dtype, jnp.float32)  # a difference of two of them is what counts
        total += jnp.matmul(
            flat_rows(update), leaf.ravel(), precision=jax.lax.Precision.HIGHEST, preferred_element_type=wide
        )
    return total
