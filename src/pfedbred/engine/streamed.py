"""The streamed backend: a population too large for the device. A round's cohort is loaded, trains, and is stored again.

It is the round of :mod:`pfedbred.engine.resident` with the same random numbers, and so with the same results under
``participation="sample"``; but the cost of a round depends on its cohort alone, not on the number of other clients.
While one cohort trains, the samples of the next are fetched, unless an evaluation comes in between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.algorithms.base import Algorithm, Info, Task
from pfedbred.data.federation import Federation
from pfedbred.data.population import Population
from pfedbred.engine import devices, evaluation, programs, screening, selection
from pfedbred.engine.backend import Saved, check_client, check_seed
from pfedbred.engine.client_store import ClientStore, FileSlots, MemorySlots, Slots
from pfedbred.engine.keys import init_key, select_key
from pfedbred.engine.packing import Packed
from pfedbred.engine.plan import Plan
from pfedbred.engine.round import ClientRecord, Outcome, Servers, Shards, Shared, new_record, shards_of
from pfedbred.engine.scores import Evaluation
from pfedbred.engine.simulation import Simulation
from pfedbred.engine.varying import Varying
from pfedbred.errors import SettingError
from pfedbred.io import tensors
from pfedbred.io.tensors import Pieces
from pfedbred.types import Array, Key, Tree, tree_bytes

_EVALUATED = 1_000
_MOST_KNOWN = 10_000  # clients of a server that keeps state for each of them


class StreamedState(NamedTuple):
    """A run between two rounds: servers and counters along the seeds, and a store of client records for each seed."""

    key: Key
    round: Array
    server: Tree
    clients: list[ClientStore]
    skipped: Array
    skipped_in_row: Array
    info: Info = {}  # noqa: RUF012  (never changed)


class _OneSeed(NamedTuple):
    """The part of a state that belongs to one seed."""

    key: Key
    server: Tree
    store: ClientStore


class StreamedBackend(Simulation[StreamedState]):
    """Runs an algorithm on the sampled clients of a population, one seed after another, each with its own store.

    Of a large population a fixed random sample of clients is evaluated; a client that has not taken part yet, with the
    state it would start from.
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
        evaluated: int | None = None,
        varying: Varying | None = None,
    ) -> None:
        """A backend for a population.

        Args:
          algorithm: the algorithm to run.
          task: the model and its loss.
          population: the clients.
          plan: how rounds are run.
          store: where clients are between rounds.
          folder: for the file of client records.
          evaluated: the number of clients to evaluate, by default at most 1,000.
          varying: for hyper-parameters with a schedule.
        """
        if plan.participation != "sample":
            raise SettingError(
                f"store {store!r} needs participation 'sample': clients are loaded for their rounds only"
            )
        self.federation, self.store, self._folder = population, store, folder
        if population.clients > _MOST_KNOWN and _server_bytes(algorithm, 3) > _server_bytes(algorithm, 2):
            raise SettingError(
                f"this algorithm's server keeps state for every client and compares clients: {population.clients:,} "
                f"are too many, at most {_MOST_KNOWN:,} are supported"
            )
        super().__init__(algorithm, task, population if isinstance(population, Federation) else None, plan, varying)
        sizes = jnp.asarray(self.samples.train.sizes) if self.samples else None
        select = selection.among(plan.select, population.clients, sizes)
        self._select = jax.jit(lambda key, round_: select(select_key(key, round_)))
        chosen = self._select(jax.random.key(0), 0)
        selection.check(chosen, population.clients)
        self._each_round = len(chosen)
        self._capacity = 1
        self.evaluated = _evaluated_clients(population.clients, evaluated)
        some = population.take(self.evaluated)
        self._evaluated_shards = devices.place(shards_of(some, self.evaluated), self.everywhere)
        self._evaluator = evaluation.Evaluator(
            algorithm, task, some, self._evaluated_shards.x, self.executor, self.mesh, plan.metrics
        )
        self._has_diagnostics = plan.diagnostics
        self._info: Info | None = None  # names and shapes of the diagnostics, once a round is traced
        self._traced: dict[Any, Any] = {}
        self._programs: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"StreamedBackend({self.algorithm} on {self.federation})"

    # The compiled programs --------------------------------------------------------------------------------------

    def _train(self, shared: Shared, records: ClientRecord) -> Outcome:
        return self.round.run(shared, _places(shared), records)

    def _models_of(self, shared: Shared, records: ClientRecord) -> Tree:
        return self.round.model(shared, (_places(shared), records))

    def _described_of(self, shared: Shared, records: ClientRecord) -> Info:
        return self.round.described(shared, (_places(shared), records))

    def _tally(self, shared: Shared, sets: list[evaluation.EvaluationSet], records: ClientRecord) -> Packed:
        global_ = self.algorithm.server.model(shared.server)
        return self._evaluator.pack(self._evaluator.tally(sets, global_, self._models_of(shared, records)))

    def _run(self, function: Callable[..., Any], shared: Shared, *rest: Any) -> Any:
        """Runs a program that is compiled once for each number of clients and of rows."""
        if self.executor == "loop":
            return function(shared, *rest)
        shared, rest = devices.place((shared, rest), self.everywhere)
        return self._compiled(function, shared, *rest)(shared, *rest)

    def _compiled(self, function: Callable[..., Any], shared: Shared, *rest: Any) -> Callable[..., Any]:
        """The program for these arguments, compiled unless it is already."""
        name = _program_name(function, shared)
        if name not in self._programs:
            started = time.perf_counter()

            def traced() -> programs.Traced:
                self._trace_program(function, shared, *rest)
                return self._traced.pop(name)

            self._programs[name] = programs.fitted(traced, self.run_fewer)
            self.compile_seconds += time.perf_counter() - started
        return self._programs[name]

    def _trace_program(self, function: Callable[..., Any], shared: Shared, *rest: Any) -> Any:
        """Traces a program for these shapes, unless it is traced already. Returns the shapes of its results."""
        if self.executor == "loop":
            return jax.eval_shape(function, shared, *rest)
        name = _program_name(function, shared)
        if name not in self._traced:
            self._traced[name] = programs.trace(
                function, shared, *rest, everywhere=self.everywhere, out_shardings=self.everywhere
            )
        return self._traced[name].stage.out_info

    def _forget_traces(self) -> None:
        self._traced.clear()

    def _fetch(self, numbers: np.ndarray) -> Shards:
        """The training samples of these clients, padded so that few programs serve all rounds."""
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
        """Shapes and types of one record."""

        def record(seed: Array) -> ClientRecord:
            _, server = self._new_server(seed)
            message = self.algorithm.server.send(server, jnp.int32(0))
            return new_record(self.algorithm.client.init(message))

        return jax.eval_shape(record, jnp.uint32(0))

    def _new_info(self) -> Info:
        """The diagnostics before the first round, of one seed."""
        if not self._has_diagnostics:
            return {}
        if self._info is None:
            self._trace_round()
        assert self._info is not None
        return {name: jnp.full(leaf.shape, jnp.nan, leaf.dtype) for name, leaf in self._info.items()}

    def init(self, seeds: Sequence[int]) -> StreamedState:
        """The state before the first round, with an empty store for each seed."""
        new_servers = jax.jit(jax.vmap(self._new_server), out_shardings=self.everywhere)
        keys, servers = new_servers(jnp.asarray(seeds, jnp.uint32))
        stores = [ClientStore(self._one_record(), self._slots()) for _ in seeds]
        none = jnp.zeros(len(seeds), jnp.int32)
        info = {name: jnp.stack([value] * len(seeds)) for name, value in self._new_info().items()}
        return StreamedState(keys, none, servers, stores, none, none, info=info)

    def advance(self, states: StreamedState, rounds: int) -> StreamedState:
        """The state ``rounds`` rounds later. ``states`` is consumed: the result takes over its stores."""
        seeds = [self._advance_one(states, place, rounds) for place in range(len(states.round))]
        server, skipped, in_row, info = jax.tree.map(lambda *leaves: jnp.stack(leaves), *seeds)
        return states._replace(
            round=states.round + rounds,
            server=server,
            skipped=skipped.astype(np.int32),
            skipped_in_row=in_row.astype(np.int32),
            info=info,
        )

    def _advance_one(self, states: StreamedState, place: int, rounds: int) -> tuple[Tree, Array, Array, Info]:
        """The server of that seed, its counters of skipped rounds, and its diagnostics."""
        key, server, store = _one_seed(states, place)
        done, skipped, in_row = (int(each[place]) for each in (states.round, states.skipped, states.skipped_in_row))
        info: Info = {}

        def fetch(round_: int) -> tuple[np.ndarray, Shards]:
            numbers = np.asarray(self._select(key, round_))
            return numbers, self._fetch(numbers)

        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(fetch, done)
            for round_ in range(done, done + rounds):
                numbers, shards = coming.result()
                if round_ + 1 < done + rounds:
                    coming = ahead.submit(fetch, round_ + 1)
                records = store.read(numbers.tolist())
                outcome = self._run(self._train, Shared(shards, key, server, {}, jnp.int32(round_)), records)
                server, info = outcome.server, outcome.info
                store.write(numbers.tolist(), outcome.records)
                store.rejected.update(numbers[np.asarray(outcome.records.rejected) > records.rejected].tolist())
                skipped, in_row = (skipped + 1, in_row + 1) if outcome.skipped else (skipped, 0)
        return server, jnp.int32(skipped), jnp.int32(in_row), info

    def evaluate(self, states: StreamedState) -> Evaluation:
        """G and P on the training and test samples of the evaluated clients, for every seed."""
        tallies = []
        for place in range(len(states.round)):
            key, server, store = _one_seed(states, place)
            shared = Shared(self._evaluated_shards, key, server, {}, states.round[place])
            records = store.read(self.evaluated.tolist())
            tallies.append(self._run(self._tally, shared, self._evaluator.sets, records))
        return self._evaluator.summarise(jax.tree.map(lambda *leaves: np.stack(leaves), *tallies))

    def servers(self, states: StreamedState) -> Servers:
        """The server's side of the state; no settings differ between the seeds."""
        return Servers(states.key, states.server, {})

    def participated(self, states: StreamedState) -> list[int]:
        """The number of evaluated clients that have taken part so far, by seed."""
        return [int(np.sum(store.read(self.evaluated.tolist()).participated)) for store in states.clients]

    def rejections(self, states: StreamedState) -> screening.Rejections:
        """Which clients' updates were rejected so far, and how many rounds were skipped."""
        names = self.federation.names
        rejected = [screening.by_name(sorted(store.rejected.items()), names) for store in states.clients]
        return screening.Rejections(rejected, states.skipped.tolist(), states.skipped_in_row.tolist())

    def described(self, states: StreamedState) -> dict[str, np.ndarray]:
        """What describes each evaluated client's state, by seed and client."""
        if not self.round.describes:
            return {}
        found = []
        for place in range(len(states.round)):
            key, server, store = _one_seed(states, place)
            shared = Shared(self._evaluated_shards, key, server, {}, states.round[place])
            found.append(self._run(self._described_of, shared, store.read(self.evaluated.tolist())))
        return {name: np.stack([np.asarray(each[name], np.float64) for each in found]) for name in found[0]}

    def save(self, states: StreamedState) -> Saved:
        """The state for a checkpoint, whatever store it is in."""
        arrays: dict[str, np.ndarray | Pieces] = {
            name: devices.fetch(leaf) for name, leaf in tensors.named(_without_stores(states)).items()
        }
        for place, store in enumerate(states.clients):
            arrays[f"clients.{place}"] = store.clients
            shape = (len(store), store.record_bytes)
            arrays[f"records.{place}"] = Pieces(np.dtype(np.uint8), shape, store.rows)
            arrays[f"rejected.{place}"] = np.array(sorted(store.rejected.items()), np.int64).reshape(-1, 2)
        return Saved(arrays, {})

    def load(self, saved: Saved, seeds: int) -> StreamedState:
        """The state from a checkpoint of a run with the same settings."""
        arrays = {name: array for name, array in saved.arrays.items() if isinstance(array, np.ndarray)}
        states = self.init(range(seeds))
        shapes = jax.eval_shape(lambda: _without_stores(states))
        filled = tensors.refill(jax.tree.map(devices.without_keys, shapes), arrays, "the checkpoint")
        placed = devices.place(jax.tree.map(devices.with_keys, shapes, filled), self.everywhere)
        for place, store in enumerate(states.clients):
            clients, records = (arrays.get(f"{name}.{place}") for name in ("clients", "records"))
            rejected = arrays.get(f"rejected.{place}", arrays.get(f"left_out.{place}"))  # the earlier name
            if clients is None or records is None or rejected is None:
                raise SettingError("the checkpoint does not fit: its clients were on the device, or of other seeds")
            store.restore(clients, records, rejected, self.federation.clients)
        return placed._replace(clients=states.clients)

    # Models -----------------------------------------------------------------------------------------------------

    def global_model(self, states: StreamedState, seed: int = 0) -> Tree:
        """G of the seed at that position."""
        check_seed(len(states.round), seed)
        return self.algorithm.server.model(_one_seed(states, seed)[1])

    def personal_model(self, states: StreamedState, client: int, seed: int = 0) -> Tree:
        """P of that client, for the seed at that position."""
        check_seed(len(states.round), seed)
        check_client(self.federation.clients, client)
        return jax.tree.map(itemgetter(0), self._personal(states, np.array([client]), seed))

    def _personal(self, states: StreamedState, numbers: np.ndarray, seed: int) -> Tree:
        key, server, store = _one_seed(states, seed)
        shared = Shared(self._fetch(numbers), key, server, {}, states.round[seed])
        return self._run(self._models_of, shared, store.read(numbers.tolist()))

    def models(self, states: StreamedState) -> tuple[Tree, Tree]:
        """G by seed, and P by seed and client, for all clients."""
        places = range(len(states.round))
        everyone = np.arange(self.federation.clients)
        pieces = np.split(everyone, everyone[self._each_round :: self._each_round])
        of_seed = [
            _joined([self._personal(states, numbers, place) for numbers in pieces], np.concatenate) for place in places
        ]
        return _joined([self.global_model(states, place) for place in places]), _joined(of_seed)

    def model_bytes(self) -> int | None:
        """Bytes of the models of one seed; None if not all clients are evaluated: most may not even exist yet."""
        if len(self.evaluated) < self.federation.clients:
            return None

        def both(seed: Array, records: ClientRecord) -> tuple[Tree, Tree]:
            key, server = self._new_server(seed)
            shared = Shared(self._evaluated_shards, key, server, {})
            return self.algorithm.server.model(server), self._models_of(shared, records)

        return tree_bytes(jax.eval_shape(both, jnp.uint32(0), _several(self._one_record(), len(self.evaluated))))

    def state_bytes(self) -> int:
        """Device memory of one run's state: the server's alone, as clients are on the device for their rounds only."""
        return tree_bytes(jax.eval_shape(self._new_server, jnp.uint32(0))[1])

    def trace(self, seeds: int = 1) -> None:
        """Traces a round and its evaluation without computing them: what cannot work fails here."""

        self._slots()
        started = time.perf_counter()
        self._trace_round()
        shared, records = self._started(self._evaluated_shards)
        self._trace_program(self._tally, shared, self._evaluator.sets, records)
        self.compile_seconds += time.perf_counter() - started

    def compile(self, states: StreamedState, models: bool) -> None:
        """Compiles the programs of the next round and of evaluations.

        Models are computed for a cohort at a time, which takes no more memory than for all that are evaluated.
        """
        if self.executor == "loop":
            return
        key, server, store = _one_seed(states, 0)
        chosen = np.asarray(self._select(key, int(states.round[0])))

        def placed(shards: Shards, numbers: np.ndarray) -> tuple[Shared, ClientRecord]:
            shared = Shared(shards, key, server, {}, states.round[0])
            return devices.place((shared, store.read(numbers.tolist())), self.everywhere)

        self._compiled(self._train, *placed(self._fetch(chosen), chosen))
        shared, records = placed(self._evaluated_shards, self.evaluated)
        self._compiled(self._tally, shared, self._evaluator.sets, records)
        if self.round.describes:
            self._compiled(self._described_of, shared, records)

    def _trace_round(self) -> None:
        # The clients of any round: rounded up, most others have as many samples, and use the same program.
        shards = devices.place(self._fetch(np.asarray(self._select(jax.random.key(0), 0))), self.everywhere)
        self._info = self._trace_program(self._train, *self._started(shards)).info

    def _started(self, shards: Shards) -> tuple[Shared, ClientRecord]:
        """A server and the records of these clients before the first round."""
        key, server = jax.jit(self._new_server)(jnp.uint32(0))
        records = ClientStore(self._one_record(), MemorySlots()).read(range(len(shards.numbers)))
        return devices.place((Shared(shards, key, server, {}, jnp.int32(0)), records), self.everywhere)


def _evaluated_clients(clients: int, evaluated: int | None) -> np.ndarray:
    """The clients to evaluate: the same in every run with this number of clients."""
    count = min(evaluated or _EVALUATED, clients)
    return np.sort(np.random.default_rng(clients).choice(clients, count, replace=False, shuffle=False))


def _server_bytes(algorithm: Algorithm, clients: int) -> int:
    return tree_bytes(jax.eval_shape(lambda key: algorithm.server.init(key, clients), jax.random.key(0)))


def _several(one: Tree, count: int) -> Tree:
    """The shapes and types of ``count`` of them."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), one)


def _program_name(function: Callable[..., Any], shared: Shared) -> tuple[str, int, int]:
    """A program serves all rounds with the same number of clients and of rows of samples."""
    return function.__name__, len(shared.shards.numbers), len(shared.shards.y)


def _places(shared: Shared) -> Array:
    return jnp.arange(len(shared.shards.numbers))


def _one_seed(states: StreamedState, place: int) -> _OneSeed:
    return _OneSeed(states.key[place], jax.tree.map(itemgetter(place), states.server), states.clients[place])


def _without_stores(states: StreamedState) -> StreamedState:
    return states._replace(clients=[])


def _padded(array: Any, rows: int) -> Any:
    padded = np.zeros((rows, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    return padded


def _joined(trees: list[Tree], join: Callable[[Any], np.ndarray] = np.stack) -> Tree:
    return jax.tree.map(lambda *leaves: join([np.asarray(leaf) for leaf in leaves]), *trees)
