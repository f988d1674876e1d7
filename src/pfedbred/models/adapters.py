"""Models from Flax (linen and nnx) and Equinox modules.

A model here is a pure function of params and inputs, so that every client can have its own params and a server can
average them. Batch normalisation and dropout are switched between training and evaluation here: always in layers of the
module's own library, and by those of the arguments ``train``, ``training``, ``is_training``, ``deterministic``,
``inference`` and ``use_running_average`` that its ``__call__`` has. Dropout built switched off stays off. Modules with
other state, or that draw other random numbers, are rejected when the model is made. Convolutions are computed in a way
that is fast for different params per client (:mod:`pfedbred.models.convolution`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError
from pfedbred.models.adapting import kind, library, with_head
from pfedbred.models.base import Model
from pfedbred.models.equinox_modules import from_modules
from pfedbred.models.linen_modules import from_linen
from pfedbred.models.nnx_modules import from_nnx
from pfedbred.types import Key


def from_flax(module: Any, shape: tuple[int, ...], *, head: tuple[str, ...] = (), dtype: Any = jnp.float32) -> Model:
    """A model from a Flax module: a linen module, or a function that makes an nnx module.

    Args:
      module: a ``linen.Module``, whose params are its collection ``params``; or ``make(rngs)`` that returns an
        ``nnx.Module``, whose params are its ``nnx.Param`` in a nested dict.
      shape: the shape of one sample.
      head: the top-level keys of the params that turn features into logits.
      dtype: the type to which samples are converted; an integer type for word ids.

    Example (with Flax installed): ``from_flax(Net(), federation.shape, head=("Dense_1",))``
    """
    linen, nnx = library("flax.linen"), library("flax.nnx")
    sample = jax.ShapeDtypeStruct((1, *shape), dtype)
    if isinstance(module, linen.Module):
        return with_head(from_linen(module, sample), head)
    if callable(module) and not isinstance(module, nnx.Module):
        return with_head(from_nnx(module, sample), head)
    raise SettingError(f"from_flax takes a linen module or a function rngs -> nnx.Module, not a {kind(module)}")


def from_equinox(
    make: Callable[[Key], Any], shape: None = None, *, head: tuple[str, ...] = (), dtype: Any = jnp.float32
) -> Model:
    """A model from a function that makes an Equinox module, applied to one sample at a time.

    Args:
      make: ``make(key)`` returns an ``eqx.Module``. The params are its floating-point arrays in a dict whose keys are
        paths, such as ``layers.0.weight``. With batch norm, it is called as ``module(x, state)``, and with a ``key`` if
        it takes one; ``make`` may return the state too, as ``eqx.nn.make_with_state`` does.
      shape: not needed, unlike in :func:`from_flax`; anything but None is rejected.
      head: the path prefixes of the params that turn features into logits.
      dtype: the type to which samples are converted; an integer type for word ids.

    Example (with Equinox installed): ``from_equinox(lambda key: Net(key=key), head=("layers.1",))``
    """
    if shape is not None:
        raise SettingError(
            "from_equinox takes no sample shape, unlike from_flax: make(key) returns a module whose sizes are all set"
        )
    library("equinox")
    return with_head(from_modules(make, dtype), head)
