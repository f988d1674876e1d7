"""What a model is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pfedbred.types import Array, Key, Tree


class Model(NamedTuple):
    """``init(key)`` makes weights; ``apply(weights, x)`` gives one row of logits for each sample in x.

    ``head`` names the parts of the weights, by their first key, that turn features into logits; methods that share a
    body and keep a head (FedPer, FedRep, FedBABU) need it. Where keys are dotted paths, a name stands for all keys
    that begin with it: ``output`` for ``output.weight`` and ``output.bias``.

    A network that begins with a linear layer may say so: ``first`` is the layer's key, and ``rest(weights, z)`` gives
    the logits from z = x W^T + b. Proximal steps on it are then cheaper (:mod:`pfedbred.bregman.first_layer`).
    """

    init: Callable[[Key], Tree]
    apply: Callable[[Tree, Array], Array]
    head: tuple[str, ...] = ()
    first: str | None = None
    rest: Callable[[Tree, Array], Array] | None = None

    def head_keys(self, weights: Tree) -> list[str] | None:
        """The first keys that belong to the head; None if there is no head or a name in it stands for nothing."""
        if not self.head or not isinstance(weights, dict):
            return None
        found = {name: [key for key in weights if _under(str(key), name)] for name in self.head}
        if not all(found.values()):
            return None
        return [key for key in weights if any(key in keys for keys in found.values())]


def _under(key: str, name: str) -> bool:
    return key == name or key.startswith(name + ".")
