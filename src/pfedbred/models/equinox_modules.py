"""Models from Equinox modules: the params are their floating-point arrays, by path; likewise the statistics."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError
from pfedbred.models.adapting import (
    EVALUATION,
    MEASURING,
    STATE,
    TRAINING,
    Mode,
    converted,
    flags,
    groups,
    kind,
    library,
    takes,
)
from pfedbred.models.base import Model, Statistics
from pfedbred.models.convolution import with_fast_convolutions
from pfedbred.types import Array, Key, Tree

_CALL = "a module with batch norm has __call__(self, x, state) -> (logits, state); this one takes no state"
_KEY = "a module with dropout has __call__(self, x, key=None) and passes the key on; or build it with inference=True"


def from_modules(make: Callable[[Key], Any], dtype: Any, grouped: bool = False) -> Model:
    """The model of the module from ``make(key)``, with group normalisation instead of batch norm if ``grouped``."""
    eqx = library("equinox")
    whole, state = _parts(make(jax.random.key(0)), grouped)
    found = _layers(whole, (eqx.nn.BatchNorm,))
    stateful = state is not None
    call = type(whole).__call__
    if stateful and not takes(call, "state"):
        raise SettingError(_CALL)
    active = [each for each in _layers(whole, (eqx.nn.Dropout,)).values() if each.p > 0 and not each.inference]
    if active and not takes(call, "key"):
        raise SettingError(_KEY)
    names = {each for layer in found.values() for each in _axis_names(layer)}
    if len(names) > 1:
        raise SettingError(f"a module's batch norms must have the same axis_name, not {', '.join(map(str, names))}")
    axis = next(iter(names), None)
    modules = {mode: eqx.partition(_in_mode(whole, mode), eqx.is_inexact_array) for mode in _MODES}
    trained = modules[EVALUATION][0]
    params_names, structure = _paths(trained), jax.tree.structure(trained)

    def init(key: Key) -> Tree:
        module, _ = _parts(make(key), grouped)
        return dict(zip(params_names, jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array)), strict=True))

    def called(mode: Mode, params: Tree, x: Array, state: Any, key: Key | None = None) -> Any:
        arrays = jax.tree.unflatten(structure, [params[name] for name in params_names])
        rest = modules[mode][1]
        module = eqx.combine(arrays if mode is EVALUATION else _as(modules[mode][0], arrays), rest)
        keys = None if key is None else jax.random.split(key, len(x))

        def one(x: Array, key: Key | None, state: Any) -> Any:
            given = {"state": state} if stateful else {}
            given |= {"key": key} if takes(call, "key") else {}
            return module(x, **given, **flags(call, mode))

        outputs = (0, None) if stateful else 0
        axes = (0, None if key is None else 0, None)
        return jax.vmap(one, axes, outputs, axis_name=axis)(converted(x, dtype), keys, state)

    def filled(statistics: Tree) -> Any:
        """The state with these statistics."""
        new = state
        for path, layer in found.items():
            new = _set(new, _index(layer), (statistics[path]["mean"], statistics[path]["var"]))
        return new

    def start() -> Tree:
        kept = {path: state.get(_index(layer))[0] for path, layer in found.items()}
        return {path: {"mean": jnp.zeros_like(each), "var": jnp.ones_like(each)} for path, each in kept.items()}

    def apply(model: Tree, x: Array) -> Array:
        params, current = (model.params, filled(model.statistics)) if found else (model, state)
        out = called(EVALUATION, params, x, current)
        return out[0] if stateful else out

    def train(params: Tree, x: Array, key: Key) -> Array:
        out = called(TRAINING, params, x, filled(start()) if found else state, key)
        return out[0] if stateful else out

    def of(params: Tree, x: Array) -> Tree:
        after = called(MEASURING, params, x, filled(start()))[1]
        return {path: dict(zip(("mean", "var"), after.get(_index(each)), strict=True)) for path, each in found.items()}

    norms = (eqx.nn.BatchNorm, eqx.nn.GroupNorm, eqx.nn.LayerNorm, eqx.nn.RMSNorm)
    return Model(
        init,
        with_fast_convolutions(apply),
        train=with_fast_convolutions(train) if found or active else None,
        statistics=Statistics(start, with_fast_convolutions(of)) if found else None,
        norms=tuple(name for name in _layers(whole, norms) if name),
        grouped=(lambda: from_modules(make, dtype, grouped=True)) if found else None,
    )


_MODES = (EVALUATION, TRAINING, MEASURING)


def _parts(made: Any, grouped: bool) -> tuple[Any, Any]:
    """The module, and its state if it has batch norm: made with ``eqx.nn.make_with_state``, or here."""
    eqx = library("equinox")
    with_state = isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], eqx.nn.State)
    module = made[0] if with_state else made
    if not isinstance(module, eqx.Module):
        raise SettingError(f"from_equinox takes a function key -> eqx.Module; this one made a {kind(made)}")
    kinds = (eqx.nn.BatchNorm, eqx.nn.StateIndex)
    found = jax.tree.leaves(module, is_leaf=lambda part: isinstance(part, kinds))
    normalised = any(isinstance(part, eqx.nn.BatchNorm) for part in found)
    if any(isinstance(part, eqx.nn.StateIndex) for part in found) or (with_state and not normalised):
        raise SettingError(STATE.format("eqx.nn.State"))
    if not normalised:
        return module, None
    state = made[1] if with_state else eqx.nn.State(module)
    module = module if with_state else eqx.nn.delete_init_state(module)
    if not grouped:
        return module, state

    def group_norm(layer: Any) -> Any:
        new = eqx.nn.GroupNorm(
            groups(layer.input_size), layer.input_size, layer.eps, channelwise_affine=layer.channelwise_affine
        )
        return _with(new, weight=layer.weight, bias=layer.bias)

    return _replaced(module, (eqx.nn.BatchNorm,), group_norm), state


def _in_mode(module: Any, mode: Mode) -> Any:
    """The module with all its layers in that mode. Dropout built switched off stays off."""
    eqx = library("equinox")

    def batch_norm(layer: Any) -> Any:
        of = _batch_norm() if type(layer) is eqx.nn.BatchNorm else None  # a user's own subclass is kept
        return _with(layer, of, inference=mode.kept, momentum=0.0)

    module = _replaced(module, (eqx.nn.BatchNorm,), batch_norm)
    return _replaced(module, (eqx.nn.Dropout,), lambda each: each if mode.drop else _with(each, inference=True))


@functools.cache
def _batch_norm() -> Any:
    """A batch norm that uses the minibatch's statistics, or kept ones, in float32.

    Equinox's own keeps running averages. Setting them compares types, which contain the devices and never match on
    several devices; and with ``mode="ema"`` it cannot mix bfloat16 with float32.
    """
    eqx = library("equinox")

    class BatchNorm(eqx.nn.BatchNorm):  # type: ignore[misc, name-defined]
        def __call__(self, x: Array, state: Any, *, key: Any = None, inference: bool | None = None) -> Any:
            wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
            axes = tuple(range(1, x.ndim))

            def per_channel(values: Array) -> Array:
                return values.reshape(-1, *[1] * len(axes))

            if self.inference if inference is None else inference:
                mean, var = state.get(_index(self))
            else:
                mean = jax.lax.pmean(wide.mean(axes), self.axis_name)
                var = jax.lax.pmean(((wide - per_channel(mean)) ** 2).mean(axes), self.axis_name)
                state = _set(state, _index(self), (mean, var))
            out = (wide - per_channel(mean)) / jnp.sqrt(per_channel(var) + self.eps)
            if self.channelwise_affine:
                out = out * per_channel(self.weight) + per_channel(self.bias)
            return out.astype(x.dtype), state

    return BatchNorm


def _set(state: Any, index: Any, value: Any) -> Any:
    """The state with this value at that index."""
    values, markers = state.tree_flatten()
    new = [value if marker == index.marker else old for marker, old in zip(markers, values, strict=True)]
    return type(state).tree_unflatten(markers, new)


def _replaced(module: Any, kinds: tuple[Any, ...], new: Callable[[Any], Any]) -> Any:
    def is_layer(part: Any) -> bool:
        return isinstance(part, kinds)

    return jax.tree.map(lambda part: new(part) if is_layer(part) else part, module, is_leaf=is_layer)


def _with(layer: Any, of: Any = None, **fields: Any) -> Any:
    """A copy of a layer with new values in some fields (init arguments or not), as class ``of`` if given."""
    new = object.__new__(of or type(layer))
    for each in dataclasses.fields(layer):
        object.__setattr__(new, each.name, fields.get(each.name, getattr(layer, each.name)))
    return new


def _as(like: Any, arrays: Any) -> Any:
    """The same arrays in a module that differs in its settings."""
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(arrays))


def _layers(module: Any, kinds: tuple[Any, ...]) -> dict[str, Any]:
    """The layers of these kinds, by path."""
    leaves = jax.tree_util.tree_leaves_with_path(module, is_leaf=lambda part: isinstance(part, kinds))
    return {_text(path): part for path, part in leaves if isinstance(part, kinds)}


def _index(layer: Any) -> Any:
    return layer.ema_state_index if layer.mode == "ema" else layer.batch_state_index


def _axis_names(layer: Any) -> tuple[Any, ...]:
    return tuple(layer.axis_name) if isinstance(layer.axis_name, tuple | list) else (layer.axis_name,)


def _paths(tree: Tree) -> list[str]:
    return [_text(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _text(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
