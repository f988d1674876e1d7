"""One round of an algorithm, for whichever clients are on the device: all of a federation, or one round's cohort."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from pfedbred.algorithms.base import Algorithm, Info, Uploads
from pfedbred.algorithms.local_steps import Draws, drawn
from pfedbred.data.federation import Federation
from pfedbred.data.minibatches import ClientData, Inputs, Passes, Place, common, draw_rows
from pfedbred.engine import executors, screening
from pfedbred.engine.keys import aggregation_key, augmentation_key, data_key, network_key
from pfedbred.engine.plan import Plan, weight_cap
from pfedbred.engine.responses import Responses
from pfedbred.engine.varying import Varying
from pfedbred.errors import SettingError
from pfedbred.types import Array, Key, Tree

_EARLIER_NAMES = {"sick": "rejected", "met": "participated"}  # of fields of ClientRecord, in checkpoints


class ClientRecord(NamedTuple):
    """What the engine keeps for each client.

    Attributes:
      state: the algorithm's.
      drawn: how many samples the client has read.
      participated: whether it has taken part yet.
      rejected: in how many rounds its update was rejected.
    """

    state: Tree
    drawn: Array
    participated: Array
    rejected: Array


def new_record(state: Tree) -> ClientRecord:
    """The record of a client that has not taken part yet."""
    return ClientRecord(state, jnp.uint32(0), jnp.bool_(False), jnp.uint32(0))


def current_names(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a checkpoint by their current names: earlier versions had others for two fields of a record."""

    def current(name: str) -> str:
        client, dot, field = name.partition(".")
        known = client == "clients" or client.isdecimal()
        return f"{client}{dot}{_EARLIER_NAMES.get(field, field)}" if known else name

    return {current(name): array for name, array in arrays.items()}


class Shards(NamedTuple):
    """The training samples on the device. A client's place is its row here; its number identifies it in all rounds."""

    x: Inputs
    y: Array
    offsets: Array
    sizes: Array
    numbers: Array


def shards_of(federation: Federation, numbers: np.ndarray) -> Shards:
    """The training samples of a federation whose clients have these numbers, not yet on the device."""
    train = federation.train
    return Shards._make((federation.inputs(train), train.y, train.offsets[:-1], train.sizes, numbers.astype(np.int32)))


class Servers(NamedTuple):
    """The server's side of a state: one entry per seed along the first axis."""

    key: Key
    server: Tree
    settings: Mapping[str, Array]


class Shared(NamedTuple):
    """What all clients of a round share: the samples, the run's key, the server's state, swept settings, the round.

    ``responses`` are what the server remembers of how clients respond to its steps; None if it does not.
    """

    shards: Shards
    key: Key
    server: Tree
    settings: Mapping[str, Array]
    round: Array | int = 0
    responses: Responses | None = None


def enough(valid: Array) -> Array:
    """Whether a round counts: at least half of the selected clients' updates are valid."""
    return 2 * jnp.sum(valid) >= len(valid)


class Outcome(NamedTuple):
    """The outcome of a round.

    Attributes:
      server: its next state.
      records: of the clients that trained.
      skipped: whether too few updates were valid, so that the server has not changed.
      info: diagnostics, averaged over the clients with a valid update; NaN if there is none.
      responses: the shared ones after this round.
    """

    server: Tree
    records: ClientRecord
    skipped: Array
    info: Info
    responses: Responses | None


class TrainedClient(NamedTuple):
    """One client after its local work."""

    upload: Tree
    state: Tree
    norms: screening.Norms
    info: Info


class Round:
    """What happens in a round, as pure functions of the clients' records and the server's state."""

    _info_shapes: Info | None = None

    def __init__(
        self,
        algorithm: Algorithm,
        plan: Plan,
        executor: str,
        mesh: Mesh | None,
        varying: Varying | None = None,
        sizes: np.ndarray | None = None,
        random: bool = False,
    ) -> None:
        """The round of an algorithm.

        Args:
          algorithm: the algorithm to run.
          plan: how rounds are run.
          executor: its name.
          mesh: the devices that share the clients, if there are several.
          varying: which hyper-parameters vary, if any do.
          sizes: the training samples of all clients, if known beforehand.
          random: whether the network may draw random numbers in training.
        """
        plan.check_rule(algorithm)
        self._plan, self._usual, self._varying = plan, algorithm, varying
        self._random = random or algorithm.client.random
        self._in_epochs = callable(algorithm.client.draws) or callable(algorithm.client.model_draws)
        self._cap = None if sizes is None else weight_cap(sizes)
        self._common = common(plan.batching, sizes)
        self._everyone = None if sizes is None else plan.batching.per_pass(sizes)
        every = partial(executors.every, executor=executor, chunk=plan.chunk, mesh=mesh)
        # With diagnostics, training is also traced for their names; jit lets the round have the same trace.
        again = plan.diagnostics and executor != "loop"
        self._train_client = jax.jit(self.train_client, inline=True) if again else self.train_client
        self.prepare, self.train, self.model = map(every, (self.prepare_client, self._train_client, self.model_client))
        self.described = every(self.described_client)

    def algorithm(self, settings: Mapping[str, Array], round_: Array | int = 0) -> Algorithm:
        """The algorithm with the run's own hyper-parameters, if it has any, and those of the round."""
        return self._varying.at(self._usual, settings, round_) if self._varying else self._usual

    # One client -------------------------------------------------------------------------------------------------

    def _message_and_state(self, shared: Shared, place: Array, record: ClientRecord) -> tuple[Tree, Tree]:
        """The client's message, and its state: initialised from the first message it ever receives."""
        algorithm = self.algorithm(shared.settings, shared.round)
        message = algorithm.server.send(shared.server, shared.shards.numbers[place])
        if self._plan.participation == "all":
            return message, record.state  # every client's first message is that of the first round
        new = algorithm.client.init(message)
        return message, jax.tree.map(lambda old, new: jnp.where(record.participated, old, new), record.state, new)

    def _data(self, shared: Shared, place: Array, read: Array, draws: Draws) -> ClientData:
        shards, batch_size = shared.shards, self._plan.batch_size
        offset, size = shards.offsets[place], shards.sizes[place]
        key = data_key(shared.key, shards.numbers[place])
        passes, rows = None, None
        amount: Any = draws
        if self._in_epochs:
            minibatches = self._minibatches(size)
            where = Place(key, read // jnp.uint32(batch_size), jnp.asarray(minibatches), offset, size)
            everyone = self._everyone if self._plan.participation == "all" else None
            passes = Passes(where, batch_size, minibatches, self._common.padded, everyone)
            amount = drawn(draws, minibatches) if self._common.filled else None
        if isinstance(amount, int):
            rows = draw_rows(key, offset, size, read, amount, batch_size)
        drawing = network_key(shared.key, shards.numbers[place], read) if self._random else None
        return ClientData(shards.x, shards.y, rows, offset, size, passes, self._plan.optimizer, key=drawing)

    def _minibatches(self, sizes: Array) -> int | Array:
        """Minibatches in a pass: a number if it is the same for all clients."""
        same = self._common.minibatches
        return self._plan.batching.per_pass(sizes) if same is None else same

    def _costs(self, sizes: Array) -> Array | None:
        """The costs of clients of these sizes, in minibatches; None if all cost the same."""
        draws = drawn(self._usual.client.draws, self._minibatches(sizes))
        return None if isinstance(draws, int) else draws

    def samples_read(self, sizes: Array) -> Array:
        """How many samples clients of these sizes read in a round, smaller minibatches counted in full."""
        draws = drawn(self._usual.client.draws, self._minibatches(sizes))
        return jnp.broadcast_to(jnp.asarray(draws * self._plan.batch_size).astype(jnp.uint32), sizes.shape)

    def train_client(self, shared: Shared, item: tuple[Array, ClientRecord]) -> TrainedClient:
        """One round of a client's local work."""
        place, record = item
        client = self.algorithm(shared.settings, shared.round).client
        message, state = self._message_and_state(shared, place, record)
        data = self._data(shared, place, record.drawn, client.draws)
        if self._plan.augment:
            key = augmentation_key(shared.key, shared.shards.numbers[place], record.drawn)
            data = data._replace(augment=self._plan.augment, augment_key=key)
        upload, state, *reported = client.train(message, state, data)
        norms = screening.measure(client.unchanged(message), client.screened(upload), (state, upload))
        info = {}
        if self._plan.diagnostics:
            info = {"update_norm": norms.update, **(_numbers("train", reported[0]) if reported else {})}
        return TrainedClient(upload, state, norms, info)

    def info_shapes(self, shared: Shared, record: ClientRecord) -> Info:
        """Names, shapes and types of the diagnostics; empty if they are not collected."""
        if self._plan.diagnostics and self._info_shapes is None:  # tracing is slow, and the result is always the same
            shared = shared._replace(round=jnp.int32(0))  # of the same type as in a round
            self._info_shapes = jax.eval_shape(self._train_client, shared, (jnp.int32(0), record)).info
        return self._info_shapes or {}

    def prepare_client(self, shared: Shared, item: tuple[Array, ClientRecord]) -> Tree:
        """A client's upload in the exchange before training."""
        place, record = item
        prepare = self.algorithm(shared.settings, shared.round).client.prepare
        assert prepare is not None
        return prepare(*self._message_and_state(shared, place, record), self._data(shared, place, record.drawn, 0))

    def model_client(self, shared: Shared, item: tuple[Array, ClientRecord]) -> Tree:
        """A client's P."""
        place, record = item
        client = self.algorithm(shared.settings, shared.round).client
        data = self._data(shared, place, record.drawn, client.model_draws)
        return client.model(*self._message_and_state(shared, place, record), data)

    @property
    def describes(self) -> bool:
        """Whether evaluations record what describes a client's state."""
        return self._plan.diagnostics and self._usual.client.described is not None

    def described_client(self, shared: Shared, item: tuple[Array, ClientRecord]) -> Info:
        """What describes a client's state."""
        place, record = item
        describe = self.algorithm(shared.settings, shared.round).client.described
        assert describe is not None
        described = describe(
            *self._message_and_state(shared, place, record), self._data(shared, place, record.drawn, 0)
        )
        return _numbers("described", described)

    # All clients of a round -------------------------------------------------------------------------------------

    def run(self, shared: Shared, places: Array, records: ClientRecord, among: Any = slice(None)) -> Outcome:
        """One round of the clients at these places; ``among`` gives the selected ones, by default all.

        A rejected client's upload does not count and its state is restored; next time it draws other minibatches. If
        fewer than half of the selected updates are valid, the server does not change.
        """
        client, server = self.algorithm(shared.settings, shared.round)[:2]
        chosen, before = places[among], shared.server
        shared, answered = self._prepared(shared, chosen, _pick(records, among))
        trained = self.train(
            shared._replace(responses=None), (places, records), self._costs(shared.shards.sizes[places])
        )
        uploads, numbers = _pick(trained.upload, among), shared.shards.numbers[chosen]
        norms, responses = trained.norms.update[among], shared.responses
        if self._plan.compares(self._usual):
            start = jax.vmap(self._unchanged(shared, shared.server))(numbers)
            found = screening.related(start, client.screened(uploads), norms, responses, numbers)
            responses = screening.remember(responses, found, norms, numbers)
            valid = screening.screen(
                trained.norms,
                found,
                among=among,
                answered=answered,
                numbers=numbers,
                known=responses,
                opposed=self._plan.screening == "directions",
            )
        else:
            finite = self._plan.screening == "finite"
            valid = trained.norms.finite if finite else screening.valid(trained.norms, server.averages)
            valid = valid if answered is None else valid.at[among].set(valid[among] & answered)
        counted = valid[among]
        learns = enough(counted)
        after = _either(
            learns,
            lambda: server.aggregate(shared.server, self._gather(shared, chosen, uploads, counted)),
            lambda: before,
        )
        keeps = jnp.zeros_like(valid).at[among].set(counted & learns) if client.synced else valid
        kept = ClientRecord(
            # A pass over all states is rarely needed.
            state=_either(jnp.all(keeps), lambda: trained.state, lambda: _where(keeps, trained.state, records.state)),
            drawn=records.drawn + self.samples_read(shared.shards.sizes[places]),
            participated=records.participated | keeps,
            rejected=records.rejected + ~valid,
        )
        info = jax.tree.map(lambda leaf: jnp.mean(leaf, where=valid), trained.info)
        return Outcome(after, kept, ~learns, info, responses)

    def _unchanged(self, shared: Shared, server: Tree) -> Callable[[Array], Tree]:
        """What a client uploads, by its number, if training changes nothing."""
        client, half = self.algorithm(shared.settings, shared.round)[:2]
        return lambda number: client.unchanged(half.send(server, number))

    def no_responses(self, shared: Shared) -> Responses | None:
        """The responses before the first round; None if they are not kept."""
        if not self._plan.remembers(self._usual):
            return None
        return screening.no_responses(self._unchanged(shared, shared.server)(jnp.int32(0)), len(shared.shards.sizes))

    def _prepared(self, shared: Shared, chosen: Array, records: ClientRecord) -> tuple[Shared, Array | None]:
        """The exchange before training, if there is one: the updated shared state, and which replies were finite."""
        client, server = self.algorithm(shared.settings, shared.round)[:2]
        if not (client.prepare and server.prepare):
            return shared, None
        answers = self.prepare(shared, (chosen, records))
        answered = screening.finite(answers)
        uploads = self._gather(shared, chosen, answers, answered, stage=1)
        return shared._replace(server=server.prepare(shared.server, uploads)), answered

    def _gather(self, shared: Shared, chosen: Array, uploads: Tree, valid: Array, stage: int = 0) -> Uploads:
        shards = shared.shards
        key = aggregation_key(shared.key, shared.round, stage)
        return self._plan.gather(uploads, shards.numbers[chosen], shards.sizes[chosen], valid, key, self._cap)


def _numbers(source: str, info: Any) -> Info:
    """What a method reports of a client: numbers by name, in single precision or more."""
    if not isinstance(info, Mapping):
        raise SettingError(f"the diagnostics of {source} must map names to numbers, not be {info!r}")
    found = {name: jnp.asarray(value) for name, value in info.items()}
    for name, value in found.items():
        if value.ndim:
            raise SettingError(
                f"{name}, a diagnostic of {source}, must be one number, not an array of shape {value.shape}"
            )
    return {name: value.astype(jnp.promote_types(value.dtype, jnp.float32)) for name, value in found.items()}


def _pick(tree: Tree, places: Any) -> Tree:
    return jax.tree.map(lambda leaf: leaf[places], tree)


def _where(which: Array, these: Tree, those: Tree) -> Tree:
    """Chooses along the first axis."""

    def choose(this: Array, that: Array) -> Array:
        return jnp.where(which.reshape(-1, *(1,) * (this.ndim - 1)), this, that)

    return jax.tree.map(choose, these, those)


def _either(condition: Array, this: Callable[[], Tree], that: Callable[[], Tree]) -> Tree:
    """One of two: by Python's ``if`` outside a compiled program, by a branch on a CPU.

    On a GPU both are computed: a branch waits until the host knows the condition, which takes longer than a pass over
    all states.
    """
    if not isinstance(condition, jax.core.Tracer):
        return this() if condition else that()
    if jax.default_backend() == "cpu":
        return jax.lax.cond(condition, this, that)
    return jax.tree.map(lambda these, those: jnp.where(condition, these, those), this(), that())
