"""Local training: the one place where local steps are taken.

A method gives the gradient of each step. The number of steps, their minibatches and the optimizer are handled here, for
all methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from pfedbred.algorithms.unequal_loops import StepInputs, repeat
from pfedbred.data.minibatches import Batch, ClientData, Place
from pfedbred.types import Array, Tree


class Work(NamedTuple):
    """How much a client trains in a round: ``steps`` steps or, if given, ``epochs`` passes over its samples.

    A step uses ``batches`` minibatches; if the epochs do not divide into whole steps, the last step begins another
    pass.
    """

    steps: int
    epochs: int | None = None
    batches: int = 1

    def count(self, minibatches: Any) -> Any:
        """Steps of a client with this many minibatches per pass."""
        return self.steps if self.epochs is None else -(-self.epochs * minibatches // self.batches)

    def draws(self, minibatches: Any) -> Any:
        """The number of minibatches that these steps use."""
        return self.batches * self.count(minibatches)

    def steps_of(self, data: ClientData) -> Any:
        """Steps of this client: a number if all clients take the same number, else an array."""
        return self.count(data.passes.minibatches) if data.passes else self.steps


Draws: TypeAlias = int | Callable[[Any], Any]
"""How many minibatches a client uses: a number, or a function of the number of minibatches in a pass."""


def draws(*work: Work) -> Draws:
    """The number of minibatches that several pieces of work use together."""
    if all(each.epochs is None for each in work):
        return sum(each.batches * each.steps for each in work)
    return lambda minibatches: sum(each.draws(minibatches) for each in work)


def more(amount: Draws, count: int) -> Draws:
    """The amount plus ``count`` minibatches."""
    return (lambda minibatches: amount(minibatches) + count) if callable(amount) else amount + count


def drawn(amount: Draws, minibatches: Any) -> Any:
    """The amount for a client, or an array of clients, with this many minibatches per pass."""
    return amount(minibatches) if callable(amount) else amount


class Step(NamedTuple):
    """One local step, as a method describes it.

    Attributes:
      gradient: what the params move against.
      start: the params to step from; None for the current ones.
      carry: what the method passes on to the next step.
      info: diagnostics, averaged over the steps.
      after: computes ``carry`` from the params after the step, if it depends on them.
    """

    gradient: Tree
    start: Tree | None = None
    carry: Tree = ()
    info: Mapping[str, Array] = {}
    after: Callable[[Tree], Tree] | None = None


class _StepState(NamedTuple):
    """Between two local steps: the params, the optimizer's state, and what the method passes on."""

    params: Tree
    optimizer: Tree
    carry: Tree


class LocalResult(NamedTuple):
    """After the last local step: the params, what the method passed on, and the averaged diagnostics."""

    params: Tree
    carry: Tree
    info: Mapping[str, Array]


def local_steps(
    step: Callable[[Tree, Tree, list[Batch]], Step],
    params: Tree,
    data: ClientData,
    *,
    alpha: Any,
    work: Work,
    first: int | Array = 0,
    carry: Tree = (),
) -> LocalResult:
    """Local steps of size ``alpha`` from ``params``, on the minibatches from number ``first`` on.

    ``step(params, carry, batches)`` describes the next step.
    """
    init, update = optimizer(data, alpha)

    def advance(state: _StepState, r: int | Array, data: ClientData = data) -> tuple[_StepState, Mapping[str, Array]]:
        params, kept, carry = state
        wanted = step(params, carry, [data.batch(first + r * work.batches + j) for j in range(work.batches)])
        params, kept = update(params if wanted.start is None else wanted.start, wanted.gradient, kept)
        return _StepState(params, kept, wanted.after(params) if wanted.after else wanted.carry), wanted.info

    fresh = init(params)
    states = data.optimizer_states
    count, begin = work.steps_of(data), _StepState(params, states.begin(fresh) if states else fresh, carry)
    if isinstance(count, int):
        known = data if data.rows is not None else data.window(first, count * work.batches)
        end, seen = jax.lax.scan(lambda state, r: advance(state, r, known), begin, jnp.arange(count))
        if states:
            states.end(end.optimizer)
        return LocalResult(end.params, end.carry, jax.tree.map(jnp.mean, seen))

    assert data.passes is not None
    batch_size, each = data.passes.batch_size, work.batches

    def add(state: tuple[_StepState, Any], r: Array, rows: tuple[Array, Array]) -> tuple[_StepState, Any]:
        after, info = advance(state[0], r, data.with_rows(*rows, first + r * each))
        return after, jax.tree.map(lambda total, value: total + value, state[1], info)

    def rows_of(place: Place, step: Array, steps: int) -> tuple[Array, Array]:
        rows, real = place.rows(step * each, steps * each, batch_size)
        return rows.reshape(steps, each, batch_size), real.reshape(steps, each, batch_size)

    place = data.passes.place
    place = place._replace(used=place.used + jnp.asarray(first, jnp.uint32))
    _, shapes = jax.eval_shape(advance, begin, jnp.int32(0))
    none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)), shapes)
    counts = None if data.passes.everyone is None else work.count(data.passes.everyone)
    end, totals = repeat(add, (begin, none), count, StepInputs(rows_of, place), counts)
    if states:
        states.end(end.optimizer)
    return LocalResult(end.params, end.carry, jax.tree.map(lambda total: total / count, totals))


def optimizer(data: ClientData, alpha: Any) -> tuple[Callable[[Tree], Tree], Callable[[Tree, Tree, Tree], Any]]:
    """``init(params)`` and ``update(params, gradient, state)`` of the optimizer that takes this client's steps."""
    if data.optimizer is None:
        return lambda params: (), lambda params, gradient, state: (optax.tree.add_scale(params, -alpha, gradient), ())
    chosen = optax.with_extra_args_support(data.optimizer(alpha))

    def update(params: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        updates, state = chosen.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    return chosen.init, update


def descend(
    gradient: Callable[[Tree, Batch], Tree],
    params: Tree,
    data: ClientData,
    *,
    alpha: Any,
    steps: int | Work,
    first: int | Array = 0,
) -> Tree:
    """Steps of size ``alpha`` against ``gradient(params, batch)``, on the minibatches from number ``first`` on.

    With plain gradient descent, the default optimizer: w <- w - alpha gradient(w, batch).
    """
    work = steps if isinstance(steps, Work) else Work(steps)

    def step(params: Tree, carry: Tree, batches: list[Batch]) -> Step:
        return Step(gradient(params, batches[0]))

    return local_steps(step, params, data, alpha=alpha, work=work, first=first).params
