"""One round of an algorithm, for whichever clients are on the device: all of a federation, or one round's sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from pfedbred.algorithm import Algorithm, Uploads
from pfedbred.data.batches import ClientData, Inputs, draw_rows
from pfedbred.data.federation import Federation
from pfedbred.engine import cohort, selection
from pfedbred.keys import data_key
from pfedbred.types import Array, Key, Tree


class ClientRecord(NamedTuple):
    """What the engine keeps for each client.

    Attributes:
      state: the algorithm's.
      drawn: how many samples the client has read.
      met: whether it has taken part yet.
    """

    state: Tree
    drawn: Array
    met: Array


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
      executor: see :mod:`pfedbred.engine.cohort`.
      chunk: clients that ``vmap`` runs at a time; all if None.
    """

    select: selection.Select
    participation: Literal["all", "sample"] = "all"
    weights: Literal["data", "uniform"] = "data"
    batch_size: int = 20
    executor: str = "auto"
    chunk: int | None = None


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
        self._plan, self._usual, self._vary = plan, algorithm, vary
        every = partial(cohort.every, executor=executor, chunk=plan.chunk, mesh=mesh)
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

    def train_client(self, shared: Shared, item: tuple[Array, ClientRecord]) -> tuple[Tree, ClientRecord]:
        """Its upload and its next record."""
        place, record = item
        client = self.algorithm(shared.settings).client
        message, state = self._met(shared, place, record)
        upload, state = client.train(message, state, self._data(shared, place, record.drawn, client.draws))
        drawn = record.drawn + jnp.uint32(client.draws * self._plan.batch_size)
        return upload, ClientRecord(state, drawn, jnp.bool_(True))

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

    def prepared(self, shared: Shared, chosen: Array, records: ClientRecord) -> Shared:
        """After the exchange before training, if the algorithm has one."""
        algorithm = self.algorithm(shared.settings)
        if not (algorithm.client.prepare and algorithm.server.prepare):
            return shared
        answers = self.prepare(shared, (chosen, records))
        return shared._replace(server=algorithm.server.prepare(shared.server, self._uploads(shared, chosen, answers)))

    def aggregated(self, shared: Shared, chosen: Array, uploads: Tree) -> Tree:
        """The server's next state."""
        server = self.algorithm(shared.settings).server
        return server.aggregate(shared.server, self._uploads(shared, chosen, uploads))

    def of_sample(self, shared: Shared, chosen: Array, records: ClientRecord) -> tuple[Tree, ClientRecord]:
        """The server's next state and the chosen clients' next records, where only they train."""
        shared = self.prepared(shared, chosen, records)
        uploads, records = self.train(shared, (chosen, records))
        return self.aggregated(shared, chosen, uploads), records

    def _uploads(self, shared: Shared, chosen: Array, uploads: Tree) -> Uploads:
        shards = shared.shards
        amount = shards.sizes[chosen] if self._plan.weights == "data" else jnp.ones(chosen.shape)
        return Uploads(uploads, shards.numbers[chosen], amount / jnp.sum(amount))
