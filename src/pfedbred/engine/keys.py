"""The randomness of a run: everything is derived from its one key, each purpose apart from the others."""

from __future__ import annotations

import jax

from pfedbred.types import Array, Key


def _derive(key: Key, purpose: int, number: int | Array = 0) -> Key:
    return jax.random.fold_in(jax.random.fold_in(key, purpose), number)


def init_key(key: Key) -> Key:
    """For the first weights."""
    return _derive(key, 0)


def data_key(key: Key, client: int | Array) -> Key:
    """For the order in which a client reads its samples; the same in a simulation and on the client's own machine."""
    return _derive(key, 1, client)


def select_key(key: Key, round_: int | Array) -> Key:
    """For the choice of the clients whose uploads a round averages."""
    return _derive(key, 2, round_)
