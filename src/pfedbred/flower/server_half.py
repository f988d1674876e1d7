"""An algorithm's server half, compiled, for uploads that arrive one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord

from pfedbred.algorithms.base import ServerState
from pfedbred.algorithms.exchange import Exchange, exchange
from pfedbred.data.federation import Part
from pfedbred.data.minibatches import example_data
from pfedbred.engine import screening, selection
from pfedbred.engine.directions import Products
from pfedbred.engine.evaluation import Sums, Tallies, chosen_metrics
from pfedbred.engine.keys import aggregation_key, init_key, select_key
from pfedbred.engine.metrics import Predictions
from pfedbred.engine.plan import WeightCap, weight_cap
from pfedbred.engine.responses import Responses
from pfedbred.experiment.building import example_batch, make_algorithm, make_plan, varying
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.task import make_task
from pfedbred.flower import wire
from pfedbred.flower.roster import Description
from pfedbred.types import Array, Key, Tree


class Comparison(NamedTuple):
    """The comparison of a round's uploads.

    Attributes:
      in_line: by client, whether its update is in line.
      why: by client, why an update not in line is rejected.
      responses: given the server's next state, the record of how clients respond; None if none is kept.
    """

    in_line: dict[int, bool]
    why: dict[int, str]
    responses: Callable[[Tree], Responses | None]


class ServerHalf:
    """An algorithm's server half, and the shapes of everything exchanged.

    Attributes:
      shapes: shapes of messages, uploads and models.
      tallies: shapes of the statistics that a client sends in an evaluation.
      diagnostics: names of the diagnostics of a client's training; empty if not collected.
      key: the run's key.
      prepares: whether there is an exchange before training.
    """

    def __init__(self, experiment: Experiment, data: Description) -> None:
        self.experiment, self.data = experiment, data
        self.task = make_task(experiment, data)
        self.algorithm, self.plan = make_algorithm(experiment, self.task, data), make_plan(experiment, data.classes)
        self.plan.check_rule(self.algorithm, experiment.algorithm_name)
        parts: list[Part] = ["train", "validation", "test"] if experiment.validation else ["train", "test"]
        self.metrics = chosen_metrics(parts, self.plan.metrics, self.task)
        self._varying = varying(experiment, self.task, data)
        self._sample = example_batch(data, self.task)
        self.shapes: Exchange = exchange(self.algorithm, self.task, self._sample, self.plan.optimizer)
        self.tallies = jax.eval_shape(self._tally, self.shapes.global_, self.shapes.personal)
        self.diagnostics = self._diagnostics() if experiment.diagnostics else []
        client, server = self.algorithm.client, self.algorithm.server
        self.key: Key = jax.random.key(np.uint32(experiment.seed))
        self.prepares = bool(self.algorithm.client.prepare and server.prepare)
        self._init = jax.jit(server.init, static_argnums=1)
        self._send, self.model = jax.jit(server.send), jax.jit(server.model)
        self._sends_alike = server.welcome is None
        self._sent: tuple[Tree, Tree, ArrayRecord] | None = None
        self._aggregate = jax.jit(self._aggregate_uploads, static_argnums=0)
        self._compare, self._remember = jax.jit(self._compare_uploads), jax.jit(self._remember_step)
        self._measure = jax.jit(
            lambda message, upload: screening.measure(client.unchanged(message), client.screened(upload), upload)
        )

    def _unchanged(self, state: Tree, numbers: Array) -> Tree:
        client, server = self.algorithm.client, self.algorithm.server
        return jax.vmap(lambda number: client.unchanged(server.send(state, number)))(numbers)

    def _compare_uploads(
        self,
        state: Tree,
        uploads: Tree,
        numbers: Array,
        norms: Array,
        counted: Array,
        before: Responses | None,
    ) -> tuple[screening.Compared, Products | None]:
        sent = self.algorithm.client.screened(uploads)
        products = screening.related(self._unchanged(state, numbers), sent, norms, before)
        opposed = self.plan.screening == "directions"
        return screening.compare(
            products, norms=norms, numbers=numbers, counted=counted, before=before, opposed=opposed
        ), products

    def _remember_step(
        self,
        now: Responses | None,
        products: Products | None,
        state: Tree,
        after: Tree,
        norms: Array,
        numbers: Array,
        counted: Array,
    ) -> Responses | None:
        start, end = (jax.tree.map(itemgetter(0), self._unchanged(each, numbers[:1])) for each in (state, after))
        return screening.remember(now, products, start, end, norms=norms, numbers=numbers, counted=counted)

    def _tally(self, global_: Tree, personal: Tree) -> Tallies:
        """The statistics of one sample, to get their shapes."""
        batch, everything = self._sample, {}
        for model, params in (("global", global_), ("personal", personal)):
            outputs = self.algorithm.predict(params, batch.x)
            predictions = Predictions(
                self.task.scores(outputs), batch.y, self.task.losses(outputs, batch.y), jnp.ones(1, bool)
            )
            for part, chosen in self.metrics.items():
                sums: Sums = {metric.name: metric.sums(predictions) for metric in chosen}
                everything[f"{model}_{part}"] = sums
        return everything

    def _diagnostics(self) -> list[str]:
        client, shapes = self.algorithm.client, self.shapes
        data = example_data(self._sample)._replace(optimizer=self.plan.optimizer)
        _, _, *reported = jax.eval_shape(
            lambda sent, kept: client.train(sent, kept, data), shapes.message, shapes.state
        )
        return sorted({"update_norm", *(reported[0] if reported else ())})

    def init(self) -> ServerState:
        """The server's state before the first round."""
        return self._init(init_key(self.key), self.data.clients)

    def select(self, round_: int, present: Sequence[int], sizes: np.ndarray) -> list[int]:
        """The clients whose uploads a round averages: selected as in a simulation, among those that are present."""
        experiment = self.experiment
        fixed = experiment.fixed_clients()
        if fixed is not None:
            return [number for number in fixed if number in present]
        assert experiment.aggregated is not None
        choose = selection.get(experiment.select, min(experiment.aggregated, len(present)))
        places = choose(select_key(self.key, round_), jnp.asarray(sizes[list(present)]))
        return [present[int(place)] for place in places]

    def message(self, state: Tree, client: int) -> ArrayRecord:
        """The algorithm's message to a client, packed."""
        return self._message(state, client)[1]

    def _message(self, state: Tree, client: int) -> tuple[Tree, ArrayRecord]:
        if self._sends_alike and self._sent is not None and self._sent[0] is state:
            return self._sent[1:]
        message = jax.device_get(self._send(state, np.int32(client)))
        self._sent = (state, message, wire.packed(message))
        return self._sent[1:]

    def norms(self, state: Tree, client: int, upload: Tree) -> screening.Norms:
        """The norms of a client's update, from the message it was sent and the upload it sent back."""
        return self._measure(self._message(state, client)[0], upload)

    def no_responses(self, state: Tree) -> Responses | None:
        """The record of how clients respond, before the first round; None if none is kept."""
        if not self.plan.remembers(self.algorithm):
            return None
        start = jax.tree.map(itemgetter(0), self._unchanged(state, jnp.zeros(1, jnp.int32)))
        return jax.device_get(screening.no_responses(start, self.data.clients))

    def compare(
        self, state: Tree, sent: Mapping[int, tuple[Tree, Any]], chosen: Sequence[int], before: Responses | None
    ) -> Comparison | None:
        """Compares uploads (given with their norms) with each other; None if there is nothing to compare."""
        if not sent or not self.plan.compares(self.algorithm):
            return None
        uploads = wire.stacked({i: upload for i, (upload, _) in sent.items()}, self.shapes.upload[1], chosen)
        norms = np.asarray([sent[i][1] if i in sent else 0 for i in chosen], np.float32)
        counted = np.asarray([i in sent for i in chosen])
        numbers = np.asarray(chosen, np.int32)
        found, products = self._compare(state, uploads, numbers, norms, counted, before)
        in_line = {i: bool(valid) for i, valid in zip(chosen, np.asarray(found.valid), strict=True) if i in sent}
        why = {i: found.reason(place) for place, i in enumerate(chosen) if not in_line.get(i, True)}

        def responses(after: Tree) -> Responses | None:
            given = (found.responses, products, state, after, norms, numbers, counted)
            return jax.device_get(self._remember(*given))

        return Comparison(in_line, why, responses)

    def aggregate(
        self, state: Tree, uploads: wire.Trees, chosen: Sequence[int], sizes: np.ndarray, round_: int, stage: int
    ) -> Tree:
        """The server's next state, from the valid uploads of the selected clients.

        Stage 1 is the exchange before training, stage 0 training itself.
        """
        stacked = wire.stacked(uploads, self.shapes.upload[0 if stage else 1], chosen)
        numbers, valid = np.asarray(chosen, np.int32), np.asarray([i in uploads for i in chosen])
        cap = weight_cap(sizes[sizes > 0])
        after = self._aggregate(stage, state, stacked, numbers, sizes[numbers], valid, np.int32(round_), cap)
        return jax.device_get(after)

    def _aggregate_uploads(
        self,
        stage: int,
        state: Tree,
        uploads: Tree,
        numbers: Array,
        sizes: Array,
        valid: Array,
        round_: Array,
        cap: WeightCap,
    ) -> Tree:
        """Gathers and aggregates in one program, because a rule, being a function, cannot be an argument of one."""
        key = aggregation_key(self.key, round_, stage)
        gathered = self.plan.gather(uploads, numbers, sizes, valid, key, cap)
        server = self._varying.at(self.algorithm, {}, round_).server
        if stage:
            assert server.prepare is not None
            return server.prepare(state, gathered)
        return server.aggregate(state, gathered)
