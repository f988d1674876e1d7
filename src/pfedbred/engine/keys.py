"""The randomness of a run: every purpose derives its own keys from the one key of the run."""

from __future__ import annotations

import jax

from pfedbred.types import Array, Key


def _derive(key: Key, purpose: int, number: int | Array = 0) -> Key:
    return jax.random.fold_in(jax.random.fold_in(key, purpose), number)


def init_key(key: Key) -> Key:
    """For the initial parameters."""
    return _derive(key, 0)


def data_key(key: Key, client: int | Array) -> Key:
    """For the order in which a client reads its samples: the same in a simulation and on the client's own machine."""
    return _derive(key, 1, client)


def select_key(key: Key, round_: int | Array) -> Key:
    """For the selection of a round's clients."""
    return _derive(key, 2, round_)


def augmentation_key(key: Key, client: int | Array, read: int | Array) -> Key:
    """For the augmentation of a client's minibatches in the round before which it has read ``read`` samples."""
    return jax.random.fold_in(_derive(key, 4, client), read)


def network_key(key: Key, client: int | Array, read: int | Array) -> Key:
    """For what a client's networks and method draw in training, such as dropout, in that round."""
    return jax.random.fold_in(_derive(key, 5, client), read)


def aggregation_key(key: Key, round_: int | Array, stage: int = 0) -> Key:
    """For the aggregation rule of a round; ``stage`` 1 is the exchange before training."""
    return jax.random.fold_in(_derive(key, 3, round_), stage)
