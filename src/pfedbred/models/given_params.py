"""Models that start from given params, and models with only some parts trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.errors import SettingError, nearest
from pfedbred.models.base import Model, WithStatistics, under
from pfedbred.types import Array, Key, Tree

_SHOWN = 3  # the most differences listed in an error


def starting_from(
    model: Model, arrays: Mapping[str, Any], parts: Sequence[str] | None = None, where: str = "the given params"
) -> Model:
    """The model whose ``init`` returns these arrays instead of random ones, whatever the key.

    Args:
      model: the network.
      arrays: arrays by path in the params, such as ``hidden.weight``.
      parts: names of parts, as in :class:`Model`'s ``head``, that are taken; the others are drawn at random. By default
        the arrays must cover the whole network.
      where: what errors call the arrays.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    if parts is None:
        given = _filled(shapes, arrays, where, whole=True)
        return model._replace(init=lambda key: given)
    taken = _filled({key: shapes[key] for key in keys_of(shapes, parts, "start_parts")}, arrays, where)

    def init(key: Key) -> Tree:
        return {**model.init(key), **taken}

    return model._replace(init=init)


def training_only(
    model: Model, names: Sequence[str], arrays: Mapping[str, Any], where: str = "the given params"
) -> Model:
    """The model whose params are only the named parts; all others are constants, one copy for all clients.

    Args:
      model: the network.
      names: the parts that are trained, named as in :class:`Model`'s ``head``.
      arrays: the constants, by path in the params; others are ignored.
      where: what errors call the arrays.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    trained = keys_of(shapes, names, "train_only")
    frozen = _filled({key: part for key, part in shapes.items() if key not in trained}, arrays, where)
    if not frozen:
        raise SettingError(f"train_only names all parts of the model: {', '.join(map(str, shapes))}")

    def merged(function: Callable[..., Any]) -> Any:
        def apply(params: Tree, *rest: Any) -> Array:
            if isinstance(params, WithStatistics):
                return function(params._replace(params={**frozen, **params.params}), *rest)
            return function({**frozen, **params}, *rest)

        return apply

    def init(key: Key) -> Tree:
        drawn = model.init(key)
        return {name: drawn[name] for name in trained}

    paths = list(_named({key: shapes[key] for key in trained}))
    statistics, first = model.statistics, model.first if model.first in trained else None
    return model._replace(
        init=init,
        apply=merged(model.apply),
        train=None if model.train is None else merged(model.train),
        statistics=None if statistics is None else statistics._replace(of=merged(statistics.of)),
        first=first,
        rest=None if first is None or model.rest is None else merged(model.rest),
        head=_present(model.head, paths),
        norms=tuple(name for name in model.norms if any(f".{name}." in f".{path}." for path in paths)),
        frozen=frozen,
    )


def keys_of(params: Tree, names: Sequence[str], option: str) -> list[Any]:
    """The top-level keys of these parts; every name must match at least one."""
    if not isinstance(params, dict):
        raise SettingError(f"{option} needs a model whose params are a dict, not a {type(params).__name__}")
    for name in names:
        if not any(under(str(key), name) for key in params):
            raise SettingError(
                f"{option}: the model has no part {name!r}{nearest(name, list(map(str, params)))}; it has "
                f"{', '.join(map(str, params))}"
            )
    return [key for key in params if any(under(str(key), name) for name in names)]


def _filled(shapes: Tree, arrays: Mapping[str, Any], where: str, *, whole: bool = False) -> Tree:
    """The arrays in the structure of these shapes; with ``whole``, extra arrays are an error."""
    wanted, problems, leaves = _named(shapes), [], []
    for name, leaf in wanted.items():
        found = arrays.get(name)
        if found is None:
            problems.append(f"{name} is missing")
        elif np.shape(found) != leaf.shape:
            problems.append(f"{name} has shape {np.shape(found)}, not {leaf.shape}")
        elif not np.all(np.isfinite(given := _as_type(found, leaf.dtype))):
            problems.append(f"{name} has numbers that are not finite")
        else:
            leaves.append(jnp.asarray(given))
    if whole:
        problems += [f"{name} is not in the model" for name in arrays if name not in wanted]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise SettingError(f"{where} does not fit the model: {'; '.join(problems[:_SHOWN])}{more}")
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _as_type(array: Any, dtype: Any) -> np.ndarray:
    """The array in that type; numbers too large for it become infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(array).astype(dtype)


def _named(tree: Tree) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _present(names: Sequence[str], paths: Sequence[str]) -> tuple[str, ...]:
    """The names that match trained parts."""
    return tuple(name for name in names if any(under(path, name) for path in paths))
