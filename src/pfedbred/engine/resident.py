"""The resident backend: all clients on the device, and all rounds between evaluations one compiled program."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from pfedbred.algorithms.base import Algorithm, Info, Task
from pfedbred.data.federation import Federation, Part
from pfedbred.engine import devices, evaluation, executors, programs, screening, selection
from pfedbred.engine.backend import Pending, Saved, check_client, check_seed
from pfedbred.engine.keys import init_key, select_key
from pfedbred.engine.plan import Plan
from pfedbred.engine.responses import Responses
from pfedbred.engine.round import (
    ClientRecord,
    Round,
    Servers,
    Shards,
    Shared,
    current_names,
    new_record,
    shards_of,
)
from pfedbred.engine.varying import Varying, as_inputs
from pfedbred.io import tensors
from pfedbred.types import Array, Key, Tree, tree_bytes

_EVALUATED = 8  # runs side by side: the points of a sweep may be hundreds, and each needs its own memory


class State(NamedTuple):
    """A run between two rounds. All randomness is derived from the key, which never changes.

    ``settings`` are the hyper-parameters that differ between the runs of one program, by name; usually there are none.
    ``skipped`` rounds had too few valid updates, among them the most recent ``skipped_in_row``. ``info`` holds the last
    round's diagnostics, if they are collected, and ``responses`` what the server remembers for screening.
    """

    key: Key
    round: Array
    server: Tree
    clients: ClientRecord
    skipped: Array
    skipped_in_row: Array
    settings: Mapping[str, Array] = {}  # never changed
    info: Info = {}  # noqa: RUF012  (never changed)
    responses: Responses | None = None


class ResidentBackend:
    """Runs an algorithm on a federation, several seeds side by side.

    Example:
      >>> import pfedbred
      >>> from pfedbred.engine import selection
      >>> federation = pfedbred.load("digits", clients=10)
      >>> task = pfedbred.Task(pfedbred.models.mclr(federation.shape, federation.classes))
      >>> plan = pfedbred.Plan(selection.uniform(5))
      >>> backend = pfedbred.ResidentBackend(pfedbred.make("fedavg", task), task, federation, plan)
      >>> state = backend.advance(backend.init([0, 1]), rounds=3)
      >>> backend.evaluate(state).personal.test.accuracy.shape  # seeds
      (2,)
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        federation: Federation,
        plan: Plan,
        varying: Varying | None = None,
    ) -> None:
        """A backend for all clients of a federation.

        Args:
          algorithm: what is run.
          task: the model and its loss.
          federation: the clients.
          plan: how rounds are run.
          varying: for hyper-parameters given to ``init``, or with a schedule.
        """
        self.algorithm, self.task, self.plan = algorithm, task, plan
        self.federation = self.samples = federation
        self.executor = executors.choose(plan.executor, plan.chunk)
        self.mesh = None if self.executor == "loop" else devices.clients_mesh()
        self.shards = devices.place(shards_of(federation, np.arange(federation.clients)), self._everywhere)
        # As one program: a dozen small ones take a fifth of a second to compile. The loop runs what cannot be jitted.
        select = plan.select if self.executor == "loop" else jax.jit(plan.select)
        selection.check(select(jax.random.key(0), self.shards.sizes), federation.clients)
        self._evaluator = evaluation.Evaluator(
            algorithm, task, federation, self.shards.x, self.executor, self.mesh, plan.metrics
        )
        self._varying, self._runs_all = varying, plan.chunk is None
        random = task.model.train is not None
        self.round = Round(algorithm, plan, self.executor, self.mesh, varying, federation.train.sizes, random)
        self._model_one = jax.jit(self.round.model_client)
        self._replicate = jax.jit(lambda counts: counts, out_shardings=self._everywhere)
        self._advance = self._compiled(self._rounds, in_place=True)
        self._tally = self._compiled(self._tally_one, at_once=_EVALUATED)
        self._models = self._compiled(self._models_one)
        self.compile_seconds = 0.0

    store = "device"
    evaluated = None
    checkpoint_always = False

    @property
    def _everywhere(self) -> NamedSharding | None:
        return devices.everywhere(self.mesh) if self.mesh else None

    def _shardings(self, states: State) -> State | None:
        """Where a state lives: clients spread over the devices if they divide evenly, all else on every device.

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
        shared = Shared(shards, state.key, state.server, state.settings, state.round, state.responses)
        if self.plan.participation == "all":
            outcome = self.round.run(shared, jnp.arange(self.federation.clients), state.clients, chosen)
            clients = outcome.records
        else:
            outcome = self.round.run(shared, chosen, jax.tree.map(lambda leaf: leaf[chosen], state.clients))
            clients = jax.tree.map(lambda old, new: old.at[chosen].set(new), state.clients, outcome.records)
        return state._replace(
            round=state.round + 1,
            server=outcome.server,
            clients=clients,
            skipped=state.skipped + outcome.skipped,
            skipped_in_row=jnp.where(outcome.skipped, state.skipped_in_row + 1, 0),
            info=outcome.info,
            responses=outcome.responses,
        )

    def _rounds(self, shards: Shards, rounds: Array, state: State) -> State:
        if self.executor == "loop":
            for _ in range(int(rounds)):
                state = self._round(shards, state)
            return state
        return jax.lax.fori_loop(0, rounds, lambda _, state: self._round(shards, state), state)

    def _tally_one(self, shards: Shards, sets: list[evaluation.EvaluationSet], state: State) -> evaluation.Packed:
        return self._evaluator.pack(self._evaluator.tally(sets, *self._models_one(shards, (), state)))

    def _models_one(self, shards: Shards, nothing: Any, state: State) -> tuple[Tree, Tree]:
        everyone = jnp.arange(self.federation.clients)
        shared = Shared(shards, state.key, state.server, state.settings, state.round)
        personal = self.round.model(shared, (everyone, state.clients))
        return self.round.algorithm(state.settings, state.round).server.model(state.server), personal

    # All seeds --------------------------------------------------------------------------------------------------

    def _compiled(
        self, function: Callable[[Shards, Any, State], Any], *, in_place: bool = False, at_once: int | None = None
    ) -> _SeedProgram:
        """``function`` for all seeds as one program, compiled once per number of seeds.

        With ``in_place`` it maps a state to the next in the same memory. Other results go to every device. At most
        ``at_once`` seeds run side by side.
        """
        every_seed = executors.every(
            lambda shared, state: function(shared[0], shared[1], state), self.executor, at_once
        )

        def seeds(shards: Shards, extra: Any, states: State) -> Any:
            if len(states.round) > 1:
                return every_seed((shards, extra), states)
            # A single seed is not vmapped: vmap would compute both sides of its conditions, which a CPU can branch on.
            alone = function(shards, extra, jax.tree.map(itemgetter(0), states))
            return jax.tree.map(lambda leaf: leaf[None], alone)

        return _SeedProgram(self, function, seeds, in_place)

    def run_fewer(self, problem: devices.TooLarge) -> bool:
        """Runs fewer clients at a time from now on, if that is possible and no chunk is given."""
        everyone = self.plan.participation == "all"
        clients = self.federation.clients if everyone else len(self.plan.select(jax.random.key(0), self.shards.sizes))
        share = -(-clients // self.mesh.size) if self.mesh else clients
        chunk = programs.fewer(share, self.plan.chunk, problem)
        if chunk is None or self.executor != "vmap" or not self._runs_all:
            return False
        self.plan = dataclasses.replace(self.plan, chunk=chunk)
        sizes = self.federation.train.sizes
        self.round = Round(self.algorithm, self.plan, self.executor, self.mesh, self._varying, sizes)
        for program in (self._advance, self._tally, self._models):
            program.forget_traces()
        return True

    def init(self, seeds: Sequence[int], settings: Mapping[str, Any] | None = None) -> State:
        """The state before the first round, with the seeds along the first axis.

        With ``settings``, each run has its own: arrays of one number for each of the seeds, which may repeat.
        """
        own = self._settings(settings)
        with as_inputs(own):
            return self._placed(self._start, jnp.asarray(seeds, jnp.uint32), own)

    def _settings(self, settings: Mapping[str, Any] | None) -> dict[str, Array]:
        """In the precision of the model."""
        params = jax.tree.leaves(jax.eval_shape(self.task.model.init, jax.random.key(0)))
        return {name: jnp.asarray(values, jnp.result_type(*params)) for name, values in (settings or {}).items()}

    def _placed(self, start: Callable[..., State], *arguments: Any) -> State:
        """A new state on its devices, made by a program that is compiled without optimisation, because it runs once."""
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
        """The state before the first round: every client is initialised from the server's first message."""
        algorithm = self.round.algorithm(settings)

        def record(i: Array) -> ClientRecord:
            return new_record(algorithm.client.init(algorithm.server.send(server, i)))

        clients = jax.vmap(record)(jnp.arange(self.federation.clients))
        shared = Shared(self.shards, key, server, settings)
        shapes = self.round.info_shapes(shared, jax.tree.map(itemgetter(0), clients))
        info = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), shapes)
        none = jnp.int32(0)
        return State(key, none, server, clients, none, none, settings, info, self.round.no_responses(shared))

    def meet(self, servers: Servers) -> State:
        """This federation's clients before their first round, with servers that other clients have trained."""
        return self._placed(jax.vmap(self._meet), *servers)

    def trace(self, seeds: int) -> None:
        """Traces a round and its evaluation: what cannot work fails here. The traces are compiled when first used."""
        if self.executor == "loop":
            self.trace_shapes()
            return
        states = self._with_shardings(jax.eval_shape(self._start, jnp.zeros(seeds, jnp.uint32)))
        started = time.perf_counter()
        self._advance.trace(self.shards, jnp.int32(1), states)
        self._tally.trace(self.shards, self._evaluator.sets, states)
        self.compile_seconds += time.perf_counter() - started

    def _with_shardings(self, shapes: State) -> State:
        """Shapes and types, with where each array lives."""
        shardings = self._shardings(shapes)
        if shardings is None:
            return shapes
        return jax.tree.map(
            lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), shapes, shardings
        )

    def trace_shapes(self) -> tuple[State, evaluation.Packed]:
        """Shapes and types after a round and its evaluation, without computing them."""

        def both(seeds: Array) -> tuple[State, evaluation.Packed]:
            state = self._round(self.shards, jax.tree.map(itemgetter(0), self._start(seeds)))
            return state, self._tally_one(self.shards, self._evaluator.sets, state)

        return jax.eval_shape(both, jnp.zeros(1, jnp.uint32))

    def state_bytes(self) -> int:
        """Memory of one run's state."""
        state = jax.eval_shape(self._start, jnp.zeros(1, jnp.uint32))
        return tree_bytes((state.server, state.clients, state.responses))

    def model_bytes(self) -> int:
        """What ``models`` takes for one seed."""

        def both(seeds: Array) -> tuple[Tree, Tree]:
            return self._models_one(self.shards, (), jax.tree.map(itemgetter(0), self._start(seeds)))

        return tree_bytes(jax.eval_shape(both, jnp.zeros(1, jnp.uint32)))

    def advance(self, states: State, rounds: int) -> State:
        """The state ``rounds`` rounds later. ``states`` is used up: its memory is given to the result."""
        return self._advance(self.shards, jnp.int32(rounds), states)

    def evaluate(self, states: State) -> evaluation.Evaluation:
        """G and P on the training and test samples, for every seed."""
        return self._evaluator.summarise(self._tally(self.shards, self._evaluator.sets, states))

    def start_evaluation(self, states: State) -> Pending:
        """The evaluation, done at once."""
        return Pending(self.evaluate(states))

    def save(self, states: State) -> Saved:
        """The state for a checkpoint."""
        return Saved({name: devices.fetch(leaf) for name, leaf in tensors.named(states).items()}, {})

    def replaced(self, states: State, fresh: State, which: np.ndarray) -> State:
        """The states with the runs at these places, a mask, taken from ``fresh``. Both must have the same keys."""

        def merge(which: Array, old: State, new: State) -> State:
            def pick(one: Array, other: Array) -> Array:
                return jnp.where(which.reshape(-1, *(1,) * (one.ndim - 1)), other, one)

            return jax.tree.map(pick, old._replace(key=which), new._replace(key=which))._replace(key=old.key)

        return jax.jit(merge, out_shardings=self._shardings(states))(jnp.asarray(which), states, fresh)

    def load(self, saved: Saved, seeds: int, settings: Mapping[str, Any] | None = None) -> State:
        """The state from a checkpoint of a run with the same settings; ``settings`` as for ``init``."""
        shapes = jax.eval_shape(self._start, jnp.zeros(seeds, jnp.uint32), self._settings(settings))
        like = jax.tree.map(devices.without_keys, shapes)
        filled = tensors.refill(like, _with_responses(current_names(saved.arrays), like), "the checkpoint")
        states = jax.tree.map(devices.with_keys, shapes, filled)
        shardings = self._shardings(shapes)
        if shardings is None:
            return devices.place(states, None)
        return jax.tree.map(devices.place, states, shardings)

    def rejections(self, states: State) -> screening.Rejections:
        """Whose updates were rejected so far, and how many rounds were skipped."""
        counts = states.clients.rejected
        if jax.process_count() > 1:  # each has the counts of its own clients
            counts = self._replicate(counts)
        rejected = [screening.by_name(enumerate(times), self.federation.names) for times in np.asarray(counts)]
        return screening.Rejections(rejected, states.skipped.tolist(), states.skipped_in_row.tolist())

    def diagnostics(self, states: State) -> dict[str, np.ndarray]:
        """The last round's diagnostics by seed."""
        return {name: np.asarray(values, np.float64) for name, values in jax.device_get(dict(states.info)).items()}

    def servers(self, states: State) -> Servers:
        """The server's side of the state."""
        return Servers(states.key, states.server, states.settings)

    def participated(self, states: State) -> None:
        """All clients are evaluated."""
        return

    def models(self, states: State) -> tuple[Tree, Tree]:
        """G by seed, and P by seed and client."""
        return self._models(self.shards, (), states)

    def evaluated_models(self, states: State) -> tuple[Tree, Tree]:
        """Those of the state: an evaluation is done at once."""
        return self.models(states)

    def outputs(self, part: Part, global_: Tree, personal: Tree) -> evaluation.Outputs:
        """What these models predict, which begin with the seeds, for the samples of the evaluated clients."""
        return self._evaluator.outputs(part, global_, personal)

    def announce(self, states: State, round_: int, last: bool = False) -> None:
        """No client is elsewhere."""

    def global_model(self, states: State, seed: int = 0) -> Tree:
        """G of the seed at that position."""
        check_seed(len(states.round), seed)
        return self.algorithm.server.model(jax.tree.map(lambda leaf: leaf[seed], states.server))

    def personal_model(self, states: State, client: int, seed: int = 0) -> Tree:
        """P of that client, for the seed at that position."""
        check_seed(len(states.round), seed)
        check_client(self.federation.clients, client)
        state = jax.tree.map(lambda leaf: leaf[seed], states)
        record = jax.tree.map(lambda leaf: leaf[client], state.clients)
        shared = Shared(self.shards, state.key, state.server, state.settings, state.round)
        return self._model_one(shared, (jnp.int32(client), record))


def _with_responses(arrays: dict[str, Any], like: State) -> dict[str, Any]:
    """With unknown responses, if a checkpoint has none: earlier versions did not keep them."""
    if any(name.startswith("responses.") for name in arrays):
        return arrays
    missing = tensors.named({"responses": like.responses})
    return arrays | {
        name: np.full(leaf.shape, np.nan if name.endswith((".along", ".averages")) else 0, leaf.dtype)
        for name, leaf in missing.items()
    }


class _SeedProgram:
    """A function of all seeds: traced, then compiled, once per number of seeds; a Python loop for the executor loop."""

    def __init__(
        self,
        backend: ResidentBackend,
        one: Callable[[Shards, Any, State], Any],
        seeds: Callable[[Shards, Any, State], Any],
        in_place: bool,
    ) -> None:
        self._backend, self._one, self._seeds, self._in_place = backend, one, seeds, in_place
        self._traced: dict[int, programs.Traced] = {}
        self._programs: dict[int, Any] = {}

    def trace(self, shards: Shards, extra: Any, states: State) -> None:
        """Traces the program for as many seeds as ``states`` has, which may be shapes only."""
        count = len(states.round) if hasattr(states.round, "__len__") else states.round.shape[0]
        if count not in self._traced:
            backend = self._backend
            with as_inputs(states.settings):
                self._traced[count] = programs.trace(
                    self._seeds,
                    shards,
                    extra,
                    states,
                    everywhere=backend._everywhere,
                    in_place=2 if self._in_place else None,
                    out_shardings=backend._shardings(states) if self._in_place else backend._everywhere,
                )

    def forget_traces(self) -> None:
        """What is traced but not compiled is traced again when it is needed."""
        self._traced.clear()

    def __call__(self, shards: Shards, extra: Any, states: State) -> Any:
        backend, count = self._backend, len(states.round)
        if backend.executor == "loop":
            return self._loop(shards, extra, states)
        if backend.mesh and jax.process_count() == 1:
            states = jax.device_put(states, backend._shardings(states))  # a caller may have put them elsewhere
        if count not in self._programs:
            started = time.perf_counter()

            def traced() -> programs.Traced:
                self.trace(shards, extra, states)
                return self._traced.pop(count)

            self._programs[count] = programs.fitted(traced, backend.run_fewer)
            backend.compile_seconds += time.perf_counter() - started
        return self._programs[count](shards, extra, states)

    def _loop(self, shards: Shards, extra: Any, states: State) -> Any:
        """The reference for several seeds: one after another in Python."""
        results = [self._one(shards, extra, jax.tree.map(itemgetter(i), states)) for i in range(len(states.round))]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)
