"""What a model is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pfedbred.types import Array, Key, Tree, built_by


class WithStatistics(NamedTuple):
    """A model's params, and the batch statistics by which it normalises outside training."""

    params: Tree
    statistics: Tree


class Statistics(NamedTuple):
    """What a network with batch normalisation keeps beside its params: the means and variances of its layers' inputs.

    They are averaged over minibatches and clients by :mod:`pfedbred.algorithms.batch_statistics`, not by running
    averages in the layers, which lag behind the params, most in rounds of few steps.

    Attributes:
      init: the statistics of a network that has seen no sample, such as zeros and ones.
      of: ``of(params, x)``: those of the minibatch x, which also normalise each layer's inputs, without dropout.
    """

    init: Callable[[], Tree]
    of: Callable[[Tree, Array], Tree]


class Model(NamedTuple):
    """``init(key)`` creates the params; ``apply(params, x)`` returns one row of logits for each sample in x.

    ``head`` names the top-level keys of the params that turn features into logits; methods with a shared body and
    personal heads (FedPer, FedRep, FedBABU, pFedVEM) need it. If keys are dotted paths, a name stands for all keys
    below it: ``output`` for ``output.weight`` and ``output.bias``.

    For a network that begins with a linear layer, ``first`` can name the layer's key and ``rest(params, z)`` return
    the logits from z = x W^T + b. This makes proximal steps cheaper (:mod:`pfedbred.bregman.first_layer`).

    ``train(params, x, key)`` gives the logits in training, if they differ: with dropout, and normalised by the
    minibatch's own statistics. A model with ``statistics`` is applied to a :class:`WithStatistics`; training needs its
    params alone. ``norms`` names the params of its normalisation layers, at any depth: ``norm`` for all params with
    ``norm`` in their path, ``block.norm`` for those below it. ``grouped()`` is the same network with group
    normalisation instead of batch normalisation.

    ``frozen`` are params that are not trained: constants of ``apply``, by key
    (:func:`pfedbred.models.given_params.training_only`).
    """

    init: Callable[[Key], Tree]
    apply: Callable[[Tree, Array], Array]
    head: tuple[str, ...] = ()
    first: str | None = None
    rest: Callable[[Tree, Array], Array] | None = None
    train: Callable[[Tree, Array, Key], Array] | None = None
    statistics: Statistics | None = None
    norms: tuple[str, ...] = ()
    grouped: Callable[[], Model] | None = None
    frozen: Tree = None

    def __repr__(self) -> str:
        return f"Model({built_by(self.init)})"

    def starting(self, params: Tree) -> Tree:
        """What ``apply`` takes for a network with these params that has seen no sample."""
        return params if self.statistics is None else WithStatistics(params, self.statistics.init())

    def is_norm(self, path: str) -> bool:
        """Whether the param at this dotted path belongs to a normalisation layer."""
        return any(f".{name}." in f".{path}." for name in self.norms)

    def whole(self, params: Tree) -> Tree:
        """The params of the whole network, including those that are not trained, if any."""
        if isinstance(params, WithStatistics):
            return params._replace(params=self.whole(params.params))
        return {**self.frozen, **params} if self.frozen is not None and isinstance(params, dict) else params

    def head_keys(self, params: Tree) -> list[str] | None:
        """The top-level keys of the head; None if there is no head, or one of its names matches no key."""
        if not self.head or not isinstance(params, dict):
            return None
        found = {name: [key for key in params if under(str(key), name)] for name in self.head}
        if not all(found.values()):
            return None
        return [key for key in params if any(key in keys for keys in found.values())]


def under(key: str, name: str) -> bool:
    """Whether a part of the params is the one of that name, or a part of it."""
    return key == name or key.startswith(name + ".")
