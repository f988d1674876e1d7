"""Executors: how one function runs for every client of a round.

An executor turns ``function(shared, item)`` into ``run(shared, items)``, where ``items`` is a pytree with one entry
for each client along the first axis. All of them give the same results to rounding.

    vmap     all clients at once, or ``chunk`` at a time: for GPUs
    in-turn  one after another inside the compiled program: for CPUs, where one client's params stay in the cache
    loop     one after another in Python: slow and plain, the reference that the others are tested against

With several devices, each runs an equal share of the clients: by number or, if the clients' costs are given, by total
cost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pfedbred.engine.devices import CLIENTS
from pfedbred.errors import SettingError, nearest
from pfedbred.types import Array, Tree

One = Callable[[Any, Any], Any]


class Every(Protocol):
    """``function`` for all clients."""

    def __call__(self, shared: Tree, items: Tree, costs: Array | None = None) -> Tree:
        """The results for all entries of ``items``. ``costs`` are in any unit; None if all entries cost the same."""


def _vmap(function: One, chunk: int | None) -> Every:
    def run(shared: Tree, items: Tree, costs: Array | None = None) -> Tree:
        one = partial(function, shared)
        count = jax.tree.leaves(items)[0].shape[0]
        if chunk is None or chunk >= count:
            return jax.vmap(one)(items)
        return jax.lax.map(one, items, batch_size=chunk)

    return run


def _in_turn(function: One, chunk: int | None) -> Every:
    return lambda shared, items, costs=None: jax.lax.map(partial(function, shared), items)


def _loop(function: One, chunk: int | None) -> Every:
    compiled = jax.jit(function)

    def run(shared: Tree, items: Tree, costs: Array | None = None) -> Tree:
        count = jax.tree.leaves(items)[0].shape[0]
        results = [compiled(shared, jax.tree.map(lambda leaf, i=i: leaf[i], items)) for i in range(count)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)

    return run


EXECUTORS: dict[str, Callable[[One, int | None], Every]] = {"vmap": _vmap, "in-turn": _in_turn, "loop": _loop}


def choose(executor: str, chunk: int | None = None) -> str:
    """The executor of that name; ``auto`` picks the one that suits the platform, and vmap if there is a chunk."""
    if executor == "auto":
        return "in-turn" if jax.default_backend() == "cpu" and chunk is None else "vmap"
    if executor not in EXECUTORS:
        raise SettingError(f"unknown executor {executor!r}{nearest(executor, ('auto', *EXECUTORS))}")
    return executor


def every(function: One, executor: str, chunk: int | None = None, mesh: Mesh | None = None) -> Every:
    """``function`` for every entry of its second argument, spread over the devices of the mesh."""
    run = EXECUTORS[executor](function, chunk)
    return run if mesh is None else _spread(run, mesh)


def _spread(run: Every, mesh: Mesh) -> Every:
    """Every device takes an equal number of entries; one entry is repeated to make them even."""
    each = jax.shard_map(run, mesh=mesh, in_specs=(P(), P(CLIENTS)), out_specs=P(CLIENTS), check_vma=False)

    def run_all(shared: Tree, items: Tree, costs: Array | None = None) -> Tree:
        count = jax.tree.leaves(items)[0].shape[0]
        if costs is None and count % mesh.size == 0:
            return each(shared, items)
        if costs is None:
            rows = jnp.minimum(jnp.arange(-(-count // mesh.size) * mesh.size), count - 1)
            results = each(shared, jax.tree.map(lambda leaf: leaf[rows], items))
            return jax.tree.map(lambda leaf: leaf[:count], results)
        rows, place = shares(costs, mesh.size)
        results = each(shared, jax.tree.map(lambda leaf: leaf[rows], items))
        return jax.tree.map(lambda leaf: leaf[place], results)

    return run_all


def shares(costs: Array, devices: int) -> tuple[Array, Array]:
    """The same number of entries for each device, at about the same cost: the costliest goes to the least loaded.

    Returns:
      The entries of the first device, then those of the second, and so on, filled up with the cheapest entry; and
      where each entry is among them.
    """
    count = len(costs)
    room = -(-count // devices)
    order = jnp.argsort(-costs)

    def assign(state: tuple[Array, Array], entry: Array) -> tuple[tuple[Array, Array], Array]:
        load, taken = state
        device = jnp.argmin(jnp.where(taken < room, load, jnp.inf))
        slot = device * room + taken[device]
        return (load.at[device].add(costs[entry]), taken.at[device].add(1)), slot

    costs = costs.astype(jnp.float32)
    _, slots = jax.lax.scan(assign, (jnp.zeros(devices), jnp.zeros(devices, jnp.int32)), order)
    rows = jnp.full(devices * room, order[-1]).at[slots].set(order)
    return rows, jnp.zeros(count, jnp.int32).at[order].set(slots)
