"""The ClientApp: the client half of any algorithm, where the data is.

A SuperNode starts a new process for every message, so nothing is kept in memory: the client's state is in its home
(:mod:`pfedbred.flower.client_home`) and compiled programs are cached on its disk. It trains with the functions that the
simulation runs, and replies with the upload that the algorithm defines, with statistics, and with nothing else.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from pfedbred import algorithms, models
from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.algorithms.exchange import Received, received
from pfedbred.data.federation import Federation
from pfedbred.data.sources.hub import cache_folder
from pfedbred.engine import Plan, keep_programs, selection
from pfedbred.engine import metrics as metrics_
from pfedbred.engine.evaluation import Evaluator, Tallies
from pfedbred.engine.round import ClientRecord, Round, Shards, Shared, TrainedClient, new_record, shards_of
from pfedbred.errors import NoSamples, SettingError
from pfedbred.experiment.configuration import Experiment, field_names
from pfedbred.flower import client_data, tallies, wire
from pfedbred.flower import client_home as home_
from pfedbred.io.shapes import COUNT, Maybe
from pfedbred.runs.prediction import PERSONAL
from pfedbred.runs.saved_models import write_model
from pfedbred.types import Array, Tree

SERVER = "the server"


class ClientHalf:
    """The client half of an algorithm, compiled for one client's data.

    It is the simulation's round for a federation of one, whose server passes on what the client has received.
    """

    def __init__(self, experiment: Experiment, data: Federation, number: int) -> None:
        self.data, self.task = data, Task(models.get(experiment.model, data.shape, data.classes, data.words))
        self.algorithm: Algorithm = algorithms.make(experiment.algorithm, self.task, experiment.settings)
        passing_on = self.algorithm._replace(server=self.algorithm.server._replace(send=lambda message, i: message))
        plan = Plan(
            selection.fixed([0]),
            experiment.participation,
            batch_size=experiment.batch_size,
            metrics=metrics_.resolve(experiment.metrics, self.task.kind),
            diagnostics=experiment.diagnostics,
        )
        self._round, self._seed = Round(passing_on, plan, "in-turn", None), np.uint32(experiment.seed)
        self._shards = jax.tree.map(jnp.asarray, shards_of(data, np.asarray([number])))
        self._drawn = np.uint32(self.algorithm.client.draws * experiment.batch_size)
        self._evaluator = Evaluator(self.algorithm, self.task, data, self._shards.x, "in-turn", chosen=plan.metrics)
        self.shapes: Received = received(self.algorithm)
        self._train, self._prepare = jax.jit(self._train_one), jax.jit(self._prepare_one)
        self._model, self._tally = jax.jit(self._model_one), jax.jit(self._evaluator.tally)

    @property
    def record_shapes(self) -> ClientRecord:
        """Shapes and types of what the client keeps."""
        return jax.eval_shape(new_record, self.shapes.state)

    def new_record(self, message: Tree) -> ClientRecord:
        """The record of a client that has not taken part yet."""
        return new_record(self.algorithm.client.init(message))

    def train(self, message: Tree, record: ClientRecord) -> tuple[TrainedClient, ClientRecord]:
        """What its training gives, and its next record."""
        return jax.device_get(self._train(self._shards, self._seed, message, record))

    def prepare(self, message: Tree, record: ClientRecord) -> Tree:
        """Its upload in the exchange before training."""
        return jax.device_get(self._prepare(self._shards, self._seed, message, record))

    def model(self, message: Tree, record: ClientRecord) -> Tree:
        """Its P."""
        return jax.device_get(self._model(self._shards, self._seed, message, record))

    def tally(self, global_: Tree, personal: Tree) -> Tallies:
        """Each metric's statistics, of both models on training and test samples."""
        stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], personal)
        found = jax.device_get(self._tally(self._evaluator.sets, global_, stacked))
        return jax.tree.map(lambda leaf: leaf[0], found)

    def _train_one(
        self, shards: Shards, seed: Array, message: Tree, record: ClientRecord
    ) -> tuple[TrainedClient, ClientRecord]:
        trained = self._round.train_client(_shared(shards, seed, message), (jnp.int32(0), record))
        after = ClientRecord(trained.state, record.drawn + self._drawn, jnp.bool_(True), record.rejected)
        return trained, after

    def _prepare_one(self, shards: Shards, seed: Array, message: Tree, record: ClientRecord) -> Tree:
        return self._round.prepare_client(_shared(shards, seed, message), (jnp.int32(0), record))

    def _model_one(self, shards: Shards, seed: Array, message: Tree, record: ClientRecord) -> Tree:
        return self._round.model_client(_shared(shards, seed, message), (jnp.int32(0), record))


_built: dict[str, ClientHalf] = {}  # a process that handles several messages compiles once


def client_half(node: client_data.Node, experiment: Experiment, data: Federation, number: int) -> ClientHalf:
    """The client half of that experiment on that client's data; built once in a process."""
    key = json.dumps([client_data.digest(node.options), experiment.plain(), data.classes, data.labels, number])
    if key not in _built:
        _built[key] = ClientHalf(experiment, data, number)
    return _built[key]


def _shared(shards: Shards, seed: Array, message: Tree) -> Shared:
    return Shared(shards, jax.random.key(seed), message, {})


def _finite(value: Any) -> float | None:
    """JSON has no NaN."""
    return float(value) if np.isfinite(value) else None


class Order(NamedTuple):
    """A request, understood.

    Attributes:
      said: its facts.
      experiment: what is run.
      half: the algorithm's, compiled for this client.
      message: what the algorithm's server sends.
      folder: where the client keeps this run.
      record: of the client, at the start of the round.
      started: when the request came, by ``time.perf_counter``.
      tallies: the statistics of its models, if they are to be evaluated.
    """

    said: Mapping[str, Any]
    experiment: Experiment
    half: ClientHalf
    message: Tree
    folder: Path
    record: ClientRecord
    started: float
    tallies: Tallies | None = None

    def reply(self, facts: Mapping[str, Any] | None = None, **trees: Tree) -> RecordDict:
        """A reply with these facts and trees, beside what every reply has."""
        if self.tallies is not None:
            trees[tallies.NAME] = self.tallies
        return wire.content({"seconds": time.perf_counter() - self.started, **(facts or {})}, **trees)


class Participant:
    """A client that handles requests."""

    def __init__(self, context: Context) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several clients may share a GPU
        keep_programs(cache_folder() / "compiled")
        self.node = client_data.node(context.node_config, context.node_id)
        self.home = home_.Home(self.node.home)

    def meet(self, message: RecordDict) -> RecordDict:
        """Introduces itself: a name, and the shapes and sizes of its data, without any sample."""
        said = wire.facts(message, {"classes": COUNT, "labels": Maybe([str])}, SERVER)
        data, place = self._data(said["classes"], said["labels"])
        with _details_withheld("its folder cannot be used"):
            identity = self.home.identity()
        return wire.content(
            {
                "protocol": wire.PROTOCOL,
                "client": identity,
                "name": self.node.name,
                "number": place,
                "dataset": data.name,
                "shape": list(data.shape),
                "classes": data.classes,
                "labels": data.labels,
                "features": data.features,
                "words": data.text.count if data.text else None,
                "vocabulary": client_data.vocabulary_of(data),
                "train": len(data.train.y),
                "test": len(data.test.y),
            }
        )

    def prepare(self, message: RecordDict) -> RecordDict:
        """Uploads what the algorithm needs before training."""
        with self._understood(message) as order:
            upload = order.half.prepare(order.message, order.record)
        return order.reply(upload=upload)

    def train(self, message: RecordDict) -> RecordDict:
        """Trains for a round, keeps its state, and uploads what the algorithm defines if its upload is wanted."""
        with self._understood(message) as order:
            trained, after = order.half.train(order.message, order.record)
            kept = home_.Kept(order.said["round"], order.record, after)
            with _details_withheld("it cannot write into its folder"):
                home_.save(order.folder, kept)
        facts = {
            "update_norm": _finite(trained.norms.update),
            "reference_norm": _finite(trained.norms.reference),
            "info": {name: _finite(value) for name, value in trained.info.items()},
        }
        return order.reply(facts, upload=trained.upload) if order.said["upload"] else order.reply(facts)

    def evaluate(self, message: RecordDict) -> RecordDict:
        """Evaluates both models, and nothing else."""
        with self._understood(message) as order:
            return order.reply()

    def _tallies(self, global_: Tree, order: Order) -> Tallies:
        """Evaluates G and P, and writes P where ``pfedbred predict`` finds it."""
        half, done = order.half, order.said["round"] - 1
        personal = half.model(order.message, order.record)
        path, number = order.folder / PERSONAL, order.said["number"]
        with _details_withheld("it cannot write into its folder"):
            options = order.experiment.plain()
            write_model(path, personal, options, half.data, done, client=number, name=self.node.name)
        return half.tally(global_, personal)

    def _data(self, classes: int, labels: list[str] | None) -> tuple[Federation, int | None]:
        with _details_withheld("its data cannot be used"):
            data, place = client_data.load(self.node, self.home.folder)
            if data.text and data.text.vectors is not None:
                raise SettingError("word vectors from a file cannot be used on a federation: the server has no copy")
            return client_data.relabelled(data, classes or data.classes, labels), place

    @contextmanager
    def _understood(self, message: RecordDict) -> Iterator[Order]:
        """The request, understood, with the models evaluated if that is asked for. The home is locked meanwhile."""
        started = time.perf_counter()
        said = wire.facts(message, wire.ORDER, SERVER)
        options = {name: said["experiment"][name] for name in field_names(sent=True)}
        wire.refuse_objects(options)
        if isinstance(options["settings"].get("sigma"), str):
            raise SettingError("sigma cannot be a file on a federation: a server may not name files of its clients")
        data, _ = self._data(said["classes"], said["labels"])
        experiment = Experiment(dataset=data, **options).for_data(data)
        half = client_half(self.node, experiment, data, said["number"])
        received_message = wire.tree(message, "message", half.shapes.message, SERVER)
        with ExitStack() as stack:
            with _details_withheld("its folder cannot be used"):
                folder = stack.enter_context(self.home.holding(said["run"], said["deadline"]))
                kept = home_.load(folder, half.record_shapes)
            verdict = (said["verdict"]["round"], said["verdict"]["stands"]) if said["verdict"] else None
            synced = half.algorithm.client.synced
            record = kept.start(said["round"], verdict, synced) if kept else half.new_record(received_message)
            order = Order(said, experiment, half, received_message, folder, record, started)
            if said["evaluate"]:
                global_ = wire.tree(message, "global", half.shapes.global_, SERVER)
                order = order._replace(tallies=self._tallies(global_, order))
            yield order


app = ClientApp()


@contextmanager
def _details_withheld(reason: str) -> Iterator[None]:
    """Logs here what is wrong with the client's files; the server learns no more than the reason."""
    try:
        yield
    except NoSamples as problem:
        _log(str(problem))
        raise SettingError("it has no data") from None
    except SettingError as problem:
        _log(str(problem))
        raise SettingError(f"{reason}: see its own log") from None


def _log(text: str) -> None:
    print(f"pfedbred: {text}", flush=True)


def _reply(message: Message, context: Context, respond: Callable[[Participant, RecordDict], RecordDict]) -> Message:
    """The reply; a problem is reported in one line."""
    name = None
    try:
        participant = Participant(context)
        name = participant.node.name
        reply = respond(participant, message.content)
    except SettingError as problem:
        _log(str(problem))
        reply = wire.content({"problem": str(problem), "name": name})
    except Exception:  # its text may contain data
        traceback.print_exc()
        reply = wire.content({"problem": "it failed: see its own log", "name": name})
    return Message(reply, reply_to=message)


@app.query("meet")
def meet(message: Message, context: Context) -> Message:
    """Introduces the client."""
    return _reply(message, context, Participant.meet)


@app.query("prepare")
def prepare(message: Message, context: Context) -> Message:
    """The exchange before training."""
    return _reply(message, context, Participant.prepare)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains for a round."""
    return _reply(message, context, Participant.train)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluates both models."""
    return _reply(message, context, Participant.evaluate)
