"""The few types that every module speaks of."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax

Tree: TypeAlias = Any
"""A pytree of arrays: the weights of a network, a message, a client's state."""

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
