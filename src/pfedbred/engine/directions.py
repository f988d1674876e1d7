"""Directions: which updates of a round are copies of others, or opposed to them.

The rules are those of :mod:`pfedbred.engine.screening`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.aggregation.base import along_first, flat_rows
from pfedbred.aggregation.median import masked_median
from pfedbred.types import Array

_SAME = 0.99999
_OPPOSITE, _APART = -0.8, 0.3
_FEWEST = 6  # updates that can be compared
_COMPARED = 64  # of many selected clients, every update is compared with this many


def units(updates: Sequence[Array], norms: Array) -> Array:
    """A row for each client: its update divided by its norm, 0 if that is not possible.

    Args:
      updates: by array, the clients along the first axis.
      norms: of the updates.
    """
    usable = jnp.isfinite(norms) & (norms > 0)
    each = [jnp.where(along_first(usable, leaf), leaf / along_first(norms, leaf), 0) for leaf in updates]
    return jnp.concatenate([flat_rows(leaf).astype(norms.dtype) for leaf in each], axis=1)


def products(rows: Array) -> Array:
    """The cosines of each client (rows) with some (columns, see ``compared_with``), 0 with itself."""
    columns = compared_with(len(rows))
    itself = np.arange(len(rows))[:, None] == columns
    found = jnp.matmul(rows, _at(rows, columns).T, precision=jax.lax.Precision.HIGHEST)
    return jnp.where(itself, 0, found)


def compared_with(clients: int) -> np.ndarray:
    """The updates that all are compared with: all if they are few, none if they are too few."""
    if clients < _FEWEST:
        return np.zeros(0, int)
    return np.unique(np.linspace(0, clients - 1, min(clients, _COMPARED)).round().astype(int))


def distinct(cosines: Array, opposed: bool) -> Array:
    """Whether no two updates are equal or, with ``opposed``, opposite: then all are in line."""
    far = (cosines > _SAME) | (cosines < _OPPOSITE) if opposed else cosines > _SAME
    return ~jnp.any(far)


def in_line(cosines: Array, norms: Array, counted: Array, opposed: bool) -> tuple[Array, Array]:
    """Which of the ``counted`` updates are not copies of others; and which of those are not ``opposed`` either."""
    columns = compared_with(len(norms))
    if len(columns) == 0:
        return counted, counted
    cosines = jnp.where(counted[:, None] & _at(counted, columns), cosines, 0)
    few = jnp.sum(counted) < _FEWEST
    unique = _not_copied(cosines, columns, norms, counted)
    left = _not_opposed(cosines, columns, unique) if opposed else unique
    return jnp.where(few, counted, unique), jnp.where(few, counted, left)


def _not_copied(cosines: Array, columns: np.ndarray, norms: Array, counted: Array) -> Array:
    """If two updates are equal the first counts, if more are none does, unless most updates are equal."""
    alike = (cosines > _SAME) & (jnp.abs(norms[:, None] / _at(norms, columns) - 1) < 1 - _SAME)
    earlier = columns < np.arange(len(norms))[:, None]
    copies = counted & (jnp.sum(alike * (1 + earlier), axis=1) > 1)  # like an earlier one, or like two others
    return counted & ~(copies & (2 * jnp.sum(copies) < jnp.sum(counted)))


def _not_opposed(cosines: Array, columns: np.ndarray, counted: Array) -> Array:
    """Drops opposed updates one by one, the worst first, as long as more than half of all count."""

    def worst(counted: Array) -> tuple[Array, Array]:
        """The update with the lowest score of those opposite to another, and whether it is opposed to all."""
        cubes, among = cosines**3, _at(counted, columns)
        total, size = (jnp.sum(jnp.where(among, each, 0), 1) for each in (cubes, jnp.abs(cubes)))
        scores = total / jnp.maximum(size, jnp.finfo(cubes.dtype).tiny)
        suspect = counted & jnp.any((cosines < _OPPOSITE) & among, axis=1)
        lowest = jnp.argmin(jnp.where(suspect, scores, jnp.inf))
        apart = masked_median(scores, counted) - scores[lowest]
        return lowest, suspect[lowest] & (scores[lowest] < 0) & (apart > _APART)

    def more(counted: Array) -> Array:
        return worst(counted)[1] & (2 * jnp.sum(counted) > len(counted))

    return jax.lax.while_loop(more, lambda counted: counted.at[worst(counted)[0]].set(False), counted)


def _at(values: Array, places: np.ndarray) -> Array:
    """``values[places]``, without a copy if those are all."""
    return values if len(places) == len(values) else values[places]
