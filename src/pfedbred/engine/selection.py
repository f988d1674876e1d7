"""Client selection I: whose uploads a round averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.data.minibatches import permute
from pfedbred.errors import SettingError, nearest
from pfedbred.settings.signatures import building, parameters
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
    with building("selection", select):
        made: Any = select(count) if len(parameters(select)) == 1 else select  # type: ignore[call-arg, arg-type]
    if not callable(made):
        raise SettingError(f"a function that builds a selection must return one, not a {type(made).__name__}")
    return made


def among(select: Select, clients: int, sizes: Array | None) -> Callable[[Key], Array]:
    """The selection among these clients; without ``sizes``, one that reads more of them than their number is rejected.

    Nobody knows the sizes of clients that are generated on demand.
    """
    if sizes is None:
        _check_unread(select, clients)
    # Not read, the ones cost nothing in a compiled program.
    return lambda key: select(key, jnp.ones(clients, jnp.int32) if sizes is None else sizes)


def _check_unread(select: Select, clients: int) -> None:
    key, problem = jax.random.key(0), None
    try:
        program = jax.make_jaxpr(select)(key, jax.ShapeDtypeStruct((clients,), np.int32)).jaxpr
        used = [*program.outvars, *(each for equation in program.eqns for each in equation.invars)]
        if all(each is not program.invars[-1] for each in used):
            return
    except _READS_NUMBERS as found:
        known: Any = np.ones(clients, np.int32)  # not a JAX array: its entries are numbers while a function is traced
        jax.eval_shape(lambda key: select(key, known), key)  # raises it again if it is not about the sizes
        problem = found
    raise SettingError("the selection needs the sizes of all clients, but these are generated on demand") from problem


_READS_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""What a function raises that reads the numbers in an array while it is traced."""


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
