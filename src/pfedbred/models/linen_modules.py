"""Models from Flax's linen modules: the params are the collection ``params``, the statistics ``batch_stats``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError
from pfedbred.models.adapting import (
    EVALUATION,
    MEASURING,
    TRAINING,
    Mode,
    check_output,
    converted,
    flags,
    group_normalised,
    library,
    per_channel,
    refuse_state,
)
from pfedbred.models.base import Model, Statistics
from pfedbred.models.convolution import with_fast_convolutions
from pfedbred.types import Array, Key, Tree

_STATISTICS = "batch_stats"
_DRAWS = (
    "the module draws random numbers {}: only dropout can, in training and from its own stream; a module whose "
    "__call__ decides about dropout needs a parameter train or deterministic"
)


def from_linen(module: Any, sample: jax.ShapeDtypeStruct, grouped: bool = False) -> Model:
    """The model of a module, with group normalisation instead of batch normalisation if ``grouped``."""
    linen, errors = library("flax.linen"), library("flax.errors")
    batch_norms: set[str] = set()
    norms: dict[str, None] = {}
    kinds = (linen.BatchNorm, linen.GroupNorm, linen.LayerNorm, linen.InstanceNorm, linen.RMSNorm)

    def intercept(mode: Mode) -> Callable[..., Any]:
        def call(run: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
            layer, path = context.module, ".".join(context.module.path)
            if context.method_name != "__call__":
                return run(*args, **kwargs)
            if isinstance(layer, kinds):
                norms[path] = None
            if isinstance(layer, linen.BatchNorm):
                batch_norms.add(path)
                x = args[0] if args else kwargs["x"]
                if grouped:
                    return _group_norm(layer, x)
                # The bound layer belongs to this call only. Without momentum, its statistics are the minibatch's.
                object.__setattr__(layer, "use_running_average", mode.kept)
                object.__setattr__(layer, "momentum", 0.0)
                return run(x, mask=kwargs.get("mask"))
            if isinstance(layer, linen.Dropout):
                if not mode.drop:
                    return args[0] if args else kwargs["inputs"]
                if layer.deterministic is None and len(args) < 2 and kwargs.get("deterministic") is None:
                    kwargs = {**kwargs, "deterministic": False}
            return run(*args, **kwargs)

        return call

    def applied(mode: Mode, variables: Tree, x: Array, key: Key | None = None) -> tuple[Array, Tree]:
        rngs = {} if key is None else {"dropout": key}
        with linen.intercept_methods(intercept(mode)):
            out, changed = module.apply(
                variables, converted(x, sample.dtype), rngs=rngs, mutable=[_STATISTICS], **flags(module.__call__, mode)
            )
        return out, {} if mode.kept else changed.get(_STATISTICS, {})

    def variables(key: Key) -> Tree:
        with linen.intercept_methods(intercept(EVALUATION)):
            return module.init(key, jnp.zeros(sample.shape, sample.dtype), **flags(module.__call__, EVALUATION))

    made: Any = {}
    drops = False

    def shapes_of(mode: Mode, where: str, *key: Key) -> Any:
        try:
            return jax.eval_shape(lambda given, x, *key: applied(mode, given, x, *key)[0], made, sample, *key)
        except errors.InvalidRngError:
            raise SettingError(_DRAWS.format(where)) from None

    def check() -> Any:
        nonlocal made, drops
        made = dict(jax.eval_shape(variables, jax.random.key(0)))
        refuse_state(name for name in made if name not in ("params", _STATISTICS))
        leaves = jax.tree_util.tree_leaves_with_path(made.get(_STATISTICS, {}))
        owners = [jax.tree_util.keystr(path[:-1], simple=True, separator=".") for path, _ in leaves]
        refuse_state(f"{_STATISTICS} of {owner or 'its own'}" for owner in owners if owner not in batch_norms)
        out = shapes_of(EVALUATION, "in evaluation")
        try:
            shapes_of(TRAINING, "")
        except SettingError:
            drops = True
            shapes_of(TRAINING, "from other streams", jax.random.key(0))
        return out

    check_output(check, sample)
    shapes = made.get(_STATISTICS, {})

    def init(key: Key) -> Tree:
        return variables(key).get("params", {})

    def train(params: Tree, x: Array, key: Key) -> Array:
        return applied(TRAINING, {"params": params}, x, key)[0]

    def of(params: Tree, x: Array) -> Tree:
        return applied(MEASURING, {"params": params}, x)[1]

    def apply(model: Tree, x: Array) -> Array:
        given = {"params": model.params, _STATISTICS: model.statistics} if shapes else {"params": model}
        return applied(EVALUATION, given, x)[0]

    def start() -> Tree:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: jnp.full(leaf.shape, float(path[-1].key == "var"), leaf.dtype), shapes
        )

    return Model(
        init,
        with_fast_convolutions(apply),
        train=with_fast_convolutions(train) if shapes or drops else None,
        statistics=Statistics(start, with_fast_convolutions(of)) if shapes else None,
        norms=tuple(name for name in norms if name),
        grouped=(lambda: from_linen(module, sample, grouped=True)) if shapes else None,
    )


def _group_norm(layer: Any, x: Array) -> Array:
    """Group normalisation inside a batch norm's call, with its scale and bias."""
    axis, out = layer.axis, group_normalised(x, layer.axis, layer.epsilon)
    shape = (x.shape[axis],)
    if layer.use_scale:
        out = out * per_channel(layer.param("scale", layer.scale_init, shape, layer.param_dtype), x, axis)
    if layer.use_bias:
        out = out + per_channel(layer.param("bias", layer.bias_init, shape, layer.param_dtype), x, axis)
    return out.astype(layer.dtype or jnp.result_type(x.dtype, layer.param_dtype))
