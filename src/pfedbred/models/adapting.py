"""What the adapters of all module libraries share: modes, checks, and group normalisation instead of batch norm."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError
from pfedbred.models.base import Model
from pfedbred.types import Array

STATE = "the module keeps state ({}) besides its params, which would differ from client to client: remove it"


class Mode(NamedTuple):
    """How a module is applied.

    Attributes:
      kept: whether batch normalisation uses kept statistics, not those of the minibatch.
      drop: whether dropout is on.
    """

    kept: bool
    drop: bool


EVALUATION, TRAINING, MEASURING = Mode(kept=True, drop=False), Mode(kept=False, drop=True), Mode(kept=False, drop=False)

_FLAGS: dict[str, Callable[[Mode], bool]] = {
    "train": lambda mode: not mode.kept,
    "training": lambda mode: not mode.kept,
    "is_training": lambda mode: not mode.kept,
    "inference": lambda mode: mode.kept,
    "use_running_average": lambda mode: mode.kept,
    "deterministic": lambda mode: not mode.drop,
}


def flags(call: Callable[..., Any], mode: Mode) -> dict[str, bool]:
    """The arguments that tell a module's own ``__call__`` the mode, as far as it takes them."""
    return {name: of(mode) for name, of in _FLAGS.items() if takes(call, name)}


def takes(call: Callable[..., Any], name: str) -> bool:
    """Whether the function has a parameter of that name."""
    return name in inspect.signature(call).parameters


def group_normalised(x: Array, axis: Any, epsilon: float) -> Array:
    """Each sample, normalised by the mean and variance of each of two groups of channels, over all positions.

    References: Wu and He, "Group Normalization", ECCV 2018; with two groups, Hsieh et al., "The Non-IID Data Quagmire
    of Decentralized Machine Learning", ICML 2020.
    """
    if not isinstance(axis, int):
        raise SettingError(f"batch_norm group needs a batch norm along one axis, not {axis!r}")
    wide = jnp.moveaxis(x.astype(jnp.promote_types(x.dtype, jnp.float32)), axis, -1)
    split = wide.reshape(wide.shape[0], -1, groups(wide.shape[-1]), wide.shape[-1] // groups(wide.shape[-1]))
    mean, variance = (f(split, axis=(1, 3), keepdims=True) for f in (jnp.mean, jnp.var))
    out = (split - mean) * jax.lax.rsqrt(variance + epsilon)
    return jnp.moveaxis(out.reshape(wide.shape), -1, axis)


def groups(channels: int) -> int:
    """Two, unless a group would be a single channel or the two would be unequal."""
    return 2 if channels % 2 == 0 and channels > 2 else 1


def per_channel(values: Array, x: Array, axis: int) -> Array:
    """A number for each channel, shaped to be multiplied with x."""
    return jnp.moveaxis(values.reshape(*[1] * (x.ndim - 1), -1), -1, axis)


def refuse_state(kinds: Iterable[str]) -> None:
    """Rejects a module with these kinds of state."""
    if found := sorted(set(kinds)):
        raise SettingError(STATE.format(", ".join(found)))


def check_output(check: Callable[[], Any], sample: jax.ShapeDtypeStruct) -> None:
    """``check()`` must return the shape of one row of logits; the module's own errors are reported with their cause."""
    shape, rows = sample.shape[1:], sample.shape[0]
    try:
        out = check()
    except SettingError:
        raise
    except Exception as problem:
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        raise SettingError(f"the module cannot be applied to samples of shape {shape}: {reason}") from problem
    if getattr(out, "ndim", None) != 2 or out.shape[0] != rows:
        given = f"shape {out.shape} for one" if hasattr(out, "shape") else f"a {kind(out)}"
        raise SettingError(f"the module must give one row of logits for each sample, not {given}")


def with_head(model: Model, head: tuple[str, ...]) -> Model:
    """The model with this head; the same for its variant with group normalisation."""
    model = model._replace(head=head)
    params = jax.eval_shape(model.init, jax.random.key(0))
    if head and model.head_keys(params) is None:
        raise SettingError(f"head is {', '.join(head)}, but the params are called {', '.join(params)}")
    grouped = model.grouped
    return model if grouped is None else model._replace(grouped=lambda: with_head(grouped(), head))


def kind(value: Any) -> str:
    """The name of a value's type, for errors."""
    return type(value).__name__


def library(name: str) -> Any:
    """A module of another library, imported on first use."""
    package = name.split(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError:
        raise SettingError(f"this needs {package}: pip install {package}") from None


def converted(x: Array, dtype: Any) -> Array:
    """The samples in the module's type; unchanged in half precision (:mod:`pfedbred.models.precision`)."""
    return x if x.dtype == jnp.bfloat16 and jnp.issubdtype(dtype, jnp.floating) else x.astype(dtype)
