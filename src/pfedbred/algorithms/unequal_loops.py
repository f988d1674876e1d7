"""Loops whose length differs from client to client, at a cost that follows the sum of their lengths.

One client after another, a loop ends when the client's steps are done. Side by side, ``jax.vmap`` of such a loop runs
every client for as many steps as the longest and throws away what the others compute. Here clients are sorted by their
number of steps and leave when they are done: first all of them run, then the longer half, then the longer quarter, and
so on. The step is compiled once for each of these widths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.extend
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from pfedbred.types import Array, Tree

Carry = TypeVar("Carry")

_NARROWEST = 4  # clients side by side: with fewer, a step takes as long


def repeat(step: Callable[[Carry, Array], Carry], start: Carry, count: Array) -> Carry:
    """``step(carry, r)`` for r = 0, ..., count - 1. Under ``vmap``, clients may differ in their count."""
    leaves, structure = jax.tree.flatten(start)
    leaves = [jnp.asarray(leaf) for leaf in leaves]

    def flat_step(r: Array, *carry: Array) -> list[Array]:
        after = jax.tree.leaves(step(jax.tree.unflatten(structure, carry), r))
        return [new.astype(old.dtype) for new, old in zip(after, carry, strict=True)]

    # What the step uses of its surroundings becomes an argument, so that the rule for vmap sees it.
    traced = jax.make_jaxpr(flat_step)(jnp.int32(0), *leaves)

    def one_step(around: Sequence[Any], r: Array, carry: Sequence[Array]) -> list[Array]:
        return jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(traced.jaxpr, list(around)))(
            r.astype(jnp.int32), *carry
        )

    @custom_vmap
    def loop(around: list[Any], carry: list[Array], count: Array) -> list[Array]:
        return jax.lax.fori_loop(0, count, lambda r, carry: one_step(around, r, carry), carry)

    @loop.def_vmap
    def side_by_side(
        clients: int, batched: Any, around: list[Any], carry: list[Array], count: Array
    ) -> tuple[list[Array], list[bool]]:
        around_differs, carry_differs, count_differs = batched
        carry = [
            leaf if differs else jnp.broadcast_to(leaf, (clients, *leaf.shape))
            for leaf, differs in zip(carry, carry_differs, strict=True)
        ]
        if not count_differs:
            count = jnp.full(clients, count)
        order = jnp.argsort(-count)
        around = [leaf[order] if differs else leaf for leaf, differs in zip(around, around_differs, strict=True)]
        carry, count = jax.tree.map(lambda leaf: leaf[order], (carry, count))
        each = jax.vmap(one_step, in_axes=([0 if differs else None for differs in around_differs], None, 0))
        done = jnp.int32(0)
        widths = _widths(clients)
        for width, narrower in zip(widths, [*widths[1:], 0], strict=True):
            # All that are not among the narrower few are done when the longest of them is.
            until = count[narrower]
            own = [leaf[:width] if differs else leaf for leaf, differs in zip(around, around_differs, strict=True)]

            def advance(r: Array, carry: list[Array], own: list[Any] = own, left: Array = count[:width]) -> list[Array]:
                return [_where(r < left, new, old) for new, old in zip(each(own, r, carry), carry, strict=True)]

            running = jax.lax.fori_loop(done, until, advance, [leaf[:width] for leaf in carry])
            carry = [leaf.at[:width].set(new) for leaf, new in zip(carry, running, strict=True)]
            done = until
        back = jnp.argsort(order)
        return [leaf[back] for leaf in carry], [True] * len(carry)

    return jax.tree.unflatten(structure, loop(list(traced.consts), leaves, jnp.asarray(count, jnp.int32)))


def _widths(clients: int) -> list[int]:
    """How many clients run side by side: all, then half, and so on."""
    widths = [clients]
    while widths[-1] >= 2 * _NARROWEST:
        widths.append(widths[-1] // 2)
    return widths


def _where(which: Array, new: Tree, old: Tree) -> Array:
    return jnp.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
