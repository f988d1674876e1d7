"""The resident backend: all clients on the device, and all rounds between evaluations one compiled program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.algorithms.base import Algorithm, Info, Task
from pfedbred.data.federation import Federation
from pfedbred.engine import devices, evaluation, screening, selection
from pfedbred.engine.backend import Saved, check_client, check_seed
from pfedbred.engine.keys import init_key, select_key
from pfedbred.engine.packing import Packed
from pfedbred.engine.plan import Plan
from pfedbred.engine.responses import Responses
from pfedbred.engine.round import (
    ClientRecord,
    Servers,
    Shards,
    Shared,
    current_names,
    new_record,
    shards_of,
)
from pfedbred.engine.scores import Evaluation
from pfedbred.engine.seed_program import SeedProgram
from pfedbred.engine.simulation import Simulation
from pfedbred.engine.varying import Varying, as_inputs
from pfedbred.io import tensors
from pfedbred.types import Array, Key, Tree, tree_bytes

_EVALUATED = 8  # runs evaluated side by side: a sweep may have hundreds of points, and each needs memory


class ResidentState(NamedTuple):
    """A run between two rounds. All randomness is derived from the key, which never changes.

    ``settings`` are the hyper-parameters that differ between the runs of one program, by name; usually empty.
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


class ResidentBackend(Simulation[ResidentState]):
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
          algorithm: the algorithm to run.
          task: the model and its loss.
          federation: the clients.
          plan: how rounds are run.
          varying: for hyper-parameters given to ``init``, or with a schedule.
        """
        super().__init__(algorithm, task, federation, plan, varying)
        self.federation = federation
        self.shards = devices.place(shards_of(federation, np.arange(federation.clients)), self.everywhere)
        # As one program: a dozen small ones take a fifth of a second to compile. The loop runs what cannot be jitted.
        select = plan.select if self.executor == "loop" else jax.jit(plan.select)
        chosen = select(jax.random.key(0), self.shards.sizes)
        selection.check(chosen, federation.clients)
        self._each_round = federation.clients if plan.participation == "all" else len(chosen)
        self._evaluator = evaluation.Evaluator(
            algorithm, task, federation, self.shards.x, self.executor, self.mesh, plan.metrics
        )
        self._model_one = jax.jit(self.round.model_client)
        self._replicate = jax.jit(lambda counts: counts, out_shardings=self.everywhere)
        self._advance = SeedProgram(self, self._rounds, self._shardings, in_place=True)
        self._tally = SeedProgram(self, self._tally_one, self._shardings, at_once=_EVALUATED)
        self._models = SeedProgram(self, self._models_one, self._shardings)
        self._described = SeedProgram(self, self._described_one, self._shardings)

    store = "device"
    evaluated = None

    def __repr__(self) -> str:
        return f"ResidentBackend({self.algorithm} on {self.federation})"

    def _shardings(self, states: ResidentState) -> ResidentState | None:
        """The sharding of a state: clients spread over the devices if they divide evenly, all else on every device.

        The first axis is the seeds'.
        """
        if self.mesh is None:
            return None
        even = self.federation.clients % self.mesh.size == 0
        clients = devices.spread(self.mesh, 1) if even else self.everywhere
        placed = jax.tree.map(lambda leaf: self.everywhere, states)
        return placed._replace(clients=jax.tree.map(lambda leaf: clients, states.clients))

    # One round --------------------------------------------------------------------------------------------------

    def _round(self, shards: Shards, state: ResidentState) -> ResidentState:
        chosen = self.plan.select(select_key(state.key, state.round), shards.sizes)
        shared = Shared(shards, state.key, state.server, state.settings, state.round, state.responses)
        if self.plan.participation == "all":
            everyone = jnp.arange(self.federation.clients, dtype=jnp.int32)
            outcome = self.round.run(shared, everyone, state.clients, chosen)
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

    def _rounds(self, shards: Shards, rounds: Array, state: ResidentState) -> ResidentState:
        if self.executor == "loop":
            for _ in range(int(rounds)):
                state = self._round(shards, state)
            return state
        return jax.lax.fori_loop(0, rounds, lambda _, state: self._round(shards, state), state)

    def _tally_one(self, shards: Shards, sets: list[evaluation.EvaluationSet], state: ResidentState) -> Packed:
        return self._evaluator.pack(self._evaluator.tally(sets, *self._models_one(shards, (), state)))

    def _models_one(self, shards: Shards, nothing: Any, state: ResidentState) -> tuple[Tree, Tree]:
        everyone = jnp.arange(self.federation.clients)
        shared = Shared(shards, state.key, state.server, state.settings, state.round)
        personal = self.round.model(shared, (everyone, state.clients))
        return self.round.algorithm(state.settings, state.round).server.model(state.server), personal

    def _described_one(self, shards: Shards, nothing: Any, state: ResidentState) -> Info:
        shared = Shared(shards, state.key, state.server, state.settings, state.round)
        return self.round.described(shared, (jnp.arange(self.federation.clients), state.clients))

    # All seeds --------------------------------------------------------------------------------------------------

    def _forget_traces(self) -> None:
        for program in (self._advance, self._tally, self._models, self._described):
            program.forget_traces()

    def init(self, seeds: Sequence[int], settings: Mapping[str, Any] | None = None) -> ResidentState:
        """The state before the first round, with the seeds along the first axis.

        With ``settings``, each run has its own: arrays with one number for each seed; seeds may repeat.
        """
        own = self._settings(settings)
        with as_inputs(own):
            return self._placed(self._start, jnp.asarray(seeds, jnp.uint32), own)

    def _settings(self, settings: Mapping[str, Any] | None) -> dict[str, Array]:
        """In the precision of the model."""
        params = jax.tree.leaves(jax.eval_shape(self.task.model.init, jax.random.key(0)))
        return {name: jnp.asarray(values, jnp.result_type(*params)) for name, values in (settings or {}).items()}

    def _placed(self, start: Callable[..., ResidentState], *arguments: Any) -> ResidentState:
        """A new state on its devices, made by a program that is compiled without optimisation, because it runs once."""
        shapes = jax.eval_shape(start, *arguments)
        quickly: Any = {"xla_backend_optimization_level": 0}
        return jax.jit(start, out_shardings=self._shardings(shapes), compiler_options=quickly)(*arguments)

    def _start(self, seeds: Array, settings: Mapping[str, Array] | None = None) -> ResidentState:
        def start(seed: Array, settings: Mapping[str, Array]) -> ResidentState:
            key = jax.random.key(seed)
            server = self.round.algorithm(settings).server.init(init_key(key), self.federation.clients)
            return self._initial(key, server, settings)

        return jax.vmap(start)(seeds, dict(settings or {}))

    def _initial(self, key: Key, server: Tree, settings: Mapping[str, Array]) -> ResidentState:
        """The state before the first round: every client is initialised from the server's first message."""
        algorithm = self.round.algorithm(settings)

        def record(i: Array) -> ClientRecord:
            return new_record(algorithm.client.init(algorithm.server.send(server, i)))

        clients = jax.vmap(record)(jnp.arange(self.federation.clients))
        shared = Shared(self.shards, key, server, settings)
        shapes = self.round.info_shapes(shared, jax.tree.map(itemgetter(0), clients))
        info = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), shapes)
        none = jnp.int32(0)
        return ResidentState(key, none, server, clients, none, none, settings, info, self.round.no_responses(shared))

    def init_from(self, servers: Servers) -> ResidentState:
        """This federation's clients before their first round, with servers that other clients have trained."""
        return self._placed(jax.vmap(self._initial), *servers)

    def trace(self, seeds: int) -> None:
        """Traces a round and its evaluation: what cannot work fails here. The traces are compiled before use."""
        if self.executor == "loop":
            self.trace_shapes()
            return
        states = self._with_shardings(jax.eval_shape(self._start, jnp.zeros(seeds, jnp.uint32)))
        started = time.perf_counter()
        self._advance.trace(self.shards, jnp.int32(1), states)
        self._tally.trace(self.shards, self._evaluator.sets, states)
        self.compile_seconds += time.perf_counter() - started

    def compile(self, states: ResidentState, models: bool) -> None:
        """Compiles the programs of a run; ``models`` is whether it needs the one that computes all models."""
        if self.executor == "loop":
            return
        shapes = self._with_shardings(states)
        self._advance.compile(self.shards, jnp.int32(1), shapes)  # the first: others may need fewer clients at a time
        self._tally.compile(self.shards, self._evaluator.sets, shapes)
        if self.round.describes:
            self._described.compile(self.shards, (), shapes)
        if models:
            self._models.compile(self.shards, (), shapes)

    def _with_shardings(self, shapes: ResidentState) -> ResidentState:
        """Shapes and types, with where each array lives."""
        shardings = self._shardings(shapes)
        if shardings is None:
            return shapes
        return jax.tree.map(
            lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), shapes, shardings
        )

    def trace_shapes(self) -> tuple[ResidentState, Packed]:
        """Shapes and types after a round and its evaluation, without computing them."""

        def both(seeds: Array) -> tuple[ResidentState, Packed]:
            state = self._round(self.shards, jax.tree.map(itemgetter(0), self._start(seeds)))
            return state, self._tally_one(self.shards, self._evaluator.sets, state)

        return jax.eval_shape(both, jnp.zeros(1, jnp.uint32))

    def state_bytes(self) -> int:
        """Memory of one run's state."""
        state = jax.eval_shape(self._start, jnp.zeros(1, jnp.uint32))
        return tree_bytes((state.server, state.clients, state.responses))

    def model_bytes(self) -> int:
        """Bytes of the models of one seed."""

        def both(seeds: Array) -> tuple[Tree, Tree]:
            return self._models_one(self.shards, (), jax.tree.map(itemgetter(0), self._start(seeds)))

        return tree_bytes(jax.eval_shape(both, jnp.zeros(1, jnp.uint32)))

    def advance(self, states: ResidentState, rounds: int) -> ResidentState:
        """The state ``rounds`` rounds later. ``states`` is consumed: the result reuses its memory."""
        return self._advance(self.shards, jnp.int32(rounds), states)

    def evaluate(self, states: ResidentState) -> Evaluation:
        """G and P on the training and test samples, for every seed."""
        return self._evaluator.summarise(self._tally(self.shards, self._evaluator.sets, states))

    def save(self, states: ResidentState) -> Saved:
        """The state for a checkpoint."""
        return Saved({name: devices.fetch(leaf) for name, leaf in tensors.named(states).items()}, {})

    def replaced(self, states: ResidentState, fresh: ResidentState, which: np.ndarray) -> ResidentState:
        """The states with the runs in the mask ``which`` taken from ``fresh``. Both must have the same keys."""

        def merge(which: Array, old: ResidentState, new: ResidentState) -> ResidentState:
            def pick(one: Array, other: Array) -> Array:
                return jnp.where(which.reshape(-1, *(1,) * (one.ndim - 1)), other, one)

            return jax.tree.map(pick, old._replace(key=which), new._replace(key=which))._replace(key=old.key)

        return jax.jit(merge, out_shardings=self._shardings(states))(jnp.asarray(which), states, fresh)

    def load(self, saved: Saved, seeds: int, settings: Mapping[str, Any] | None = None) -> ResidentState:
        """The state from a checkpoint of a run with the same settings; ``settings`` as for ``init``."""
        shapes = jax.eval_shape(self._start, jnp.zeros(seeds, jnp.uint32), self._settings(settings))
        like = jax.tree.map(devices.without_keys, shapes)
        filled = tensors.refill(like, _with_responses(current_names(saved.arrays), like), "the checkpoint")
        states = jax.tree.map(devices.with_keys, shapes, filled)
        shardings = self._shardings(shapes)
        if shardings is None:
            return devices.place(states, None)
        return jax.tree.map(devices.place, states, shardings)

    def rejections(self, states: ResidentState) -> screening.Rejections:
        """Which clients' updates were rejected so far, and how many rounds were skipped."""
        counts = states.clients.rejected
        if jax.process_count() > 1:  # each has the counts of its own clients
            counts = self._replicate(counts)
        rejected = [screening.by_name(enumerate(times), self.federation.names) for times in np.asarray(counts)]
        return screening.Rejections(rejected, states.skipped.tolist(), states.skipped_in_row.tolist())

    def described(self, states: ResidentState) -> dict[str, np.ndarray]:
        """What describes each client's state, by seed and client."""
        if not self.round.describes:
            return {}
        found = self._described(self.shards, (), states)
        return {name: np.asarray(devices.fetch(values), np.float64) for name, values in found.items()}

    def servers(self, states: ResidentState) -> Servers:
        """The server's side of the state."""
        return Servers(states.key, states.server, states.settings)

    def participated(self, states: ResidentState) -> None:
        """None: all clients are evaluated."""
        return

    def models(self, states: ResidentState) -> tuple[Tree, Tree]:
        """G by seed, and P by seed and client."""
        return self._models(self.shards, (), states)

    def global_model(self, states: ResidentState, seed: int = 0) -> Tree:
        """G of the seed at that position."""
        check_seed(len(states.round), seed)
        return self.algorithm.server.model(jax.tree.map(lambda leaf: leaf[seed], states.server))

    def personal_model(self, states: ResidentState, client: int, seed: int = 0) -> Tree:
        """P of that client, for the seed at that position."""
        check_seed(len(states.round), seed)
        check_client(self.federation.clients, client)
        state = jax.tree.map(lambda leaf: leaf[seed], states)
        record = jax.tree.map(lambda leaf: leaf[client], state.clients)
        shared = Shared(self.shards, state.key, state.server, state.settings, state.round)
        return self._model_one(shared, (jnp.int32(client), record))


def _with_responses(arrays: dict[str, Any], like: ResidentState) -> dict[str, Any]:
    """With unknown responses, if a checkpoint has none of this kind: earlier versions kept none, or others."""
    if "responses.origins" in arrays:
        return arrays
    others = {name: array for name, array in arrays.items() if not name.startswith("responses.")}
    missing = tensors.named({"responses": like.responses})
    return others | {
        name: np.full(leaf.shape, 0 if name.endswith(".times") else np.nan, leaf.dtype)
        for name, leaf in missing.items()
    }
