"""Models from Flax (linen and nnx) and Equinox modules.

A model here is a pure function of params and inputs, so that every client can have its own params and a server can
average them. Modules with other state, or that draw random numbers, do not fit and are rejected when the model is made.
Their convolutions are computed as is fast when params differ (:mod:`pfedbred.models.convolution`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError
from pfedbred.models.base import Model
from pfedbred.models.convolution import with_fast_convolutions
from pfedbred.types import Array, Key, Tree

_BATCH_STATISTICS = "the module uses batch statistics, which clients cannot share: use LayerNorm or GroupNorm"
_RANDOM = "dropout is active (or the module draws other random numbers), but a model must be deterministic: "
_DETERMINISTIC = _RANDOM + "build it with deterministic=True"
_INFERENCE = _RANDOM + "build it with inference=True, or return eqx.nn.inference_mode(module)"
_STATE = "the module keeps state ({}) besides its parameters, which would differ from client to client: remove it"


def from_flax(module: Any, shape: tuple[int, ...], *, head: tuple[str, ...] = (), dtype: Any = jnp.float32) -> Model:
    """A model from a Flax module: a linen module, or a function that makes an nnx module.

    Args:
      module: a ``linen.Module``, whose params are its collection ``params``; or ``make(rngs)`` that returns an
        ``nnx.Module``, whose params are its ``nnx.Param`` in a nested dict.
      shape: of one sample.
      head: the top-level keys of the params that turn features into logits.
      dtype: the type to which samples are converted; an integer type for word ids.

    Example (with Flax installed): ``from_flax(Net(), federation.shape, head=("Dense_1",))``
    """
    linen, nnx = _library("flax.linen"), _library("flax.nnx")
    sample = jax.ShapeDtypeStruct((1, *shape), dtype)
    if isinstance(module, linen.Module):
        return _with_head(_from_linen(module, sample), head)
    if callable(module) and not isinstance(module, nnx.Module):
        return _with_head(_from_nnx(module, sample), head)
    raise SettingError(f"from_flax takes a linen module or a function rngs -> nnx.Module, not a {_kind(module)}")


def from_equinox(make: Callable[[Key], Any], *, head: tuple[str, ...] = (), dtype: Any = jnp.float32) -> Model:
    """A model from a function that makes an Equinox module, applied to one sample at a time.

    Args:
      make: ``make(key)`` returns an ``eqx.Module``. The params are its floating-point arrays in a dict whose keys are
        paths, such as ``layers.0.weight``.
      head: the path prefixes of the params that turn features into logits.
      dtype: the type to which samples are converted; an integer type for word ids.

    Example (with Equinox installed): ``from_equinox(lambda key: Net(key=key), head=("layers.1",))``
    """
    eqx = _library("equinox")
    made = make(jax.random.key(0))
    _refuse_equinox(eqx, made)
    trained, rest = eqx.partition(made, eqx.is_inexact_array)
    names, structure = _paths(trained), jax.tree.structure(trained)

    def init(key: Key) -> Tree:
        return dict(zip(names, jax.tree.leaves(eqx.filter(make(key), eqx.is_inexact_array)), strict=True))

    def apply(params: Tree, x: Array) -> Array:
        module = eqx.combine(jax.tree.unflatten(structure, [params[name] for name in names]), rest)
        return jax.vmap(module)(x.astype(dtype))

    return _with_head(Model(init, with_fast_convolutions(apply)), head)


def _from_linen(module: Any, sample: jax.ShapeDtypeStruct) -> Model:
    """The params are the collection ``params``. No random keys are passed, so linen refuses to draw any numbers."""
    errors = _library("flax.errors")

    def variables(key: Key) -> Tree:
        return module.init(key, jnp.zeros(sample.shape, sample.dtype))

    def apply(params: Tree, x: Array) -> Array:
        return module.apply({"params": params}, x.astype(sample.dtype))

    def check() -> Any:
        made = jax.eval_shape(variables, jax.random.key(0))
        _refuse_state([name for name in made if name != "params"], "batch_stats")
        try:
            return jax.eval_shape(apply, made.get("params", {}), sample)
        except errors.InvalidRngError:
            raise SettingError(_DETERMINISTIC) from None

    _check_output(check, sample)
    return Model(lambda key: variables(key).get("params", {}), with_fast_convolutions(apply))


def _from_nnx(make: Callable[[Any], Any], sample: jax.ShapeDtypeStruct) -> Model:
    """The params are the Params. Other variables are rejected, except unused keys (of dropout that is switched off)."""
    nnx = _library("flax.nnx")

    def made(key: Key | int) -> Any:
        module = make(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise SettingError(f"from_flax takes a function rngs -> nnx.Module; this one made a {_kind(module)}")
        return module

    graph, trained, _, others = nnx.split(nnx.eval_shape(lambda: made(0)), nnx.Param, nnx.RngState, ...)
    _refuse_state([type(variable).__name__ for _, variable in nnx.to_flat_state(others)], "BatchStat")
    variables = dict(nnx.to_flat_state(trained))
    keys = dict(nnx.to_flat_state(jax.jit(lambda: nnx.state(made(0), nnx.RngState))()))

    def init(key: Key) -> Tree:
        return _named(nnx.to_pure_dict(nnx.state(made(key), nnx.Param)))

    def module(params: Tree) -> Any:
        flat = {path: variable.replace(_at(params, path)) for path, variable in variables.items()}
        flat |= {path: variable.replace(variable.get_value()) for path, variable in keys.items()}
        return nnx.merge(graph, nnx.from_flat_state(flat))

    def apply(params: Tree, x: Array) -> Array:
        return module(params)(x.astype(sample.dtype))

    def check() -> Any:
        drawn = False

        def applied(params: Tree, x: Array) -> Array:
            nonlocal drawn
            whole = module(params)
            out = whole(x)
            for path, variable in nnx.to_flat_state(nnx.state(whole, nnx.RngState)):
                drawn |= variable.get_value() is not keys[path].get_value()  # each draw is counted in the module
            return out

        out = jax.eval_shape(applied, jax.eval_shape(init, jax.random.key(0)), sample)
        if drawn:
            raise SettingError(_DETERMINISTIC)
        return out

    _check_output(check, sample)
    return Model(init, with_fast_convolutions(apply))


def _refuse_equinox(eqx: Any, made: Any) -> None:
    with_state = isinstance(made, tuple) and any(isinstance(part, eqx.nn.State) for part in made)
    if not with_state and not isinstance(made, eqx.Module):
        raise SettingError(f"from_equinox takes a function key -> eqx.Module; this one made a {_kind(made)}")
    kinds = (eqx.nn.BatchNorm, eqx.nn.Dropout, eqx.nn.StateIndex)
    found = jax.tree.leaves(made, is_leaf=lambda part: isinstance(part, kinds))
    if any(isinstance(part, eqx.nn.BatchNorm) for part in found):
        raise SettingError(_BATCH_STATISTICS)
    if with_state or any(isinstance(part, eqx.nn.StateIndex) for part in found):
        raise SettingError(_STATE.format("eqx.nn.State"))
    if any(isinstance(part, eqx.nn.Dropout) and part.p > 0 and not part.inference for part in found):
        raise SettingError(_INFERENCE)


def _refuse_state(kinds: list[str], batch_statistics: str) -> None:
    if batch_statistics in kinds:
        raise SettingError(_BATCH_STATISTICS)
    if kinds:
        raise SettingError(_STATE.format(", ".join(sorted(set(kinds)))))


def _check_output(check: Callable[[], Any], sample: jax.ShapeDtypeStruct) -> None:
    """``check()`` must return the shape of one row of logits; the module's own errors are reported with their cause."""
    shape = sample.shape[1:]
    try:
        out = check()
    except SettingError:
        raise
    except Exception as problem:
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise SettingError(f"the module cannot be applied to samples of shape {shape}: {reason}") from problem
    if getattr(out, "ndim", None) != 2 or out.shape[0] != 1:
        given = f"shape {out.shape} for one" if hasattr(out, "shape") else f"a {_kind(out)}"
        raise SettingError(f"the module must give one row of logits for each sample, not {given}")


def _kind(value: Any) -> str:
    return type(value).__name__


def _with_head(model: Model, head: tuple[str, ...]) -> Model:
    model = model._replace(head=head)
    params = jax.eval_shape(model.init, jax.random.key(0))
    if head and model.head_keys(params) is None:
        raise SettingError(f"head is {', '.join(head)}, but the parameters are called {', '.join(params)}")
    return model


def _paths(tree: Tree) -> list[str]:
    return [
        jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _named(tree: Mapping[Any, Any]) -> Tree:
    """The same nested dict with keys that are all strings; nnx numbers the entries of a list."""
    return {str(key): _named(part) if isinstance(part, Mapping) else part for key, part in tree.items()}


def _at(tree: Tree, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[str(key)]
    return tree


def _library(name: str) -> Any:
    package = name.split(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError:
        raise SettingError(f"this needs {package}: pip install {package}") from None
