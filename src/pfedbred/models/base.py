"""What a model is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pfedbred.types import Array, Key, Tree


class Model(NamedTuple):
    """``init(key)`` creates the params; ``apply(params, x)`` returns one row of logits for each sample in x.

    ``head`` names the top-level keys of the params that turn features into logits; methods with a shared body and
    personal heads (FedPer, FedRep, FedBABU) need it. If keys are dotted paths, a name stands for all keys below it:
    ``output`` for ``output.weight`` and ``output.bias``.

    For a network that begins with a linear layer, ``first`` can name the layer's key and ``rest(params, z)`` return
    the logits from z = x W^T + b. This makes proximal steps cheaper (:mod:`pfedbred.bregman.first_layer`).
    """

    init: Callable[[Key], Tree]
    apply: Callable[[Tree, Array], Array]
    head: tuple[str, ...] = ()
    first: str | None = None
    rest: Callable[[Tree, Array], Array] | None = None

    def head_keys(self, params: Tree) -> list[str] | None:
        """The top-level keys of the head; None if there is no head, or one of its names matches no key."""
        if not self.head or not isinstance(params, dict):
            return None
        found = {name: [key for key in params if _under(str(key), name)] for name in self.head}
        if not all(found.values()):
            return None
        return [key for key in params if any(key in keys for keys in found.values())]


def _under(key: str, name: str) -> bool:
    return key == name or key.startswith(name + ".")
