r"""Posteriors of personal models: predictions that know how well the client's data determine its last layer.

The last layer h of P is uncertain; what precedes it is taken as it is. Laplace's approximation of its posterior is

    N(h_i, V_i),        V_i = (H_i + T_i)^-1,

with H_i the curvature of n_i f_i in the last layer (:mod:`pfedbred.algorithms.curvature`) and T_i the precision of the
prior: n_i lam of the method's own prior, learned or not, if it has one (``Client.precision``); else that of a Gaussian
around zero whose precision maximises the evidence (:mod:`pfedbred.bregman.evidence`). V_i is a matrix if the last layer
has at most 512 params; in a larger one, only the diagonal of H_i counts. A logit z_c of a sample x has the variance
v_c = J_c V_i J_c^T, with J = dz / dh, and a prediction integrates over it,

    z_c / sqrt(1 + pi v_c / 8),

MacKay's approximation of the mean of a sigmoid, entry by entry for several labels. Confidence falls where the client
has few samples, or none like x. Training is unchanged, and so is G.

References: MacKay, "The Evidence Framework Applied to Classification Networks", 1992; Kristiadi et al., "Being
Bayesian, Even Just a Bit, Fixes Overconfidence in ReLU Networks", ICML 2020; Daxberger et al., "Laplace Redux", 2021.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.algorithms.curvature import head_curvature, head_jacobians
from pfedbred.data.minibatches import ClientData
from pfedbred.errors import SettingError
from pfedbred.types import Array, Tree

Posterior = Literal["laplace"]
"""How uncertain a personal model is: see the module."""

_BLOCK = 512  # params of a last layer whose covariance is a matrix
_UPDATES = 10  # of the precision of a prior around zero


class WithPosterior(NamedTuple):
    """A personal model, and the covariance of its last layer: a matrix, or its diagonal."""

    model: Tree
    covariance: Array


def with_posterior(algorithm: Algorithm, task: Task, posterior: Posterior | None) -> Algorithm:
    """The algorithm with a posterior of every P; unchanged without one."""
    if posterior is None:
        return algorithm
    client, predict = algorithm.client, algorithm.predict
    _check(algorithm, task)

    def model(message: Tree, state: Tree, data: ClientData) -> WithPosterior:
        personal = client.model(message, state, data)
        keys = _head(task, personal)
        size = sum(leaf.size for key in keys for leaf in jax.tree.leaves(personal[key]))
        found = head_curvature(task, personal, data, keys, full=size <= _BLOCK)
        head = ravel_pytree({key: personal[key] for key in keys})[0]
        if client.precision is None:
            return WithPosterior(personal, _by_evidence(found, head))
        prior = client.precision(message, state, data)
        return WithPosterior(personal, _covariance(found, ravel_pytree({key: prior[key] for key in keys})[0]))

    def predict_certainly(model: Tree, x: Array) -> Array:
        if not isinstance(model, WithPosterior):
            return predict(model, x)
        outputs = predict(model.model, x)
        slopes = head_jacobians(task, model.model, x, _head(task, model.model))
        if model.covariance.ndim == 1:
            variances = jnp.einsum("bcd,d->bc", slopes**2, model.covariance)
        else:
            variances = jnp.einsum("bcd,de,bce->bc", slopes, model.covariance, slopes)
        return outputs / jnp.sqrt(1 + jnp.pi / 8 * variances.astype(outputs.dtype))

    return algorithm._replace(client=client._replace(model=model), predict=predict_certainly)


def _check(algorithm: Algorithm, task: Task) -> None:
    if task.kind.labels == "numbers":
        raise SettingError("a posterior is for labels; intervals for numbers are those of coverage")
    if algorithm.networks.several:
        raise SettingError("a posterior is of one network, and this method's P is a mixture of several")
    if task.model.statistics is not None:
        raise SettingError("a posterior is not available for networks with batch norm: use batch_norm group")


def _head(task: Task, params: Tree) -> list[str]:
    keys = task.model.head_keys(params)
    if keys is None:
        raise SettingError("a posterior needs a P that is a network's params, and a network that names its last layer")
    return keys


def _covariance(curvature: Array, precision: Array) -> Array:
    """(H + diag T)^-1, a matrix if H is one."""
    if curvature.ndim == 1:
        return 1 / (curvature + precision)
    root = jnp.sqrt(precision)  # scaled as in bregman.evidence.effective_in_block
    inner = curvature / root / root[:, None] + jnp.eye(len(root), dtype=curvature.dtype)
    return jnp.linalg.inv(inner) / root / root[:, None]


def _by_evidence(curvature: Array, head: Array) -> Array:
    """The covariance under the prior N(0, 1 / tau) whose tau maximises the evidence."""

    def update(_: int, tau: Array) -> Array:
        covariance = _covariance(curvature, jnp.full(len(head), tau))
        variances = covariance if covariance.ndim == 1 else jnp.diagonal(covariance)
        effective = jnp.sum(jnp.clip(1 - tau * variances, 0, 1))
        return jnp.clip(effective / jnp.maximum(jnp.vdot(head, head), 1e-12), 1e-3, 1e6)

    tau = jax.lax.fori_loop(0, _UPDATES, update, jnp.ones((), head.dtype))
    return _covariance(curvature, jnp.full(len(head), tau))
