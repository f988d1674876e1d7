"""Group and batch normalisation, and models with either.

A network is written once, as ``network(params, x, normalise)``: at each of its normalisation layers it calls
``normalise(name, layer, x)``, where ``name`` identifies the layer and ``layer`` holds its scale and shift.
:func:`with_norm` makes a model of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError, nearest
from pfedbred.models.base import Model, Statistics, WithStatistics
from pfedbred.models.convolution import with_fast_convolutions
from pfedbred.types import Array, Key, Tree

Norm = Literal["group", "batch"]
NormaliseLayer = Callable[[str, Tree, Array], Array]
Network = Callable[[Tree, Array, NormaliseLayer], Array]

GROUPS = 2
_EPSILON = 1e-5


def norm_init(channels: int, dtype: Any) -> Tree:
    """The params of a layer that scales by one and shifts by zero."""
    return {"scale": jnp.ones(channels, dtype), "shift": jnp.zeros(channels, dtype)}


def group_norm(layer: Tree, x: Array, groups: int = GROUPS) -> Array:
    """Normalises each sample by the mean and variance of each group of channels, over all positions.

    x is (n, ..., channels). Two groups are usual for ResNets in federated learning.

    References: Wu and He, "Group Normalization", 2018; Hsieh, Phanishayee, Mutlu and Gibbons, "The Non-IID Data
    Quagmire of Decentralized Machine Learning", 2020; Reddi et al., "Adaptive Federated Optimization", 2021.
    """
    wide = _wide(x)
    pivot, mean, variance = _moments(wide, tuple(range(1, x.ndim - 1)))

    def of_group(channels: Array) -> Array:
        by_group = channels.reshape(*channels.shape[:-1], groups, -1)
        return jnp.broadcast_to(by_group.mean(-1, keepdims=True), by_group.shape).reshape(channels.shape)

    # First by channel, then over the few channels: one mean over both would not run along memory.
    center = of_group(pivot + mean)
    variance = of_group(variance + jnp.square(pivot + mean - center))
    return _scaled(layer, wide, pivot, center - pivot, variance).astype(x.dtype)


def layer_norm(layer: Tree, x: Array) -> Array:
    """Normalises each vector along the last axis by its own mean and variance (Ba, Kiros and Hinton, 2016)."""
    wide = _wide(x)
    center = wide.mean(-1, keepdims=True)
    return _affine(layer, wide, center, jnp.square(wide - center).mean(-1, keepdims=True)).astype(x.dtype)


def batch_norm(layer: Tree, x: Array, statistics: Tree | None = None) -> Array:
    """Normalises each channel by its mean and variance over the minibatch and all positions, or by kept ones.

    References: Ioffe and Szegedy, "Batch Normalization", 2015.
    """
    wide = _wide(x)
    if statistics is None:
        return _scaled(layer, wide, *_moments(wide, tuple(range(x.ndim - 1)))).astype(x.dtype)
    return _affine(layer, wide, statistics["mean"], statistics["variance"]).astype(x.dtype)


def observed(x: Array) -> Tree:
    """The mean of each channel and its variance, unbiased as in PyTorch (except of a single number)."""
    pivot, mean, variance = _moments(_wide(x), tuple(range(x.ndim - 1)))
    count = x.size // x.shape[-1]
    return {"mean": (pivot + mean).ravel(), "variance": variance.ravel() * count / max(count - 1, 1)}


def with_norm(
    init: Callable[[Key], Tree],
    network: Network,
    shape: tuple[int, ...],
    norm: Norm,
    norms: tuple[str, ...] = ("norm",),
    head: tuple[str, ...] = ("output",),
) -> Model:
    """The model of a network for samples of that shape; with ``norm="batch"`` it keeps statistics."""
    if norm not in get_args(Norm):
        raise SettingError(f"unknown normalisation {norm!r}{nearest(str(norm), get_args(Norm))}")
    if norm == "group":
        plain = with_fast_convolutions(lambda params, x: network(params, x, lambda _, layer, x: group_norm(layer, x)))
        return Model(init, plain, head=head, norms=norms)

    def apply(model: WithStatistics, x: Array) -> Array:
        return network(model.params, x, lambda name, layer, x: batch_norm(layer, x, model.statistics[name]))

    def train(params: Tree, x: Array, key: Key) -> Array:
        return network(params, x, lambda _, layer, x: batch_norm(layer, x))

    def of(params: Tree, x: Array) -> Tree:
        found = {}

        def normalise(name: str, layer: Tree, x: Array) -> Array:
            found[name] = observed(x)
            return batch_norm(layer, x)

        network(params, x, normalise)
        return found

    statistics = Statistics(lambda: _start(init, network, shape), with_fast_convolutions(of))
    fast = with_fast_convolutions(train)
    return Model(init, with_fast_convolutions(apply), head=head, train=fast, statistics=statistics, norms=norms)


def _start(init: Callable[[Key], Tree], network: Network, shape: tuple[int, ...]) -> Tree:
    """Mean zero and variance one for every layer that the network has."""
    start = {}

    def normalise(name: str, layer: Tree, x: Array) -> Array:
        like = layer["scale"]
        start[name] = {"mean": (like.shape, like.dtype), "variance": (like.shape, like.dtype)}
        return x

    def run(key: Key, x: Array) -> Array:
        return network(init(key), x, normalise)

    jax.eval_shape(run, jax.random.key(0), jax.ShapeDtypeStruct((1, *shape), jnp.float32))
    return {
        name: {"mean": jnp.zeros(*each["mean"]), "variance": jnp.ones(*each["variance"])}
        for name, each in start.items()
    }


def _wide(x: Array) -> Array:
    """x in at least float32, so that means and variances are not rounded to half precision."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """A value of x, the mean along these axes minus that value, and the biased variance; the axes stay, of length 1.

    Both sums take one pass over x. About a value of x, the mean of squares minus the squared mean is accurate: over n
    numbers, the variance is at least the squared mean over n - 1.
    """
    first = tuple(slice(1) if axis in axes else slice(None) for axis in range(x.ndim))
    pivot = jax.lax.stop_gradient(x[first])  # the moments do not depend on it
    offsets = x - pivot
    mean = offsets.mean(axes, keepdims=True)
    return pivot, mean, jnp.square(offsets).mean(axes, keepdims=True) - jnp.square(mean)


def _scaled(layer: Tree, x: Array, pivot: Array, mean: Array, variance: Array) -> Array:
    """The affine map of moments from :func:`_moments`, whose gradient needs one pass for all its sums."""
    factor = layer["scale"] * jax.lax.rsqrt(variance + _EPSILON)
    return (x - pivot) * factor + (layer["shift"] - mean * factor)


def _affine(layer: Tree, x: Array, mean: Array, variance: Array) -> Array:
    return (x - mean) * (layer["scale"] * jax.lax.rsqrt(variance + _EPSILON)) + layer["shift"]
