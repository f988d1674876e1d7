"""One round of an algorithm, for whichever clients are on the device: all of a federation, or one round's sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from pfedbred.aggregation.rules import Rule
from pfedbred.algorithms.base import Algorithm, Uploads
from pfedbred.data.federation import Federation
from pfedbred.data.minibatches import ClientData, Inputs, draw_rows
from pfedbred.engine import executors, screening, selection
from pfedbred.engine.keys import data_key
from pfedbred.types import Array, Key, Tree


class ClientRecord(NamedTuple):
    """What the engine keeps for each client.

    Attributes:
      state: the algorithm's.
      drawn: how many samples the client has read.
      met: whether it has taken part yet.
      sick: in how many rounds it was left out.
    """

    state: Tree
    drawn: Array
    met: Array
    sick: Array


def new_record(state: Tree) -> ClientRecord:
    """Of a client that has not taken part yet."""
    return ClientRecord(state, jnp.uint32(0), jnp.bool_(False), jnp.uint32(0))


class Shards(NamedTuple):
    """The training samples on the device. A client's place is its row here; its number is its name in all rounds."""

    x: Inputs
    y: Array
    offsets: Array
    sizes: Array
    numbers: Array


def shards_of(federation: Federation, numbers: np.ndarray) -> Shards:
    """The training samples of a federation whose clients have these numbers, not yet on the device."""
    train = federation.train
    return Shards._make((federation.inputs(train), train.y, train.offsets[:-1], train.sizes, numbers.astype(np.int32)))


class Shared(NamedTuple):
    """What all clients of a round see of it."""

    shards: Shards
    key: Key
    server: Tree
    settings: Mapping[str, Array]


@dataclass(frozen=True)
class Plan:
    """How rounds are run, apart from what the algorithm does.

    Attributes:
      select: I, whose uploads are averaged.
      participation: ``all`` clients train in every round and the selected are averaged (the paper's experiments), or
        only the ``sample`` that is averaged trains (practice).
      weights: of the average, by training samples (``data``) or ``uniform``.
      batch_size: samples in a minibatch.
      executor: see :mod:`pfedbred.engine.executors`.
      chunk: clients that ``vmap`` runs at a time; all if None.
      rule: how the uploads are averaged.
    """

    select: selection.Select
    participation: Literal["all", "sample"] = "all"
    weights: Literal["data", "uniform"] = "data"
    batch_size: int = 20
    executor: str = "auto"
    chunk: int | None = None
    rule: Rule = Rule()

    def gathered(self, uploads: Tree, numbers: Array, sizes: Array, taken: Array) -> Uploads:
        """What the server takes in: uploads along the first axis, whose they are, and how many samples they have."""
        amount = sizes if self.weights == "data" else jnp.ones(sizes.shape)
        amount = jnp.where(taken, amount, 0)
        weight = amount / jnp.maximum(jnp.sum(amount), 1)
        # What is not taken may be NaN, and 0 * NaN is NaN.
        uploads = _where(taken, uploads, jax.tree.map(jnp.zeros_like, uploads))
        return Uploads(uploads, numbers, weight, taken, self.rule)


def enough(taken: Array) -> Array:
    """Whether a round's server learns: from half of the selected at least."""
    return 2 * jnp.sum(taken) >= len(taken)


class Outcome(NamedTuple):
    """What a round leaves behind.

    Attributes:
      server: its next state.
      records: of the clients that trained.
      skipped: whether too few of the selected were sound, so that the server has learnt nothing.
    """

    server: Tree
    records: ClientRecord
    skipped: Array


class Round:
    """What happens in a round, as pure functions of the clients' records and the server's state."""

    def __init__(
        self,
        algorithm: Algorithm,
        plan: Plan,
        executor: str,
        mesh: Mesh | None,
        vary: Callable[[Mapping[str, Array]], Algorithm] | None = None,
    ) -> None:
        """``vary(settings)`` is the algorithm with other hyper-parameters."""
        plan.rule.suits(algorithm.server.averages, "this algorithm")
        self._plan, self._usual, self._vary = plan, algorithm, vary
        every = partial(executors.every, executor=executor, chunk=plan.chunk, mesh=mesh)
        self.prepare, self.train, self.model = map(every, (self.prepare_client, self.train_client, self.model_client))

    def algorithm(self, settings: Mapping[str, Array]) -> Algorithm:
        """With these hyper-parameters, where the run has its own."""
        return self._vary(settings) if self._vary and settings else self._usual

    # One client -------------------------------------------------------------------------------------------------

    def _met(self, shared: Shared, place: Array, record: ClientRecord) -> tuple[Tree, Tree]:
        """What the client receives, and its state: made of the first message it ever receives."""
        algorithm = self.algorithm(shared.settings)
        message = algorithm.server.send(shared.server, shared.shards.numbers[place])
        if self._plan.participation == "all":
            return message, record.state  # every client's first message is that of the first round
        new = algorithm.client.init(message)
        return message, jax.tree.map(lambda old, new: jnp.where(record.met, old, new), record.state, new)

    def _data(self, shared: Shared, place: Array, drawn: Array, draws: int) -> ClientData:
        shards = shared.shards
        offset, size = shards.offsets[place], shards.sizes[place]
        key = data_key(shared.key, shards.numbers[place])
        return ClientData(
            shards.x, shards.y, draw_rows(key, offset, size, drawn, draws, self._plan.batch_size), offset, size
        )

    def train_client(self, shared: Shared, item: tuple[Array, ClientRecord]) -> tuple[Tree, Tree, screening.Vitals]:
        """Its upload, its next state, and how it is."""
        place, record = item
        client = self.algorithm(shared.settings).client
        message, state = self._met(shared, place, record)
        upload, state = client.train(message, state, self._data(shared, place, record.drawn, client.draws))
        return upload, state, screening.examine(client.unmoved(message), upload, state)

    def prepare_client(self, shared: Shared, item: tuple[Array, ClientRecord]) -> Tree:
        """Its answer in the exchange before training."""
        place, record = item
        prepare = self.algorithm(shared.settings).client.prepare
        assert prepare is not None
        return prepare(*self._met(shared, place, record), self._data(shared, place, record.drawn, 0))

    def model_client(self, shared: Shared, item: tuple[Array, ClientRecord]) -> Tree:
        """Its P."""
        place, record = item
        client = self.algorithm(shared.settings).client
        data = self._data(shared, place, record.drawn, client.model_draws)
        return client.model(*self._met(shared, place, record), data)

    # All clients of a round -------------------------------------------------------------------------------------

    def of(self, shared: Shared, places: Array, records: ClientRecord, among: Any = slice(None)) -> Outcome:
        """The round of the clients at these places; ``among`` them are the selected, unless they are all.

        A sick client's upload is not taken, and its state is again what it was before; the next time it has other
        minibatches. If fewer than half of the selected are left, the server stays as it was.
        """
        client, server = self.algorithm(shared.settings)[:2]
        chosen, before = places[among], shared.server
        shared, answered = self._prepared(shared, chosen, _pick(records, among))
        uploads, states, vitals = self.train(shared, (places, records))
        sound = screening.sound(vitals)
        if answered is not None:
            sound = sound.at[among].set(sound[among] & answered)
        taken = sound[among]
        learns = enough(taken)
        after = _either(
            learns,
            lambda: server.aggregate(shared.server, self._uploads(shared, chosen, _pick(uploads, among), taken)),
            lambda: before,
        )
        keeps = jnp.zeros_like(sound).at[among].set(taken & learns) if client.synced else sound
        kept = ClientRecord(
            # A pass over all states is hardly ever needed.
            state=_either(jnp.all(keeps), lambda: states, lambda: _where(keeps, states, records.state)),
            drawn=records.drawn + jnp.uint32(client.draws * self._plan.batch_size),
            met=records.met | keeps,
            sick=records.sick + ~sound,
        )
        return Outcome(after, kept, ~learns)

    def _prepared(self, shared: Shared, chosen: Array, records: ClientRecord) -> tuple[Shared, Array | None]:
        """After the exchange before training, and whose answer was sound; as before if there is no such exchange."""
        client, server = self.algorithm(shared.settings)[:2]
        if not (client.prepare and server.prepare):
            return shared, None
        answers = self.prepare(shared, (chosen, records))
        answered = screening.finite(answers)
        uploads = self._uploads(shared, chosen, answers, answered)
        return shared._replace(server=server.prepare(shared.server, uploads)), answered

    def _uploads(self, shared: Shared, chosen: Array, uploads: Tree, taken: Array) -> Uploads:
        shards = shared.shards
        return self._plan.gathered(uploads, shards.numbers[chosen], shards.sizes[chosen], taken)


def _pick(tree: Tree, places: Any) -> Tree:
    return jax.tree.map(lambda leaf: leaf[places], tree)


def _where(which: Array, these: Tree, those: Tree) -> Tree:
    """Along the first axis."""

    def choose(this: Array, that: Array) -> Array:
        return jnp.where(which.reshape(-1, *(1,) * (this.ndim - 1)), this, that)

    return jax.tree.map(choose, these, those)


def _either(condition: Array, this: Callable[[], Tree], that: Callable[[], Tree]) -> Tree:
    """One of two; in a plain loop by Python's own if, on a CPU by a branch.

    On a GPU both are computed: before a branch it would wait until the host has heard the condition, which takes longer
    than a pass over all states.
    """
    if not isinstance(condition, jax.core.Tracer):
        return this() if condition else that()
    if jax.default_backend() == "cpu":
        return jax.lax.cond(condition, this, that)
    return jax.tree.map(lambda these, those: jnp.where(condition, these, those), this(), that())
