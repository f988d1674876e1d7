"""Loops whose length differs from client to client, at a cost that follows the sum of their lengths.

When clients run one after another, each loop ends when its client's steps are done. Side by side, ``jax.vmap`` of such
a loop runs every client for as many steps as the longest and throws away what the others compute. Here clients are
sorted by their number of steps and leave when they are done: first all of them run, then only the longer ones, and so
on. The step is compiled once for each of these widths. No schedule is faster than the longest client alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from pfedbred.types import Array, Tree

Carry = TypeVar("Carry")

_BLOCK = 16  # steps whose inputs a single client looks up at once
_WIDTHS = 6  # the most widths that clients running side by side go through


class StepInputs(NamedTuple):
    """What steps read, such as the numbers of their samples: looked up for many steps at once.

    Attributes:
      of: ``of(source, first, count)`` are the inputs of ``count`` steps from number ``first`` on, along the first axis.
      source: arrays.
    """

    of: Callable[[Any, Array, int], Tree]
    source: Tree


class _LoopArrays(NamedTuple):
    """The arrays of a loop: what its step closes over, the source of its inputs, and what it carries."""

    around: Tree
    source: Tree
    carry: Tree


class _Program(NamedTuple):
    """A loop's functions: ``step(around, r, inputs, carry)``, and ``inputs_of(source, first, count)``."""

    step: Callable[[Tree, Any, Tree, Tree], Tree]
    inputs_of: Callable[[Any, Array, int], Tree]


def repeat(
    step: Callable[[Carry, Array, Tree], Carry],
    start: Carry,
    count: Array,
    inputs: StepInputs,
    everyone: np.ndarray | None = None,
) -> Carry:
    """``step(carry, r, inputs of r)`` for r = 0, ..., count - 1. Under ``vmap``, clients may differ in their count.

    ``everyone`` are the counts of all clients that run side by side, if known at compile time. Loops then have a fixed
    length, and a GPU need not wait for the host before every step.
    """
    start = jax.tree.map(jnp.asarray, start)

    def same_types(r: Array, read: Tree, carry: Carry) -> Carry:
        return jax.tree.map(lambda new, old: new.astype(old.dtype), step(carry, r, read), carry)

    # What the step closes over becomes an argument, so that the rule for vmap sees it.
    example = jax.tree.map(lambda leaf: leaf[0], inputs.of(inputs.source, jnp.int32(0), 1))
    traced, shapes = jax.make_jaxpr(same_types, return_shape=True)(jnp.int32(0), example, start)
    structure = jax.tree.structure(shapes)

    def one_step(around: Tree, r: Any, read: Tree, carry: Tree) -> Tree:
        run = jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(traced.jaxpr, list(around)))
        after = run(jnp.asarray(r, jnp.int32), *jax.tree.leaves(read), *jax.tree.leaves(carry))
        return jax.tree.unflatten(structure, after)

    program = _Program(one_step, inputs.of)

    @custom_vmap
    def loop(given: _LoopArrays, count: Array) -> Tree:
        return _alone(program, given, count)

    @loop.def_vmap
    def rule(clients: int, differs: Any, given: _LoopArrays, count: Array) -> tuple[Tree, Tree]:
        known = everyone if everyone is not None and len(everyone) == clients else None
        count = count if differs[1] else jnp.full(clients, count)
        ended = _side_by_side(program, given, differs[0], count, known)
        return ended, jax.tree.map(lambda leaf: True, ended)

    return loop(_LoopArrays(list(traced.consts), inputs.source, start), jnp.asarray(count, jnp.int32))


def _alone(program: _Program, given: _LoopArrays, count: Array) -> Tree:
    """The loop of one client, with the inputs of a block of steps looked up together."""

    def block(number: Array, carry: Tree) -> Tree:
        done = number * _BLOCK
        read = program.inputs_of(given.source, done, _BLOCK)

        def advance(r: Array, carry: Tree) -> Tree:
            return program.step(given.around, done + r, jax.tree.map(lambda leaf: leaf[r], read), carry)

        return jax.lax.fori_loop(0, jnp.minimum(_BLOCK, count - done), advance, carry)

    return jax.lax.fori_loop(0, -(-count // _BLOCK), block, given.carry)


def _side_by_side(
    program: _Program, given: _LoopArrays, differs: _LoopArrays, count: Array, known: np.ndarray | None
) -> Tree:
    """The loops of several clients; ``differs`` marks the arrays that have one entry for each of them."""
    clients = len(count)
    order = jnp.argsort(-count) if known is None else jnp.asarray(np.argsort(-known, kind="stable"))
    counts: Any = count[order] if known is None else np.sort(known)[::-1]
    carry = jax.tree.map(
        lambda leaf, own: leaf[order] if own else jnp.broadcast_to(leaf, (clients, *leaf.shape)),
        given.carry,
        differs.carry,
    )
    ordered = _pick(given, differs, order)
    done: Any = 0
    widths = _halves(clients) if known is None else chosen_widths(counts)
    for width, narrower in zip(widths, [*widths[1:], 0], strict=True):
        # Clients beyond the next width are done when the longest of them is.
        until = counts[narrower]
        group = _ClientGroup(
            program, _pick(ordered, differs, slice(width)), differs, jnp.asarray(counts[:width], jnp.int32)
        )
        running = jax.tree.map(lambda leaf, width=width: leaf[:width], carry)
        running = group.run(running, done, until) if known is None else group.run_fixed(running, int(done), int(until))
        carry = jax.tree.map(lambda leaf, new, width=width: leaf.at[:width].set(new), carry, running)
        done = until
    back = jnp.argsort(order)
    return jax.tree.map(lambda leaf: leaf[back], carry)


class _ClientGroup(NamedTuple):
    """Clients that run side by side, each until its own number of steps is reached."""

    program: _Program
    given: _LoopArrays
    differs: _LoopArrays
    counts: Array

    def step(self, r: Any, read: Tree, carry: Tree) -> Tree:
        """One step of all clients; those that are done remain unchanged."""
        axes = jax.tree.map(lambda own: 0 if own else None, self.differs.around)
        after = jax.vmap(self.program.step, in_axes=(axes, None, 0, 0))(self.given.around, r, read, carry)
        active = r < self.counts
        return jax.tree.map(lambda new, old: _where(active, new, old), after, carry)

    def inputs(self, first: Any, count: int) -> Tree:
        """The inputs of ``count`` steps, with clients along the first axis and steps along the second."""
        axes = jax.tree.map(lambda own: 0 if own else None, self.differs.source)

        def looked_up(source: Tree) -> Tree:
            return self.program.inputs_of(source, jnp.int32(first), count)

        return jax.vmap(looked_up, (axes,), axis_size=len(self.counts))(self.given.source)

    def run(self, carry: Tree, first: Any, until: Array) -> Tree:
        """Steps ``first`` to ``until``, known only at run time."""

        def advance(r: Array, carry: Tree) -> Tree:
            return self.step(r, jax.tree.map(lambda leaf: leaf[:, 0], self.inputs(r, 1)), carry)

        return jax.lax.fori_loop(jnp.int32(first), until, advance, carry)

    def run_fixed(self, carry: Tree, first: int, until: int) -> Tree:
        """Steps ``first`` to ``until``, known at compile time."""
        if first == until:
            return carry
        steps = jnp.arange(first, until, dtype=jnp.int32)
        read = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), self.inputs(first, until - first))
        return jax.lax.scan(lambda carry, each: (self.step(*each, carry), None), carry, (steps, read))[0]


def _halves(clients: int) -> list[int]:
    """Widths for counts known only at run time: all clients, then half of them, and so on."""
    return [clients // 2**power for power in range(_WIDTHS + 1) if clients // 2**power > 0]


def chosen_widths(counts: np.ndarray) -> list[int]:
    """The widths with the least work for these counts, in descending order: at most ``_WIDTHS``, beginning with all
    clients.

    The work is the sum of width times steps. Widths are chosen from a few numbers of clients, evenly spaced on a
    logarithmic scale.
    """
    clients = len(counts)
    candidates = sorted({int(each) for each in np.geomspace(1, clients, 48)} | {clients}, reverse=True)
    # best[k][i]: the least work to finish all clients beyond the first candidates[i], in k groups, and the way there.
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    finished = {0: (clients * int(counts[0]), [clients])}
    for _ in range(_WIDTHS - 1):
        reached: dict[int, tuple[int, list[int]]] = {}
        for i, (work, widths) in best.items():
            done = 0 if not widths else int(counts[candidates[i]])
            for j in range(i + 1, len(candidates)):
                until = int(counts[candidates[j]])
                option = (work + candidates[i] * (until - done), [*widths, candidates[i]])
                if j not in reached or option < reached[j]:
                    reached[j] = option
        best = reached
        for j, (work, widths) in best.items():
            left = candidates[j] * (int(counts[0]) - int(counts[candidates[j]]))
            option = (work + left, [*widths, candidates[j]])
            if option < finished[0]:
                finished[0] = option
    return finished[0][1]


def _pick(given: _LoopArrays, differs: _LoopArrays, places: Any) -> _LoopArrays:
    """The entries of some clients in the arrays that differ between clients."""
    return jax.tree.map(lambda leaf, own: leaf[places] if own else leaf, given, differs)


def _where(which: Array, new: Array, old: Array) -> Array:
    return jnp.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
