"""Client selection I: whose uploads a round averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.data.minibatches import permute
from pfedbred.errors import SettingError, nearest
from pfedbred.settings.signatures import parameters
from pfedbred.types import Array, Key

Select = Callable[[Key, Array], Array]
"""``select(key, sizes)`` gives the numbers of the chosen clients, from the clients' training set sizes."""


def uniform(count: int) -> Select:
    """``count`` clients, all subsets equally likely. The cost does not grow with the number of clients."""

    def select(key: Key, sizes: Array) -> Array:
        places = jnp.arange(count, dtype=jnp.uint32)
        return permute(key, jnp.uint32(0), places, jnp.uint32(sizes.shape[0])).astype(jnp.int32)

    return select


def by_data(count: int) -> Select:
    """``count`` clients, drawn without replacement in proportion to their training samples."""

    def select(key: Key, sizes: Array) -> Array:
        chances = sizes / jnp.sum(sizes)
        return jax.random.choice(key, sizes.shape[0], (count,), replace=False, p=chances).astype(jnp.int32)

    return select


def fixed(clients: Sequence[int]) -> Select:
    """The same clients in every round."""
    chosen = jnp.asarray(clients, jnp.int32)
    return lambda key, sizes: chosen


SELECTIONS: dict[str, Callable[[int], Select]] = {"uniform": uniform, "by-data": by_data}


def counts_size(select: object) -> bool:
    """Whether clients with more samples are selected more often: an average by samples would count size twice."""
    return select is by_data or (isinstance(select, str) and select == "by-data")


def get(select: str | Sequence[int] | Select | Callable[[int], Select], count: int) -> Select:
    """The selection of ``count`` clients: by name, of the given clients, as a Select, or from ``(count) -> Select``."""
    check_kind(select)
    if isinstance(select, str):
        return SELECTIONS[select](count)
    if not callable(select):
        return fixed([int(each) for each in select])
    made: Any = select(count) if len(parameters(select)) == 1 else select  # type: ignore[call-arg, arg-type]
    if not callable(made):
        raise SettingError(f"a function that builds a selection must return one, not a {type(made).__name__}")
    return made


def check_kind(select: Any) -> None:
    """Rejects what cannot be a selection: an unknown name, or neither client numbers nor a function."""
    if callable(select):
        parameters(select)
    elif isinstance(select, str):
        if select not in SELECTIONS:
            raise SettingError(f"unknown selection {select!r}{nearest(select, SELECTIONS)}")
    elif not isinstance(select, Sequence | np.ndarray) or not all(map(_is_number, select)):
        raise SettingError(f"select must be a name, client numbers or a function, not {select!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check(chosen: Sequence[int] | Array, clients: int) -> None:
    """Rejects a selection that names a client twice, or one that does not exist."""
    numbers = np.asarray(chosen).tolist()
    if not numbers or len(set(numbers)) != len(numbers):
        raise SettingError(f"a selection must be one or more distinct client numbers, not {numbers}")
    if not all(isinstance(i, int) and 0 <= i < clients for i in numbers):
        raise SettingError(f"a selection must be client numbers from 0 to {clients - 1}, not {numbers}")
