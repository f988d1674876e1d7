"""Models from Flax's nnx modules: the params are their Params, the statistics their BatchStats, in nested dicts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
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
    kind,
    library,
    per_channel,
    refuse_state,
)
from pfedbred.models.base import Model, Statistics
from pfedbred.models.convolution import with_fast_convolutions
from pfedbred.types import Array, Key, Tree

_DRAWS = "the module draws random numbers in evaluation, where dropout is off"


def from_nnx(make: Callable[[Any], Any], sample: jax.ShapeDtypeStruct, grouped: bool = False) -> Model:
    """The model of the module from ``make(rngs)``, with group normalisation instead of batch norm if ``grouped``."""
    nnx = library("flax.nnx")

    def made(key: Key | int) -> Any:
        module = make(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise SettingError(f"from_flax takes a function rngs -> nnx.Module; this one made a {kind(module)}")
        for _, layer in _layers(module, nnx.BatchNorm) if grouped else ():
            layer.__class__ = _group_norm()
            del layer.mean, layer.var
        return module

    def graph_in(mode: Mode) -> Any:
        """The module's structure with all its layers in that mode."""
        module = nnx.eval_shape(lambda: made(0))
        for _, layer in _layers(module, nnx.BatchNorm):
            # Without momentum, its statistics are those of the minibatch.
            layer.use_running_average, layer.momentum = mode.kept, 0.0
        for _, layer in _layers(module, nnx.Dropout):
            if not mode.drop:
                layer.rate = 0.0
            elif layer.deterministic is None:
                layer.deterministic = False
        return nnx.split(module)[0]

    abstract = nnx.eval_shape(lambda: made(0))
    batch_norms = [path for path, _ in _layers(abstract, nnx.BatchNorm)]
    norm_kinds = (nnx.BatchNorm, nnx.GroupNorm, nnx.LayerNorm, nnx.InstanceNorm, nnx.RMSNorm)
    norms = tuple(".".join(map(str, path)) for path, _ in _layers(abstract, norm_kinds) if path)
    _, trained, kept, _, others = nnx.split(abstract, nnx.Param, nnx.BatchStat, nnx.RngState, ...)
    refuse_state(type(variable).__name__ for _, variable in nnx.to_flat_state(others))
    kept = dict(nnx.to_flat_state(kept))
    refuse_state("BatchStat of " + ".".join(map(str, path[:-1])) for path in kept if path[:-1] not in batch_norms)
    variables = dict(nnx.to_flat_state(trained))
    keys = dict(nnx.to_flat_state(jax.jit(lambda: nnx.state(made(0), nnx.RngState))()))
    graphs = {mode: graph_in(mode) for mode in (EVALUATION, TRAINING, MEASURING)}

    def start() -> Tree:
        flat = {path: jnp.full(each.shape, float(path[-1] == "var"), each.dtype) for path, each in kept.items()}
        return _named(nnx.to_pure_dict(nnx.from_flat_state(flat))) if flat else {}

    def module(mode: Mode, params: Tree, statistics: Tree, key: Key | None = None) -> Any:
        flat = {path: variable.replace(_at(params, path)) for path, variable in variables.items()}
        flat |= {path: variable.replace(_at(statistics, path)) for path, variable in kept.items()}
        for place, (path, variable) in enumerate(keys.items()):
            value = variable.get_value()
            if key is not None and isinstance(variable, nnx.RngKey):
                value = jax.random.fold_in(key, place)
            flat[path] = variable.replace(value)
        return nnx.merge(graphs[mode], nnx.from_flat_state(flat))

    def called(whole: Any, mode: Mode, x: Array) -> Array:
        return whole(converted(x, sample.dtype), **flags(type(whole).__call__, mode))

    def init(key: Key) -> Tree:
        return _named(nnx.to_pure_dict(nnx.state(made(key), nnx.Param)))

    def apply(model: Tree, x: Array) -> Array:
        params, statistics = model if kept else (model, {})
        return called(module(EVALUATION, params, statistics), EVALUATION, x)

    def train(params: Tree, x: Array, key: Key) -> Array:
        return called(module(TRAINING, params, start(), key), TRAINING, x)

    def of(params: Tree, x: Array) -> Tree:
        whole = module(MEASURING, params, start())
        called(whole, MEASURING, x)
        return _named(nnx.to_pure_dict(nnx.state(whole, nnx.BatchStat)))

    def shape(mode: Mode) -> tuple[Any, bool]:
        """The shape of the outputs, and whether random numbers are drawn."""
        drawn = False

        def applied(params: Tree, x: Array) -> Array:
            nonlocal drawn
            whole = module(mode, params, start())
            out = called(whole, mode, x)
            for path, variable in nnx.to_flat_state(nnx.state(whole, nnx.RngState)):
                drawn |= variable.get_value() is not keys[path].get_value()  # each draw is counted in the module
            return out

        return jax.eval_shape(applied, jax.eval_shape(init, jax.random.key(0)), sample), drawn

    drops = False

    def check() -> Any:
        nonlocal drops
        out, drawn = shape(EVALUATION)
        if drawn:
            raise SettingError(_DRAWS)
        drops = shape(TRAINING)[1]
        return out

    check_output(check, sample)
    return Model(
        init,
        with_fast_convolutions(apply),
        train=with_fast_convolutions(train) if kept or drops else None,
        statistics=Statistics(start, with_fast_convolutions(of)) if kept else None,
        norms=norms,
        grouped=(lambda: from_nnx(make, sample, grouped=True)) if kept else None,
    )


@functools.cache
def _group_norm() -> Any:
    """A batch norm that normalises by groups, with the same scale and bias."""
    base: Any = library("flax.nnx").BatchNorm

    class GroupedBatchNorm(base):  # type: ignore[misc]
        def __call__(self, x: Array, *args: Any, **kwargs: Any) -> Array:
            out = group_normalised(x, self.axis, self.epsilon)
            if self.scale is not None:
                out = out * per_channel(self.scale[...], x, self.axis)
            if self.bias is not None:
                out = out + per_channel(self.bias[...], x, self.axis)
            return out.astype(self.dtype or jnp.result_type(x.dtype, self.param_dtype))

    return GroupedBatchNorm


def _layers(module: Any, kinds: Any) -> list[tuple[tuple[Any, ...], Any]]:
    return [(path, node) for path, node in library("flax.nnx").iter_graph(module) if isinstance(node, kinds)]


def _named(tree: Mapping[Any, Any]) -> Tree:
    """The same nested dict with all keys as strings; nnx numbers the entries of lists."""
    return {str(key): _named(part) if isinstance(part, Mapping) else part for key, part in tree.items()}


def _at(tree: Tree, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[str(key)]
    return tree
