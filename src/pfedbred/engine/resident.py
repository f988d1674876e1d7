"""A federation in one compiled program: all clients of a round, all rounds of a stretch, all seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.data.federation import Federation
from pfedbred.engine import devices, evaluation, executors, screening, selection
from pfedbred.engine.keys import init_key, select_key
from pfedbred.engine.round import ClientRecord, Plan, Round, Shards, Shared, new_record, shards_of
from pfedbred.errors import SettingError
from pfedbred.io import tensors
from pfedbred.io.tensors import Pieces
from pfedbred.types import Array, Key, Tree

_EVALUATED = 8  # runs side by side: the points of a sweep may be hundreds, and each needs its own memory


class State(NamedTuple):
    """A run between two rounds. The key never changes; all randomness is derived from it.

    ``settings`` are the hyper-parameters that differ between the runs of one program, by name; usually there are none.
    ``skipped`` rounds had too few sound clients, the last ``skipped_in_row`` among them.
    """

    key: Key
    round: Array
    server: Tree
    clients: ClientRecord
    skipped: Array
    skipped_in_row: Array
    settings: Mapping[str, Array] = {}  # never changed


class Simulation:
    """Runs an algorithm on a federation, several seeds side by side.

    Example:
      >>> import pfedbred
      >>> from pfedbred.engine import selection
      >>> federation = pfedbred.load("digits", clients=10)
      >>> task = pfedbred.Task(pfedbred.models.mclr(federation.shape, federation.classes))
      >>> plan = pfedbred.Plan(selection.uniform(5))
      >>> simulation = pfedbred.Simulation(pfedbred.make("fedavg", task), task, federation, plan)
      >>> states = simulation.advance(simulation.init([0, 1]), rounds=3)
      >>> simulation.evaluate(states).personal.test.accuracy.shape  # seeds
      (2,)
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        federation: Federation,
        plan: Plan,
        vary: Callable[[Mapping[str, Array]], Algorithm] | None = None,
    ) -> None:
        """``vary(settings)`` is the algorithm with other hyper-parameters, for the settings given to ``init``."""
        self.algorithm, self.task, self.federation, self.plan = algorithm, task, federation, plan
        self.executor = executors.choose(plan.executor, plan.chunk)
        self.mesh = None if self.executor == "loop" else devices.clients_mesh()
        self.shards = devices.place(shards_of(federation, np.arange(federation.clients)), self._everywhere)
        # As one program: a dozen small ones take a fifth of a second to compile. The loop runs what is no program, too.
        select = plan.select if self.executor == "loop" else jax.jit(plan.select)
        selection.check(select(jax.random.key(0), self.shards.sizes), federation.clients)
        self._evaluator = evaluation.Evaluator(algorithm, task, federation, self.shards.x, self.executor, self.mesh)
        self.round = Round(algorithm, plan, self.executor, self.mesh, vary)
        self._model_one = jax.jit(self.round.model_client)
        self._advance = self._compiled(self._rounds, stays=True)
        self._measure = self._compiled(self._measure_one, at_once=_EVALUATED)
        self._models = self._compiled(self._models_one)
        self.compile_seconds = 0.0

    @property
    def _everywhere(self) -> NamedSharding | None:
        return devices.everywhere(self.mesh) if self.mesh else None

    def _shardings(self, states: State) -> State | None:
        """Where the states of some seeds are: clients spread over the devices if they come out even, the rest on each.

        The first axis is the seeds'.
        """
        if self.mesh is None:
            return None
        even = self.federation.clients % self.mesh.size == 0
        clients = devices.spread(self.mesh, 1) if even else self._everywhere
        placed = jax.tree.map(lambda leaf: self._everywhere, states)
        return placed._replace(clients=jax.tree.map(lambda leaf: clients, states.clients))

    # One round --------------------------------------------------------------------------------------------------

    def _round(self, shards: Shards, state: State) -> State:
        chosen = self.plan.select(select_key(state.key, state.round), shards.sizes)
        shared = Shared(shards, state.key, state.server, state.settings)
        if self.plan.participation == "all":
            outcome = self.round.of(shared, jnp.arange(self.federation.clients), state.clients, chosen)
            clients = outcome.records
        else:
            outcome = self.round.of(shared, chosen, jax.tree.map(lambda leaf: leaf[chosen], state.clients))
            clients = jax.tree.map(lambda old, new: old.at[chosen].set(new), state.clients, outcome.records)
        return state._replace(
            round=state.round + 1,
            server=outcome.server,
            clients=clients,
            skipped=state.skipped + outcome.skipped,
            skipped_in_row=jnp.where(outcome.skipped, state.skipped_in_row + 1, 0),
        )

    def _rounds(self, shards: Shards, rounds: Array, state: State) -> State:
        if self.executor == "loop":
            for _ in range(int(rounds)):
                state = self._round(shards, state)
            return state
        return jax.lax.fori_loop(0, rounds, lambda _, state: self._round(shards, state), state)

    def _measure_one(self, shards: Shards, samples: Any, state: State) -> evaluation.Counts:
        return self._evaluator.count(samples, *self._models_one(shards, (), state))

    def _models_one(self, shards: Shards, nothing: Any, state: State) -> tuple[Tree, Tree]:
        everyone = jnp.arange(self.federation.clients)
        shared = Shared(shards, state.key, state.server, state.settings)
        personal = self.round.model(shared, (everyone, state.clients))
        return self.round.algorithm(state.settings).server.model(state.server), personal

    # All seeds --------------------------------------------------------------------------------------------------

    def _compiled(
        self, function: Callable[[Shards, Any, State], Any], *, stays: bool = False, at_once: int | None = None
    ) -> Callable[..., Any]:
        """``function`` for all seeds as one program, compiled at its first call with so many seeds and never again.

        With ``stays`` it makes states of states, in the same memory. Other results go to every device. No more than
        ``at_once`` seeds are side by side.
        """
        if self.executor == "loop":
            return partial(_one_seed_after_another, function)
        every_seed = executors.every(
            lambda shared, state: function(shared[0], shared[1], state), self.executor, at_once
        )

        def seeds(shards: Shards, extra: Any, states: State) -> Any:
            if len(states.round) > 1:
                return every_seed((shards, extra), states)
            # A single seed is not vmapped: on a CPU its conditions stay branches, where vmap would compute both.
            alone = function(shards, extra, jax.tree.map(itemgetter(0), states))
            return jax.tree.map(lambda leaf: leaf[None], alone)

        programs: dict[int, Any] = {}

        def run(shards: Shards, extra: Any, states: State) -> Any:
            count = len(states.round)
            if self.mesh and jax.process_count() == 1:
                states = jax.device_put(states, self._shardings(states))  # a caller may have made them elsewhere
            if count not in programs:
                begun = time.perf_counter()
                jitted = jax.jit(
                    seeds,
                    donate_argnums=(2,) if stays else (),
                    out_shardings=self._shardings(states) if stays else self._everywhere,
                )
                programs[count] = jitted.lower(shards, extra, states).compile(devices.compiler_options())
                self.compile_seconds += time.perf_counter() - begun
            return programs[count](shards, extra, states)

        return run

    def init(self, seeds: Sequence[int], settings: Mapping[str, Any] | None = None) -> State:
        """The states before the first round, one for each seed along the first axis.

        With ``settings``, each has its own: arrays of one number for each of the seeds, which may repeat.
        """
        weights = jax.tree.leaves(jax.eval_shape(self.task.model.init, jax.random.key(0)))
        own = {name: jnp.asarray(values, jnp.result_type(*weights)) for name, values in (settings or {}).items()}
        return self._placed(self._start, jnp.asarray(seeds, jnp.uint32), own)

    def _placed(self, start: Callable[..., State], *arguments: Any) -> State:
        """New states, where they belong; made once, by a program that is compiled quickly and not well."""
        shapes = jax.eval_shape(start, *arguments)
        quickly: Any = {"xla_backend_optimization_level": 0}
        return jax.jit(start, out_shardings=self._shardings(shapes), compiler_options=quickly)(*arguments)

    def _start(self, seeds: Array, settings: Mapping[str, Array] | None = None) -> State:
        def start(seed: Array, settings: Mapping[str, Array]) -> State:
            key = jax.random.key(seed)
            server = self.round.algorithm(settings).server.init(init_key(key), self.federation.clients)
            return self._meet(key, server, settings)

        return jax.vmap(start)(seeds, dict(settings or {}))

    def _meet(self, key: Key, server: Tree, settings: Mapping[str, Array]) -> State:
        """Every client before its first round, with what the server sends it first."""
        algorithm = self.round.algorithm(settings)

        def record(i: Array) -> ClientRecord:
            return new_record(algorithm.client.init(algorithm.server.send(server, i)))

        clients = jax.vmap(record)(jnp.arange(self.federation.clients))
        return State(key, jnp.int32(0), server, clients, jnp.int32(0), jnp.int32(0), settings)

    def meet(self, states: State) -> State:
        """This federation's clients before their first round, with the servers that other clients have trained."""
        return self._placed(jax.vmap(self._meet), states.key, states.server, states.settings)

    def trace(self, settings: Mapping[str, Any] | None = None) -> tuple[State, evaluation.Counts]:
        """Shapes and types after a round and its evaluation, without computing them: what cannot work fails here."""

        def both(seeds: Array, settings: Mapping[str, Array]) -> tuple[State, evaluation.Counts]:
            state = self._round(self.shards, jax.tree.map(itemgetter(0), self._start(seeds, settings)))
            return state, self._measure_one(self.shards, self._evaluator.samples, state)

        return jax.eval_shape(both, jnp.zeros(1, jnp.uint32), dict(settings or {}))

    def state_bytes(self) -> int:
        """Memory of one run's state."""
        state = jax.eval_shape(self._start, jnp.zeros(1, jnp.uint32))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((state.server, state.clients)))

    def model_shapes(self) -> tuple[Tree, Tree]:
        """Shapes and types of G and of all P, for one seed."""

        def both(seeds: Array) -> tuple[Tree, Tree]:
            return self._models_one(self.shards, (), jax.tree.map(itemgetter(0), self._start(seeds)))

        return jax.eval_shape(both, jnp.zeros(1, jnp.uint32))

    def advance(self, states: State, rounds: int) -> State:
        """The states ``rounds`` rounds later. ``states`` itself is used up: its memory is given to the result."""
        return self._advance(self.shards, jnp.int32(rounds), states)

    def evaluate(self, states: State) -> evaluation.Evaluation:
        """G and P on the training and test samples, for every seed."""
        counts = self._measure(self.shards, self._evaluator.samples, states)
        return self._evaluator.summarise(counts)

    def saved(self, states: State) -> dict[str, np.ndarray | Pieces]:
        """The states as arrays by name, from which ``restored`` makes them again, on whatever devices."""
        return {name: devices.fetch(leaf) for name, leaf in tensors.named(states).items()}

    def restored(self, arrays: Mapping[str, np.ndarray], seeds: int) -> State:
        """The states of so many seeds that were saved with the same settings."""
        shapes = jax.eval_shape(self._start, jnp.zeros(seeds, jnp.uint32))
        filled = tensors.refill(jax.tree.map(devices.without_keys, shapes), arrays, "what was saved")
        states = jax.tree.map(devices.with_keys, shapes, filled)
        shardings = self._shardings(shapes)
        if shardings is None:
            return devices.place(states, None)
        return jax.tree.map(devices.place, states, shardings)

    def health(self, states: State) -> screening.Health:
        """Who was left out so far, and how many rounds were skipped."""
        sick = states.clients.sick
        if jax.process_count() > 1:  # each has the counts of its own clients
            sick = jax.jit(lambda counts: counts, out_shardings=self._everywhere)(sick)
        left_out = [screening.by_name(enumerate(times), self.federation.names) for times in np.asarray(sick)]
        return screening.Health(left_out, states.skipped.tolist(), states.skipped_in_row.tolist())

    def models(self, states: State) -> tuple[Tree, Tree]:
        """G by seed, and P by seed and client."""
        return self._models(self.shards, (), states)

    def global_model(self, states: State, seed: int = 0) -> Tree:
        """G of the seed at that position."""
        check_seed(states, seed)
        return self.algorithm.server.model(jax.tree.map(lambda leaf: leaf[seed], states.server))

    def personal_model(self, states: State, client: Any, seed: int = 0) -> Tree:
        """P of that client, for the seed at that position."""
        check_seed(states, seed)
        check_client(self.federation.clients, client)
        state = jax.tree.map(lambda leaf: leaf[seed], states)
        record = jax.tree.map(lambda leaf: leaf[client], state.clients)
        shared = Shared(self.shards, state.key, state.server, state.settings)
        return self._model_one(shared, (jnp.int32(client), record))


def check_seed(states: State, seed: Any) -> None:
    """Refuses a position that no seed has, unless it is traced."""
    if isinstance(seed, int | np.integer) and not 0 <= seed < len(states.round):
        raise SettingError(f"there is no seed at position {seed}; positions are 0 to {len(states.round) - 1}")


def check_client(clients: int, client: Any) -> None:
    """Refuses a number that no client has, unless it is traced."""
    if isinstance(client, int | np.integer) and not 0 <= client < clients:
        raise SettingError(f"there is no client {client}; clients are 0 to {clients - 1}")


def _one_seed_after_another(
    function: Callable[[Shards, Any, State], Any], shards: Shards, extra: Any, states: State
) -> Any:
    """The reference for several seeds: a loop in Python."""
    results = []
    for place in range(len(states.round)):
        state = jax.tree.map(itemgetter(place), states)
        results.append(function(shards, extra, state))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)
