"""Inverses and roots of small dense matrices, by LAPACK on a CPU one matrix at a time.

Given a batch of matrices, LAPACK's calls in jaxlib wait for help from the threads that run the program. With several
devices on a CPU all of these can be waiting, each for another, and the program hangs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.types import Array


def _alone(function: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """The function of one matrix, for which vmap on a CPU is a loop."""
    in_turn = jax.custom_batching.sequential_vmap(function)
    return lambda matrix: (in_turn if jax.default_backend() == "cpu" else function)(matrix)


inverse = _alone(jnp.linalg.inv)
"""Of a matrix."""

cholesky = _alone(jnp.linalg.cholesky)
"""L with L L^T the matrix, which is positive definite."""

eigenvectors = _alone(lambda matrix: tuple(jnp.linalg.eigh(matrix)))
"""The eigenvalues of a symmetric matrix, and its eigenvectors as columns."""
