"""The models of the rounds chosen on validation samples, while a run trains and in its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.engine import devices
from pfedbred.engine.history import Which
from pfedbred.io import tensors
from pfedbred.types import Tree

_PREFIX = "chosen_models."
MODELS: tuple[Which, ...] = ("global", "personal")


@dataclass
class ChosenRounds:
    """The best round so far of each model and seed, by the first metric of the validation samples.

    Attributes:
      rounds: by model, the round of each seed.
      models: by model, its arrays by name, with the seeds along the first axis and the clients of P along the second.
        None if they are not kept; without P where personal models stay with their clients.
    """

    rounds: dict[Which, np.ndarray] = field(default_factory=dict)
    models: dict[Which, dict[str, Any]] | None = None

    def keep(self, model: Which, better: np.ndarray, tree: Tree) -> None:
        """Keeps this model for the seeds in which it is better than what was kept."""
        assert self.models is not None
        new, old = tensors.named(tree), self.models.get(model)
        self.models[model] = _copied(new) if old is None or better.all() else _merged(better, new, old)

    def tree(self, model: Which, place: tuple[int, ...], like: Tree) -> Tree:
        """One of the kept models, in the structure of ``like``."""
        assert self.models is not None
        leaves = [jnp.asarray(self.models[model][name][place]) for name in tensors.named(like)]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def save(self) -> dict[str, np.ndarray]:
        """The arrays for a checkpoint. All processes must call it."""
        kept = self.models or {}
        return {
            f"{_PREFIX}{model}.{name}": devices.fetch(leaf)
            for model, arrays in kept.items()
            for name, leaf in arrays.items()
        }


def load_models(arrays: Mapping[str, np.ndarray]) -> dict[Which, dict[str, Any]] | None:
    """The models in a checkpoint; None if it has none."""
    found: dict[Which, dict[str, Any]] = {}
    for model in MODELS:
        start = f"{_PREFIX}{model}."
        own = {name.removeprefix(start): np.array(array) for name, array in arrays.items() if name.startswith(start)}
        if own:
            found[model] = own
    return found or None


def _copied(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Copies: a model may be a part of the state, whose memory is given to the next one."""
    return {name: leaf.copy() for name, leaf in arrays.items()}


def _merged(better: np.ndarray, new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    on_device = any(isinstance(leaf, jax.Array) for leaf in new.values())
    return _merged_on_device(better, dict(new), dict(old)) if on_device else _where(np, better, new, old)


def _where(numpy: Any, better: Any, new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: numpy.where(better.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, old[name]) for name, leaf in new.items()
    }


@jax.jit
def _merged_on_device(better: Any, new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    return _where(jnp, better, new, old)
