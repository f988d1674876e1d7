"""Trees of small arrays as one array per type of number.

Evaluation has dozens of statistics of a few numbers each. To write, add up or fetch them one by one takes longer than
the work that they hold. ``jax.flatten_util.ravel_pytree`` makes a single array, for which it casts all leaves to
one type: large counts would lose digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.types import Array, Tree

Packed: TypeAlias = Mapping[str, Array]
"""One array per type of number, by the type's name; the last axis runs through the leaves."""

AnyArray = TypeVar("AnyArray", Array, np.ndarray)


def pack(tree: Tree, axes: int = 0) -> Packed:
    """The leaves side by side, after the first ``axes``, which they have in common."""
    groups: dict[str, list[Array]] = {}
    for leaf in jax.tree.leaves(tree):
        groups.setdefault(leaf.dtype.name, []).append(leaf.reshape(*leaf.shape[:axes], math.prod(leaf.shape[axes:])))
    return {name: jnp.concatenate(leaves, axis=-1) for name, leaves in groups.items()}


def shapes_of(tree: Tree) -> Tree:
    """What :func:`unpack` needs to know of a tree that is packed."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def unpack(packed: Mapping[str, AnyArray], like: Tree, axes: int = 0) -> Tree:
    """The tree again: ``like`` has the shapes and types that were packed with these ``axes``."""
    shapes, structure = jax.tree.flatten(like)
    used = dict.fromkeys(packed, 0)
    leaves = []
    for leaf in shapes:
        name = leaf.dtype.name
        flat, begin = packed[name], used[name]
        end = used[name] = begin + math.prod(leaf.shape[axes:])
        leaves.append(flat[..., begin:end].reshape(*flat.shape[:-1], *leaf.shape[axes:]))
    return jax.tree.unflatten(structure, leaves)
