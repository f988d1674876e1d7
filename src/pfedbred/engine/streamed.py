"""A population too large for the device: the clients of a round come to it, train, and go back to a store.

It is the same round as in :mod:`pfedbred.engine.resident`, with the same random numbers, and so with the same results
under ``participation="sample"``; but the cost of a round depends on its sample alone, not on how many others there are.
While one sample trains, the samples of the next one's clients are fetched, where no evaluation comes between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.data.federation import Federation
from pfedbred.data.population import Population
from pfedbred.engine import devices, evaluation, executors, screening, selection
from pfedbred.engine.client_store import ClientStore, FileSlots, MemorySlots, Slots
from pfedbred.engine.keys import init_key, select_key
from pfedbred.engine.resident import State, check_client, check_seed
from pfedbred.engine.round import ClientRecord, Outcome, Plan, Round, Shards, Shared, new_record, shards_of
from pfedbred.errors import SettingError
from pfedbred.io import tensors
from pfedbred.io.tensors import Pieces
from pfedbred.types import Array, Key, Tree

_SCORED = 1_000
_MOST_KNOWN = 10_000  # clients of a server that knows each of them


class StreamedSimulation:
    """Runs an algorithm on the sampled clients of a population; each seed has a store of its own, one after another.

    Of a large population a fixed random sample of clients is scored. A client that has not taken part yet is scored
    with what it would begin with.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        population: Federation | Population,
        plan: Plan,
        store: Literal["memory", "file"] = "memory",
        *,
        folder: str | None = None,
        scored: int | None = None,
    ) -> None:
        """``folder`` is where the file is made; ``scored`` is how many clients are, at most 1,000 if not given."""
        if plan.participation != "sample":
            raise SettingError("only clients that are sampled can come and go: use participation 'sample'")
        self.algorithm, self.task, self.federation, self.plan = algorithm, task, population, plan
        self.store, self._folder = store, folder
        if population.clients > _MOST_KNOWN and _server_bytes(algorithm, 3) > _server_bytes(algorithm, 2):
            raise SettingError(
                f"this algorithm's server keeps something of every client, and compares them: {population.clients:,} "
                f"clients are too many, at most {_MOST_KNOWN:,} can be had"
            )
        self.executor = executors.choose(plan.executor, plan.chunk)
        self.mesh = None if self.executor == "loop" else devices.clients_mesh()
        self._sharding = devices.everywhere(self.mesh) if self.mesh else None
        self.round = Round(algorithm, plan, self.executor, self.mesh)
        sizes: Any = jax.ShapeDtypeStruct((population.clients,), np.int32)  # of a population no one knows them all
        if isinstance(population, Federation):
            sizes = jnp.asarray(population.train.sizes)
        self._select = jax.jit(lambda key, round_: plan.select(select_key(key, round_), sizes))
        chosen = self._select(jax.random.key(0), 0)
        selection.check(chosen, population.clients)
        self._each_round = len(chosen)
        self._capacity = 1
        self.scored = _scored_clients(population.clients, scored)
        some = population.take(self.scored)
        self._scored_shards = devices.place(shards_of(some, self.scored), self._sharding)
        self._evaluator = evaluation.Evaluator(algorithm, task, some, self._scored_shards.x, self.executor, self.mesh)
        self._programs: dict[Any, Any] = {}
        self.compile_seconds = 0.0

    # The compiled programs --------------------------------------------------------------------------------------

    def _train(self, shared: Shared, records: ClientRecord) -> Outcome:
        return self.round.of(shared, _places(shared), records)

    def _models_of(self, shared: Shared, records: ClientRecord) -> Tree:
        return self.round.model(shared, (_places(shared), records))

    def _measure(self, shared: Shared, samples: Any, records: ClientRecord) -> evaluation.Counts:
        global_ = self.algorithm.server.model(shared.server)
        return self._evaluator.count(samples, global_, self._models_of(shared, records))

    def _run(self, function: Callable[..., Any], shared: Shared, *rest: Any) -> Any:
        """Compiled once for each number of clients and of rows."""
        if self.executor == "loop":
            return function(shared, *rest)
        shared, rest = devices.place((shared, rest), self._sharding)
        name = (function.__name__, len(shared.shards.numbers), len(shared.shards.y))
        if name not in self._programs:
            begun = time.perf_counter()
            jitted = jax.jit(function, out_shardings=self._sharding)
            self._programs[name] = jitted.lower(shared, *rest).compile(devices.compiler_options())
            self.compile_seconds += time.perf_counter() - begun
        return self._programs[name](shared, *rest)

    def _fetch(self, numbers: np.ndarray) -> Shards:
        """The training samples of these clients, filled up so that few programs serve all rounds."""
        shards = shards_of(self.federation.take(numbers), numbers)
        self._capacity = max(self._capacity, 2 ** math.ceil(math.log2(len(shards.y))))
        x = shards.x._replace(x=_padded(shards.x.x, self._capacity))
        return shards._replace(x=x, y=_padded(shards.y, self._capacity))

    # A run ------------------------------------------------------------------------------------------------------

    def _new_server(self, seed: Array) -> tuple[Key, Tree]:
        key = jax.random.key(seed)
        return key, self.algorithm.server.init(init_key(key), self.federation.clients)

    def _slots(self) -> Slots:
        return FileSlots(self._folder) if self.store == "file" else MemorySlots()

    def _one_record(self) -> ClientRecord:
        """Its shapes and types."""

        def record(seed: Array) -> ClientRecord:
            _, server = self._new_server(seed)
            message = self.algorithm.server.send(server, jnp.int32(0))
            return new_record(self.algorithm.client.init(message))

        return jax.eval_shape(record, jnp.uint32(0))

    def init(self, seeds: Sequence[int]) -> State:
        """The states before the first round: servers along the first axis, and an empty store for each seed."""
        new_servers = jax.jit(jax.vmap(self._new_server), out_shardings=self._sharding)
        keys, servers = new_servers(jnp.asarray(seeds, jnp.uint32))
        stores: Any = [ClientStore(self._one_record(), self._slots()) for _ in seeds]
        none = jnp.zeros(len(seeds), jnp.int32)
        return State(keys, none, servers, stores, none, none)

    def advance(self, states: State, rounds: int) -> State:
        """The states ``rounds`` rounds later. ``states`` itself is used up: its stores go on in the result."""
        seeds = [self._advance_one(states, place, rounds) for place in range(len(states.round))]
        server, skipped, in_row = jax.tree.map(lambda *leaves: jnp.stack(leaves), *seeds)
        return states._replace(
            round=states.round + rounds,
            server=server,
            skipped=skipped.astype(np.int32),
            skipped_in_row=in_row.astype(np.int32),
        )

    def _advance_one(self, states: State, place: int, rounds: int) -> tuple[Tree, Array, Array]:
        """The server of that seed, and what is counted of its rounds."""
        key, server, store = _one_seed(states, place)
        done, skipped, in_row = (int(each[place]) for each in (states.round, states.skipped, states.skipped_in_row))

        def fetch(round_: int) -> tuple[np.ndarray, Shards]:
            numbers = np.asarray(self._select(key, round_))
            return numbers, self._fetch(numbers)

        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(fetch, done)
            for round_ in range(done + 1, done + rounds + 1):
                numbers, shards = coming.result()
                if round_ < done + rounds:
                    coming = ahead.submit(fetch, round_)
                records = store.read(numbers.tolist())
                outcome = self._run(self._train, Shared(shards, key, server, {}), records)
                server = outcome.server
                store.write(numbers.tolist(), outcome.records)
                store.left_out.update(numbers[np.asarray(outcome.records.sick) > records.sick].tolist())
                skipped, in_row = (skipped + 1, in_row + 1) if outcome.skipped else (skipped, 0)
        return server, jnp.int32(skipped), jnp.int32(in_row)

    def evaluate(self, states: State) -> evaluation.Evaluation:
        """G and P on the training and test samples of the clients that are scored, for every seed."""
        counts = []
        for place in range(len(states.round)):
            key, server, store = _one_seed(states, place)
            shared = Shared(self._scored_shards, key, server, {})
            records = store.read(self.scored.tolist())
            counts.append(self._run(self._measure, shared, self._evaluator.samples, records))
        return self._evaluator.summarise(jax.tree.map(lambda *leaves: np.stack(leaves), *counts))

    def took_part(self, states: State) -> list[int]:
        """Of each seed: how many of the clients that are scored have taken part so far."""
        stores: Any = states.clients
        return [int(np.sum(store.read(self.scored.tolist()).met)) for store in stores]

    def health(self, states: State) -> screening.Health:
        """Who was left out so far, and how many rounds were skipped."""
        stores: Any = states.clients
        names = self.federation.names
        left_out = [screening.by_name(sorted(store.left_out.items()), names) for store in stores]
        return screening.Health(left_out, states.skipped.tolist(), states.skipped_in_row.tolist())

    def saved(self, states: State) -> dict[str, np.ndarray | Pieces]:
        """The states as arrays by name, from which ``restored`` makes them again, in whatever store."""
        stores: Any = states.clients
        arrays: dict[str, np.ndarray | Pieces] = {
            name: devices.fetch(leaf) for name, leaf in tensors.named(_without_stores(states)).items()
        }
        for place, store in enumerate(stores):
            arrays[f"clients.{place}"] = store.clients
            shape = (len(store), store.record_bytes)
            arrays[f"records.{place}"] = Pieces(np.dtype(np.uint8), shape, store.rows)
            arrays[f"left_out.{place}"] = np.array(sorted(store.left_out.items()), np.int64).reshape(-1, 2)
        return arrays

    def restored(self, arrays: Mapping[str, np.ndarray], seeds: int) -> State:
        """The states of so many seeds that were saved with the same settings."""
        states = self.init(range(seeds))
        shapes = jax.eval_shape(lambda: _without_stores(states))
        filled = tensors.refill(jax.tree.map(devices.without_keys, shapes), arrays, "what was saved")
        placed = devices.place(jax.tree.map(devices.with_keys, shapes, filled), self._sharding)
        stores: Any = states.clients
        for place, store in enumerate(stores):
            clients, records, left_out = (arrays.get(f"{name}.{place}") for name in ("clients", "records", "left_out"))
            if clients is None or records is None or left_out is None:
                raise SettingError("what was saved does not fit: its clients were on the device, or of other seeds")
            everyone = self.federation.clients
            known = clients.ndim == 1 and clients.dtype == np.int64 and len(np.unique(clients)) == len(clients)
            known = known and bool(np.all((clients >= 0) & (clients < everyone)))
            counted = left_out.ndim == 2 and left_out.shape[1] == 2 and left_out.dtype == np.int64
            if not known or not counted or not np.isin(left_out[:, 0], np.arange(everyone)).all():
                raise SettingError(f"what was saved does not fit: it is not of {everyone} clients")
            store.fill(clients, records)
            store.left_out.update(dict(left_out.tolist()))
        return placed._replace(clients=stores)

    # Models -----------------------------------------------------------------------------------------------------

    def global_model(self, states: State, seed: int = 0) -> Tree:
        """G of the seed at that position."""
        check_seed(states, seed)
        return self.algorithm.server.model(_one_seed(states, seed)[1])

    def personal_model(self, states: State, client: Any, seed: int = 0) -> Tree:
        """P of that client, for the seed at that position."""
        check_seed(states, seed)
        check_client(self.federation.clients, client)
        return jax.tree.map(itemgetter(0), self._personal(states, np.array([client]), seed))

    def _personal(self, states: State, numbers: np.ndarray, seed: int) -> Tree:
        key, server, store = _one_seed(states, seed)
        shared = Shared(self._fetch(numbers), key, server, {})
        return self._run(self._models_of, shared, store.read(numbers.tolist()))

    def models(self, states: State) -> tuple[Tree, Tree]:
        """G by seed, and P by seed and client: of every client there is."""
        places = range(len(states.round))
        everyone = np.arange(self.federation.clients)
        pieces = np.split(everyone, everyone[self._each_round :: self._each_round])
        of_seed = [
            _joined([self._personal(states, numbers, place) for numbers in pieces], np.concatenate) for place in places
        ]
        return _joined([self.global_model(states, place) for place in places]), _joined(of_seed)

    def model_shapes(self) -> tuple[Tree, Tree]:
        """Shapes and types of G and of all P, for one seed."""

        def both(seed: Array, records: ClientRecord) -> tuple[Tree, Tree]:
            key, server = self._new_server(seed)
            shared = Shared(self._scored_shards, key, server, {})
            return self.algorithm.server.model(server), self._models_of(shared, records)

        global_, personal = jax.eval_shape(both, jnp.uint32(0), _several(self._one_record(), len(self.scored)))
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), personal)
        return global_, _several(one, self.federation.clients)

    def trace(self) -> None:
        """Shapes and types of a round and its evaluation, without computing them: what cannot work fails here."""

        def both(seed: Array, records: ClientRecord) -> Any:
            key, server = self._new_server(seed)
            shared = Shared(self._scored_shards, key, server, {})
            outcome = self._train(shared, records)
            return self._measure(shared._replace(server=outcome.server), self._evaluator.samples, outcome.records)

        self._slots()
        jax.eval_shape(both, jnp.uint32(0), _several(self._one_record(), len(self.scored)))


def _scored_clients(clients: int, scored: int | None) -> np.ndarray:
    """The same ones in every run on so many clients."""
    count = min(scored or _SCORED, clients)
    return np.sort(np.random.default_rng(clients).choice(clients, count, replace=False, shuffle=False))


def _server_bytes(algorithm: Algorithm, clients: int) -> int:
    state = jax.eval_shape(lambda key: algorithm.server.init(key, clients), jax.random.key(0))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def _several(one: Tree, count: int) -> Tree:
    """The shapes and types of so many."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), one)


def _places(shared: Shared) -> Array:
    return jnp.arange(len(shared.shards.numbers))


def _one_seed(states: State, place: int) -> tuple[Key, Tree, Any]:
    stores: Any = states.clients
    return states.key[place], jax.tree.map(itemgetter(place), states.server), stores[place]


def _without_stores(states: State) -> State:
    nothing: Any = ()
    return states._replace(clients=nothing)


def _padded(array: Any, rows: int) -> Any:
    padded = np.zeros((rows, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded


def _joined(trees: list[Tree], join: Callable[[Any], np.ndarray] = np.stack) -> Tree:
    return jax.tree.map(lambda *leaves: join([np.asarray(leaf) for leaf in leaves]), *trees)
