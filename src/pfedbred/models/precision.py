"""Half precision: products in bfloat16, params and sums outside the network in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError, nearest
from pfedbred.models.base import Model, Statistics, WithStatistics
from pfedbred.types import Array, Key, Tree

Precision = Literal["float32", "bfloat16"]


def with_precision(model: Model, precision: str) -> Model:
    """The same model, computed in that precision; its params are unchanged.

    With ``bfloat16``, params and inputs are rounded to bfloat16 (8 bits of precision, the range of float32) when the
    network is applied, so it computes with such numbers; a product is accumulated in float32 before it is rounded.
    Outputs are converted back to the params' type. Gradients therefore have the type of the params, though their values
    are rounded to bfloat16 as well (compilers may leave out a rounding), and losses, steps, proximal terms and averages
    are computed in it. Batch statistics stay in float32: normalisation layers read them unrounded.

    What a network does between its products is its own decision: Flax's normalisation layers, for instance, compute
    means and variances in float32 from inputs in bfloat16, and so do the states of the LSTMs here.

    References: Micikevicius et al., "Mixed Precision Training", ICLR 2018; Kalamkar et al., "A Study of BFLOAT16 for
    Deep Learning Training", 2019.
    """
    if precision not in get_args(Precision):
        raise SettingError(f"unknown precision {precision!r}{nearest(precision, get_args(Precision))}")
    if precision == "float32":
        return model
    rest, train, statistics = model.rest, model.train, model.statistics
    return model._replace(
        apply=_rounded(model.apply),
        rest=None if rest is None else _rounded(rest),
        train=None if train is None else _rounded_training(train),
        statistics=None if statistics is None else _rounded_statistics(statistics),
    )


def _rounded(apply: Callable[[Tree, Array], Array]) -> Callable[[Tree, Array], Array]:
    def rounded(params: Tree, x: Array) -> Array:
        return apply(_narrow(params), _narrow(x)).astype(_type(params))

    return rounded


def _rounded_training(train: Callable[[Tree, Array, Key], Array]) -> Callable[[Tree, Array, Key], Array]:
    def rounded(params: Tree, x: Array, key: Key) -> Array:
        return train(_narrow(params), _narrow(x), key).astype(_type(params))

    return rounded


def _rounded_statistics(statistics: Statistics) -> Statistics:
    def of(params: Tree, x: Array) -> Tree:
        return jax.tree.map(lambda found: found.astype(_type(params)), statistics.of(_narrow(params), _narrow(x)))

    return statistics._replace(of=of)


def _narrow(tree: Tree) -> Tree:
    """The tree with floating-point arrays in bfloat16, except statistics; word ids stay whole numbers."""
    if isinstance(tree, WithStatistics):
        return tree._replace(params=_narrow(tree.params))

    def narrow(leaf: Any) -> Any:
        return leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(narrow, tree)


def _type(params: Tree) -> Any:
    """The type of the params: float32, or float64 in tests."""
    if isinstance(params, WithStatistics):
        params = params.params
    return jnp.result_type(jnp.float32, *jax.tree.leaves(params))
