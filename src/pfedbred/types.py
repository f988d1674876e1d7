"""Types shared by all modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

Tree: TypeAlias = Any
"""A pytree of arrays: the parameters of a network, a message, a client's state."""

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array


@dataclass(frozen=True)
class Words:
    """Vocabulary size and an optional frozen embedding. Id 0 is padding, id 1 an unknown word.

    Attributes:
      count: number of ids.
      vectors: a frozen embedding, one row per id; None if it is to be learned.
    """

    count: int
    vectors: np.ndarray | None = None


def tree_bytes(tree: Tree) -> int:
    """Bytes of a tree's arrays; the leaves may be only shapes and types."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
