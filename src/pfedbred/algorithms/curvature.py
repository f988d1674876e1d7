r"""The curvature of a client's loss: the generalised Gauss-Newton matrix of n f over all of its samples.

    H = sum_b J_b^T L_b J_b,        J_b = d outputs / d params,   L_b = Hess_outputs loss_b,

which is the Hessian of a linear model, the Fisher information if the loss is a negative log-likelihood, and always
positive semidefinite. Its diagonal is estimated without bias by one gradient per block of samples: with
L_b = R_b R_b^T and random signs e,

    E[(sum_b J_b^T R_b e_b)^2] = diag(sum_b J_b^T L_b J_b).

The params of a small head are kept in full.

References: Schraudolph, "Fast Curvature Matrix-Vector Products", Neural Computation 2002; Bekas, Kokiopoulou and Saad,
"An Estimator for the Diagonal of a Matrix", 2007.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from pfedbred.algorithms.base import Task
from pfedbred.bregman.evidence import Curvature
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.types import Array, Tree

_PURPOSE = 0xC0  # keeps the signs independent of what a network draws from the same key


def block_keys(task: Task, params: Tree, largest: int) -> list[str] | None:
    """The head's keys if it is named and has at most ``largest`` params, else None."""
    keys = task.model.head_keys(params)
    if keys is None or task.model.train is not None:  # outputs in training depend on the other samples
        return None
    size = sum(leaf.size for key in keys for leaf in jax.tree.leaves(params[key]))
    return keys if size <= largest else None


def curvature(task: Task, params: Tree, data: ClientData, keys: list[str] | None) -> tuple[Curvature, Array]:
    """The curvature of n f at ``params`` on the client's samples, and n f itself; ``keys`` are those kept in full."""

    def add(total: tuple[Curvature, Array], batch: Batch, real: Array) -> tuple[Curvature, Array]:
        (diagonal, block), loss = total
        outputs, pull = jax.vjp(lambda params: task.outputs(params, batch), params)
        roots = jnp.where(real[:, None, None], _roots(task, outputs, batch.y), 0)
        key = jax.random.fold_in(jax.random.key(0) if batch.key is None else batch.key, _PURPOSE)
        signs = jax.random.rademacher(key, outputs.shape, outputs.dtype)
        (slope,) = pull(jnp.einsum("bij,bj->bi", roots, signs).astype(outputs.dtype))
        diagonal = jax.tree.map(lambda sum_, leaf: sum_ + leaf**2, diagonal, slope)
        if keys is not None and block is not None:
            slopes = _scaled(roots, head_jacobians(task, params, batch.x, keys))
            block = block + jnp.matmul(slopes.T, slopes, precision=jax.lax.Precision.HIGHEST)
        return Curvature(diagonal, block), loss + jnp.sum(jnp.where(real, task.losses(outputs, batch.y), 0))

    start = jnp.zeros((size := _size(params, keys), size), _type(params)) if keys is not None else None
    return data.fold(add, (Curvature(optax.tree.zeros_like(params), start), jnp.zeros((), _type(params))))


def head_curvature(task: Task, params: Tree, data: ClientData, keys: list[str], *, full: bool) -> Array:
    """The curvature of n f in the params under ``keys``, not in training mode: a matrix, or only its diagonal."""

    def add(total: Array, batch: Batch, real: Array) -> Array:
        outputs = task.model.apply(params, batch.x)
        roots = jnp.where(real[:, None, None], _roots(task, outputs, batch.y), 0)
        slopes = _scaled(roots, head_jacobians(task, params, batch.x, keys))
        if full:
            return total + jnp.matmul(slopes.T, slopes, precision=jax.lax.Precision.HIGHEST)
        return total + jnp.sum(slopes**2, axis=0)

    size = _size(params, keys)
    return data.fold(add, jnp.zeros((size, size) if full else (size,), _type(params)))


def _scaled(roots: Array, jacobians: Array) -> Array:
    """R_b^T J_b of all samples: one row per sample and output."""
    slopes = jnp.einsum("bij,bid->bjd", roots, jacobians)
    return slopes.reshape(-1, slopes.shape[-1])


def _roots(task: Task, outputs: Array, labels: Array) -> Array:
    """R of each sample, with R R^T the Hessian of its loss in the outputs, or the nearest positive semidefinite matrix.

    R is the symmetric root, which is unique; a root made of eigenvectors is not, and would differ between executors.
    """

    def loss(output: Array, label: Array) -> Array:
        return task.losses(output[None], label[None])[0]

    values, vectors = jnp.linalg.eigh(jax.vmap(jax.hessian(loss))(outputs, labels))
    rounding = 10 * jnp.finfo(values.dtype).eps * jnp.max(values, axis=1, keepdims=True)
    roots = jnp.sqrt(jnp.where(values > rounding, values, 0))
    return jnp.einsum("bik,bk,bjk->bij", vectors, roots, vectors)


def head_jacobians(task: Task, params: Tree, x: Array, keys: list[str]) -> Array:
    """d outputs / d params under ``keys``, for each sample: (samples, outputs, params)."""
    flat, unravel = ravel_pytree({key: params[key] for key in keys})

    def outputs(flat: Array, sample: Array) -> Array:
        return task.model.apply({**params, **unravel(flat)}, sample[None])[0]

    return jax.vmap(jax.jacrev(outputs), (None, 0))(flat, x)


def _size(params: Tree, keys: list[str]) -> int:
    return sum(leaf.size for key in keys for leaf in jax.tree.leaves(params[key]))


def _type(params: Tree) -> Any:
    return jnp.result_type(*jax.tree.leaves(params))
