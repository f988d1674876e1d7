"""The ClientApp: the client half of any algorithm, where the data are.

A SuperNode starts a new process for every message, so nothing is kept in memory: what the client keeps is in its home
(:mod:`pfedbred.flower.home`), and compiled programs are in a cache on its disk. It trains with the very functions that
the simulation runs, and answers with what the algorithm uploads, with counts, and with nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from pfedbred import algorithms, exports, models
from pfedbred.algorithm import Algorithm, Exchange, Task, exchange
from pfedbred.data.batches import Batch
from pfedbred.data.federation import Federation
from pfedbred.data.sources import cache_folder
from pfedbred.engine import Plan, keep_programs, selection
from pfedbred.engine.evaluation import Evaluator
from pfedbred.engine.health import Vitals
from pfedbred.engine.round import ClientRecord, Round, Shared, Shards, new_record, shards_of
from pfedbred.errors import SettingError
from pfedbred.experiment import Experiment
from pfedbred.flower import home as home_
from pfedbred.flower import local, wire
from pfedbred.reading import COUNT, Maybe
from pfedbred.types import Array, Tree

SERVER = "the server"
EXPERIMENT = {"model": str, "algorithm": str, "settings": dict, "batch_size": COUNT, "seed": COUNT}
ORDER = {
    "run": str,
    "round": COUNT,
    "number": COUNT,
    "verdict": Maybe({"round": COUNT, "stands": bool}),
    "experiment": EXPERIMENT,
    "classes": COUNT,
    "labels": Maybe([str]),
    "upload": bool,
}
"""What a server says with every message but the first."""


class Half:
    """The client half of an algorithm, compiled for one client's data.

    It is the simulation's own round, run for a federation of one, whose server sends on what has been received.
    """

    def __init__(self, experiment: Experiment, own: Federation, number: int) -> None:
        self.task = Task(models.get(experiment.model, own.shape, own.classes, own.words))
        self.algorithm: Algorithm = algorithms.make(experiment.algorithm, self.task, experiment.settings)
        passing_on = self.algorithm._replace(server=self.algorithm.server._replace(send=lambda message, i: message))
        plan = Plan(selection.fixed([0]), "sample", batch_size=experiment.batch_size)
        self.own = own
        self._round, self._seed = Round(passing_on, plan, "in-turn", None), np.uint32(experiment.seed)
        self._shards = jax.tree.map(jnp.asarray, shards_of(own, np.asarray([number])))
        self._drawn = np.uint32(self.algorithm.client.draws * experiment.batch_size)
        sample = Batch(jnp.asarray(own.inputs(own.train).take(np.arange(1))), jnp.asarray(own.train.y[:1]))
        self.shapes: Exchange = exchange(self.algorithm, self.task, sample)

    @property
    def record_shapes(self) -> ClientRecord:
        """Shapes and types of what the client keeps."""
        return jax.eval_shape(new_record, self.shapes.state)

    def new_record(self, message: Tree) -> ClientRecord:
        """Of a client that has not taken part yet."""
        return new_record(self.algorithm.client.init(message))

    def train(self, message: Tree, record: ClientRecord) -> tuple[Tree, ClientRecord, Vitals]:
        """Its upload, its next record, and how it is."""

        def train(shards: Shards, seed: Array, message: Tree, record: ClientRecord) -> Any:
            upload, state, vitals = self._round.train_client(_shared(shards, seed, message), (jnp.int32(0), record))
            return upload, ClientRecord(state, record.drawn + self._drawn, jnp.bool_(True), record.sick), vitals

        return self._call(train, message, record)

    def prepare(self, message: Tree, record: ClientRecord) -> Tree:
        """Its answer in the exchange before training."""

        def prepare(shards: Shards, seed: Array, message: Tree, record: ClientRecord) -> Tree:
            return self._round.prepare_client(_shared(shards, seed, message), (jnp.int32(0), record))

        return self._call(prepare, message, record)

    def model(self, message: Tree, record: ClientRecord) -> Tree:
        """Its P."""

        def model(shards: Shards, seed: Array, message: Tree, record: ClientRecord) -> Tree:
            return self._round.model_client(_shared(shards, seed, message), (jnp.int32(0), record))

        return self._call(model, message, record)

    def counts(self, global_: Tree, personal: Tree) -> dict[str, dict[str, float | None]]:
        """Correct predictions and the sum of losses of both models, on training and test samples."""
        evaluator = Evaluator(self.algorithm, self.task, self.own, self._shards.x, "in-turn")
        stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], personal)
        counts = jax.device_get(jax.jit(evaluator.count)(evaluator.samples, global_, stacked))
        return {
            name: {"correct": int(tally.correct[0]), "loss": _finite(tally.loss[0])}
            for name, tally in counts._asdict().items()
        }

    def _call(self, function: Callable[..., Any], message: Tree, record: ClientRecord) -> Any:
        return jax.device_get(jax.jit(function)(self._shards, self._seed, message, record))


def _shared(shards: Shards, seed: Array, message: Tree) -> Shared:
    return Shared(shards, jax.random.key(seed), message, {})


def _finite(value: Any) -> float | None:
    """JSON has no NaN."""
    return float(value) if np.isfinite(value) else None


class Order(NamedTuple):
    """What the server asks for, understood.

    Attributes:
      said: its facts.
      experiment: what is run.
      half: the algorithm's, compiled for this client.
      message: what the algorithm's server sends.
    """

    said: Mapping[str, Any]
    experiment: Experiment
    half: Half
    message: Tree

    def start(self, kept: home_.Kept | None, round_: int) -> ClientRecord:
        """The client's record at the start of a round."""
        if kept is None:
            return self.half.new_record(self.message)
        verdict = self.said["verdict"]
        told = (verdict["round"], verdict["stands"]) if verdict else None
        return kept.start(round_, told, self.half.algorithm.client.synced)


class Participant:
    """A client that answers messages."""

    def __init__(self, context: Context) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several clients may share a GPU
        keep_programs(cache_folder() / "compiled")
        self.node = local.node(context.node_config, context.node_id)
        self.home = home_.Home(self.node.home)

    def meet(self, message: RecordDict) -> RecordDict:
        """Says who it is and what its data look like: shapes and counts, no sample."""
        said = wire.facts(message, {"classes": COUNT, "labels": Maybe([str])}, SERVER)
        own, place = self._own(said["classes"], said["labels"])
        return wire.content(
            {
                "client": self.home.identity(),
                "name": self.node.name,
                "number": place,
                "dataset": own.name,
                "shape": list(own.shape),
                "classes": own.classes,
                "labels": own.labels,
                "words": own.text.count if own.text else None,
                "train": len(own.train.y),
                "test": len(own.test.y),
            }
        )

    def prepare(self, message: RecordDict) -> RecordDict:
        """Answers before training."""
        begun = time.perf_counter()
        order = self._order(message)
        with self.home.holding(order.said["run"]) as folder:
            record = order.start(home_.load(folder, order.half.record_shapes), order.said["round"])
            answer = order.half.prepare(order.message, record)
        return wire.content({"seconds": time.perf_counter() - begun}, upload=answer)

    def train(self, message: RecordDict) -> RecordDict:
        """Trains for a round, keeps what is its own, and uploads what the algorithm declares, if it is asked for it."""
        begun = time.perf_counter()
        order = self._order(message)
        with self.home.holding(order.said["run"]) as folder:
            record = order.start(home_.load(folder, order.half.record_shapes), order.said["round"])
            upload, after, vitals = order.half.train(order.message, record)
            home_.save(folder, home_.Kept(order.said["round"], record, after), order.experiment.algorithm)
        facts = {
            "moved": _finite(vitals.moved),
            "size": _finite(vitals.size),
            "seconds": time.perf_counter() - begun,
        }
        return wire.content(facts, upload=upload) if order.said["upload"] else wire.content(facts)

    def evaluate(self, message: RecordDict) -> RecordDict:
        """Counts what G and P get right, and puts P where ``pfedbred predict`` finds it."""
        begun = time.perf_counter()
        order = self._order(message)
        said, half = order.said, order.half
        global_ = wire.tree(message, "global", half.shapes.global_, SERVER)
        with self.home.holding(said["run"]) as folder:
            record = order.start(home_.load(folder, half.record_shapes), said["round"] + 1)
            personal = half.model(order.message, record)
            self._keep(folder / home_.PERSONAL, personal, order)
        counts = half.counts(global_, personal)
        sizes = {"train": len(half.own.train.y), "test": len(half.own.test.y)}
        return wire.content({**counts, **sizes, "seconds": time.perf_counter() - begun})

    def _keep(self, path: Path, personal: Tree, order: Order) -> None:
        number, round_ = order.said["number"], order.said["round"]
        exports.keep_one(path, personal, order.experiment, order.half.own, round_, client=number, name=self.node.name)

    def _own(self, classes: int, labels: list[str] | None) -> tuple[Federation, int | None]:
        own, place = local.own_data(self.node, self.home.folder)
        return local.relabelled(own, classes or own.classes, labels), place

    def _order(self, message: RecordDict) -> Order:
        said = wire.facts(message, ORDER, SERVER)
        wanted = said["experiment"]
        if isinstance(wanted["settings"].get("sigma"), str):
            raise SettingError("sigma by a file is not for a federation: a server names no files on its clients")
        own, _ = self._own(said["classes"], said["labels"])
        experiment = Experiment(
            dataset=own.name,
            model=wanted["model"],
            algorithm=wanted["algorithm"],
            settings=wanted["settings"],
            batch_size=wanted["batch_size"],
            seed=wanted["seed"],
        ).resolved(own)
        half = Half(experiment, own, said["number"])
        return Order(said, experiment, half, wire.tree(message, "message", half.shapes.message, SERVER))


app = ClientApp()


def _answer(message: Message, context: Context, respond: Callable[[Participant, RecordDict], RecordDict]) -> Message:
    """The reply; what the client cannot do is said in one line."""
    try:
        reply = respond(Participant(context), message.content)
    except SettingError as problem:
        print(f"pfedbred: {problem}", flush=True)
        reply = wire.content({"problem": str(problem)})
    return Message(reply, reply_to=message)


@app.query("meet")
def meet(message: Message, context: Context) -> Message:
    """Answers who it is."""
    return _answer(message, context, Participant.meet)


@app.query("prepare")
def prepare(message: Message, context: Context) -> Message:
    """Answers before training."""
    return _answer(message, context, Participant.prepare)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains for a round."""
    return _answer(message, context, Participant.train)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluates both models."""
    return _answer(message, context, Participant.evaluate)
