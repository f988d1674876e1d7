r"""Posteriors of personal models' last layers, for predictions that account for how certain they are.

The last layer h of P is uncertain; the layers before it are taken as given. Laplace's approximation of its posterior is

    N(h_i, V_i),        V_i = (H_i + T_i)^-1,

with H_i the curvature of n_i f_i in the last layer (:mod:`pfedbred.algorithms.curvature`) and T_i the precision of the
prior: n_i lam of the method's own prior, learned or not, if it has one (``Client.precision``); else that of a Gaussian
around zero whose precision maximises the evidence (:mod:`pfedbred.bregman.evidence`). V_i is a matrix if the last layer
has at most 1,100 params; in a larger one, only the diagonal of H_i counts. A logit z_c of a sample x has the variance
v_c = J_c V_i J_c^T, with J = dz / dh, and a prediction integrates over it,

    z_c / sqrt(1 + pi v_c / 8),

MacKay's approximation of the mean of a sigmoid, entry by entry for several labels. Confidence falls where the client
has few samples, or none like x.

``sgld`` draws 20 last layers from the posterior itself instead, by stochastic gradient Langevin dynamics, and averages
their predictions. It starts at h_i and moves in coordinates in which Laplace's approximation is a standard normal
distribution, so that steps of one size suit all params. The gradient of the log-posterior has a control variate,

    -n_i (grad f(h) - grad f(h_i)) - T_i (h - h_i),        on the same minibatch,

which is exact at h_i, where it is zero: minibatches add hardly any noise nearby, and the prior's mean is not needed.

Training is unchanged, and so is G.

References: MacKay, "The Evidence Framework Applied to Classification Networks", 1992; Kristiadi et al., "Being
Bayesian, Even Just a Bit, Fixes Overconfidence in ReLU Networks", ICML 2020; Daxberger et al., "Laplace Redux", 2021;
Welling and Teh, "Bayesian Learning via Stochastic Gradient Langevin Dynamics", ICML 2011; Baker et al., "Control
Variates for Stochastic Gradient MCMC", 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.algorithms.curvature import head_curvature, head_jacobians
from pfedbred.algorithms.ensemble import mixed, with_ensembles
from pfedbred.algorithms.local_steps import drawn, more
from pfedbred.bregman.dense import cholesky, inverse
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.errors import SettingError
from pfedbred.types import Array, Tree

Posterior = Literal["laplace", "sgld", "ensemble"]
"""How the posterior is found: see the module, and :mod:`pfedbred.algorithms.ensemble`."""

_BLOCK = 1100  # params of a last layer whose covariance is a matrix: 5 MB, and for ten labels that of a `dnn`
_MIN_PRECISION = 1e-3  # the weakest prior
_UPDATES = 10  # of the precision of a prior around zero
_SAMPLES, _THINNING, _WARMUP = 20, 10, 50  # last layers drawn, steps between them, and steps before the first
_STEP = 0.1  # of Langevin dynamics, where the posterior is about standard normal
_PURPOSE = 0x5D  # keeps its noise independent of what a network draws from the same key


class WithPosterior(NamedTuple):
    """A personal model, and the covariance of its last layer: a matrix, or its diagonal."""

    model: Tree
    covariance: Array


class WithSamples(NamedTuple):
    """A personal model, and last layers drawn from its posterior, flat, one in each row."""

    model: Tree
    heads: Array


def with_posterior(algorithm: Algorithm, task: Task, posterior: Posterior | None) -> Algorithm:
    """The algorithm with a posterior of every P; unchanged without one."""
    if posterior is None:
        return algorithm
    if posterior == "ensemble":
        return with_ensembles(algorithm, task)
    client, predict = algorithm.client, algorithm.predict
    _check(algorithm, task)

    def fitted(message: Tree, state: Tree, data: ClientData) -> tuple[Tree, Array, Array]:
        """P, the covariance of its last layer, and the precision of the prior."""
        personal = client.model(message, state, data)
        keys = _head(task, personal)
        head = ravel_pytree({key: personal[key] for key in keys})[0]
        curved = head_curvature(task, personal, data, keys, full=len(head) <= _BLOCK)
        if client.precision is None:
            precision = _by_evidence(curved, head)
        else:
            prior = client.precision(message, state, data)
            precision = ravel_pytree({key: prior[key] for key in keys})[0]
        return personal, _covariance(curved, precision), precision

    def model(message: Tree, state: Tree, data: ClientData) -> WithPosterior | WithSamples:
        personal, covariance, precision = fitted(message, state, data)
        if posterior == "laplace":
            return WithPosterior(personal, covariance)
        first = drawn(client.model_draws, data.passes.minibatches if data.passes else 0)
        return WithSamples(personal, _langevin(task, personal, covariance, precision, data, first))

    def predict_uncertain(model: Tree, x: Array) -> Array:
        if isinstance(model, WithSamples):
            return _mixed(task, predict, model, x)
        if not isinstance(model, WithPosterior):
            return predict(model, x)
        outputs = predict(model.model, x)
        slopes = head_jacobians(task, model.model, x, _head(task, model.model))
        if model.covariance.ndim == 1:
            variances = jnp.einsum("bcd,d->bc", slopes**2, model.covariance)
        else:
            variances = jnp.einsum("bcd,de,bce->bc", slopes, model.covariance, slopes)
        return outputs / jnp.sqrt(1 + jnp.pi / 8 * variances.astype(outputs.dtype))

    if posterior == "sgld":
        steps = _WARMUP + _SAMPLES * _THINNING
        client = client._replace(model_draws=more(client.model_draws, steps), random=True)
    return algorithm._replace(client=client._replace(model=model), predict=predict_uncertain)


def _check(algorithm: Algorithm, task: Task) -> None:
    if task.kind.labels == "numbers":
        raise SettingError("a posterior needs a classification task; for a regression, coverage gives intervals")
    if algorithm.networks.several:
        raise SettingError("a posterior needs a P that is one network, and this method's P is a mixture of several")
    if task.model.statistics is not None:
        raise SettingError("a posterior is not available for networks with batch norm: use batch_norm group")


def _head(task: Task, params: Tree) -> list[str]:
    keys = task.model.head_keys(params)
    if keys is None:
        raise SettingError("a posterior needs a P that is a network's params, and a network that names its last layer")
    return keys


def _covariance(curvature: Array, precision: Array) -> Array:
    """(H + diag T)^-1, a matrix if H is one; a flat prior, T = 0, is replaced by a very weak one."""
    precision = jnp.maximum(precision, _MIN_PRECISION)
    if curvature.ndim == 1:
        return 1 / (curvature + precision)
    root = jnp.sqrt(precision)  # scaled as in bregman.evidence.effective_in_block
    inner = curvature / root / root[:, None] + jnp.eye(len(root), dtype=curvature.dtype)
    return inverse(inner) / root / root[:, None]


def _by_evidence(curvature: Array, head: Array) -> Array:
    """The precision tau of the prior N(0, 1 / tau) that maximises the evidence, for each param."""

    def update(_: int, tau: Array) -> Array:
        covariance = _covariance(curvature, jnp.full(len(head), tau))
        variances = covariance if covariance.ndim == 1 else jnp.diagonal(covariance)
        effective = jnp.sum(jnp.clip(1 - tau * variances, 0, 1))
        return jnp.clip(effective / jnp.maximum(jnp.vdot(head, head), 1e-12), 1e-3, 1e6)

    return jnp.full(len(head), jax.lax.fori_loop(0, _UPDATES, update, jnp.ones((), head.dtype)))


def _langevin(
    task: Task, personal: Tree, covariance: Array, precision: Array, data: ClientData, first: int | Array
) -> Array:
    """Last layers drawn from the posterior, on minibatches from number ``first`` on."""
    try:
        import blackjax
    except ImportError:
        raise SettingError("the posterior sgld needs BlackJAX: pip install 'pfedbred[bayes]'") from None
    keys = _head(task, personal)
    head, unravel = ravel_pytree({key: personal[key] for key in keys})
    if covariance.ndim == 1:
        raise SettingError(f"the posterior sgld needs a last layer of at most {_BLOCK:,} params, not {len(head):,}")
    root, size = cholesky(covariance), data.size.astype(head.dtype)

    def slope(head: Array, batch: Batch) -> Array:
        def loss(head: Array) -> Array:
            return batch.mean(task.losses(task.model.apply({**personal, **unravel(head)}, batch.x), batch.y))

        return jax.grad(loss)(head)

    def log_density_slope(place: Array, batch: Batch) -> Array:
        away = root @ place
        rise = size * (slope(head + away, batch) - slope(head, batch))
        return -(root.T @ (rise + precision * away))

    chain = blackjax.sgld(log_density_slope)
    noise = jax.random.fold_in(jax.random.key(0) if data.key is None else data.key, _PURPOSE)

    def step(place: Array, number: Array) -> tuple[Array, Array]:
        moved = chain.step(jax.random.fold_in(noise, number), place, data.batch(first + number), _STEP)
        return moved.astype(place.dtype), moved.astype(place.dtype)

    _, places = jax.lax.scan(step, jnp.zeros_like(head), jnp.arange(_WARMUP + _SAMPLES * _THINNING))
    return head + places[_WARMUP + _THINNING - 1 :: _THINNING] @ root.T


def _mixed(task: Task, predict: Callable[[Tree, Array], Array], model: WithSamples, x: Array) -> Array:
    """Outputs whose probabilities are the mean over the last layers drawn."""
    _, unravel = ravel_pytree({key: model.model[key] for key in _head(task, model.model)})
    every = jax.vmap(lambda head: predict({**model.model, **unravel(head)}, x))(model.heads)
    return mixed(task, every)
