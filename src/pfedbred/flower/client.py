"""The ClientApp: the client half of any algorithm, where the data are.

A SuperNode starts a new process for every message, so nothing is kept in memory: the client's state is in its home
(:mod:`pfedbred.flower.client_home`) and compiled programs are cached on its disk. It trains with the functions that the
simulation runs, and answers with the upload that the algorithm defines, with counts, and with nothing else.
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
from pfedbred.algorithms.base import Algorithm, Received, Task, received
from pfedbred.data.federation import Federation
from pfedbred.data.sources.hub import cache_folder
from pfedbred.engine import Plan, keep_programs, selection
from pfedbred.engine.evaluation import Evaluator
from pfedbred.engine.round import ClientRecord, Round, Shards, Shared, new_record, shards_of
from pfedbred.engine.screening import Vitals
from pfedbred.errors import NoSamples, SettingError
from pfedbred.experiment.configuration import Experiment
from pfedbred.flower import client_data, wire
from pfedbred.flower import client_home as home_
from pfedbred.io.shapes import COUNT, Maybe
from pfedbred.runs import records, saved_models
from pfedbred.runs.prediction import PERSONAL
from pfedbred.types import Array, Tree

SERVER = "the server"


class Half:
    """The client half of an algorithm, compiled for one client's data.

    It is the simulation's own round, run for a federation of one, whose server sends on what has been received.
    """

    def __init__(self, experiment: Experiment, own: Federation, number: int) -> None:
        self.own, self.task = own, Task(models.get(experiment.model, own.shape, own.classes, own.words))
        self.algorithm: Algorithm = algorithms.make(experiment.algorithm, self.task, experiment.settings)
        passing_on = self.algorithm._replace(server=self.algorithm.server._replace(send=lambda message, i: message))
        plan = Plan(selection.fixed([0]), experiment.participation, batch_size=experiment.batch_size)
        self._round, self._seed = Round(passing_on, plan, "in-turn", None), np.uint32(experiment.seed)
        self._shards = jax.tree.map(jnp.asarray, shards_of(own, np.asarray([number])))
        self._drawn = np.uint32(self.algorithm.client.draws * experiment.batch_size)
        self._evaluator = Evaluator(self.algorithm, self.task, own, self._shards.x, "in-turn")
        self.shapes: Received = received(self.algorithm)
        self._train, self._prepare = jax.jit(self._train_one), jax.jit(self._prepare_one)
        self._model, self._count = jax.jit(self._model_one), jax.jit(self._evaluator.count)

    @property
    def record_shapes(self) -> ClientRecord:
        """Shapes and types of what the client keeps."""
        return jax.eval_shape(new_record, self.shapes.state)

    def new_record(self, message: Tree) -> ClientRecord:
        """Of a client that has not taken part yet."""
        return new_record(self.algorithm.client.init(message))

    def train(self, message: Tree, record: ClientRecord) -> tuple[Tree, ClientRecord, Vitals]:
        """Its upload, its next record, and how it is."""
        return jax.device_get(self._train(self._shards, self._seed, message, record))

    def prepare(self, message: Tree, record: ClientRecord) -> Tree:
        """Its answer in the exchange before training."""
        return jax.device_get(self._prepare(self._shards, self._seed, message, record))

    def model(self, message: Tree, record: ClientRecord) -> Tree:
        """Its P."""
        return jax.device_get(self._model(self._shards, self._seed, message, record))

    def counts(self, global_: Tree, personal: Tree) -> dict[str, dict[str, float | None]]:
        """Correct predictions and the sum of losses of both models, on training and test samples."""
        stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], personal)
        counts = jax.device_get(self._count(self._evaluator.samples, global_, stacked))
        return {
            name: {"correct": int(tally.correct[0]), "loss": _finite(tally.loss[0])}
            for name, tally in counts._asdict().items()
        }

    def _train_one(self, shards: Shards, seed: Array, message: Tree, record: ClientRecord) -> Any:
        upload, state, vitals = self._round.train_client(_shared(shards, seed, message), (jnp.int32(0), record))
        return upload, ClientRecord(state, record.drawn + self._drawn, jnp.bool_(True), record.sick), vitals

    def _prepare_one(self, shards: Shards, seed: Array, message: Tree, record: ClientRecord) -> Tree:
        return self._round.prepare_client(_shared(shards, seed, message), (jnp.int32(0), record))

    def _model_one(self, shards: Shards, seed: Array, message: Tree, record: ClientRecord) -> Tree:
        return self._round.model_client(_shared(shards, seed, message), (jnp.int32(0), record))


_made: dict[str, Half] = {}  # in a process that answers more than one message, each is compiled once


def half_of(node: client_data.Node, experiment: Experiment, own: Federation, number: int) -> Half:
    """The client half of that experiment on that client's data; made once in a process."""
    facts = [node.name, str(node.home), dict(node.options), records.plain(experiment), own.classes, own.labels, number]
    key = json.dumps(facts)
    if key not in _made:
        _made[key] = Half(experiment, own, number)
    return _made[key]


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
      folder: what the client keeps of this run.
      record: of the client, at the start of the round.
      begun: when the message came, by ``time.perf_counter``.
      scores: how good its models are, if that was asked for.
    """

    said: Mapping[str, Any]
    experiment: Experiment
    half: Half
    message: Tree
    folder: Path
    record: ClientRecord
    begun: float
    scores: dict[str, Any] | None = None

    def facts(self) -> dict[str, Any]:
        """What every answer says."""
        scores = {"scores": self.scores} if self.scores else {}
        return {"seconds": time.perf_counter() - self.begun, **scores}


class Participant:
    """A client that answers messages."""

    def __init__(self, context: Context) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several clients may share a GPU
        keep_programs(cache_folder() / "compiled")
        self.node = client_data.node(context.node_config, context.node_id)
        self.home = home_.Home(self.node.home)

    def meet(self, message: RecordDict) -> RecordDict:
        """Says who it is and what its data look like: shapes and counts, no sample."""
        said = wire.facts(message, {"classes": COUNT, "labels": Maybe([str])}, SERVER)
        own, place = self._own(said["classes"], said["labels"])
        with _withheld("its folder cannot be used"):
            identity = self.home.identity()
        return wire.content(
            {
                "client": identity,
                "name": self.node.name,
                "number": place,
                "dataset": own.name,
                "shape": list(own.shape),
                "classes": own.classes,
                "labels": own.labels,
                "features": own.features,
                "words": own.text.count if own.text else None,
                "vocabulary": client_data.vocabulary_of(own),
                "train": len(own.train.y),
                "test": len(own.test.y),
            }
        )

    def prepare(self, message: RecordDict) -> RecordDict:
        """Answers before training."""
        with self._ordered(message) as order:
            answer = order.half.prepare(order.message, order.record)
        return wire.content(order.facts(), upload=answer)

    def train(self, message: RecordDict) -> RecordDict:
        """Trains for a round, keeps what is its own, and uploads what the algorithm declares, if it is asked for it."""
        with self._ordered(message) as order:
            upload, after, vitals = order.half.train(order.message, order.record)
            kept = home_.Kept(order.said["round"], order.record, after)
            with _withheld("it cannot write into its folder"):
                home_.save(order.folder, kept)
        facts = {**order.facts(), "moved": _finite(vitals.moved), "size": _finite(vitals.size)}
        return wire.content(facts, upload=upload) if order.said["upload"] else wire.content(facts)

    def evaluate(self, message: RecordDict) -> RecordDict:
        """Says how good the models are, and nothing else."""
        with self._ordered(message) as order:
            return wire.content(order.facts())

    def _scores(self, global_: Tree, order: Order) -> dict[str, Any]:
        """Counts what G and P get right, and puts P where ``pfedbred predict`` finds it."""
        half, done = order.half, order.said["round"] - 1
        personal = half.model(order.message, order.record)
        path, number = order.folder / PERSONAL, order.said["number"]
        with _withheld("it cannot write into its folder"):
            saved_models.keep_one(path, personal, order.experiment, half.own, done, client=number, name=self.node.name)
        return {**half.counts(global_, personal), "train": len(half.own.train.y), "test": len(half.own.test.y)}

    def _own(self, classes: int, labels: list[str] | None) -> tuple[Federation, int | None]:
        with _withheld("its data cannot be used"):
            own, place = client_data.own_data(self.node, self.home.folder)
            if own.text and own.text.vectors is not None:
                raise SettingError("word vectors from a file are not for a federation: the server does not have them")
            return client_data.relabelled(own, classes or own.classes, labels), place

    @contextmanager
    def _ordered(self, message: RecordDict) -> Iterator[Order]:
        """What the server asks for, understood; its models evaluated, if they are to be. The home is held meanwhile."""
        begun = time.perf_counter()
        said = wire.facts(message, wire.ORDER, SERVER)
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
            participation=wanted["participation"],
        ).resolved(own)
        half = half_of(self.node, experiment, own, said["number"])
        sent = wire.tree(message, "message", half.shapes.message, SERVER)
        with ExitStack() as stack:
            with _withheld("its folder cannot be used"):
                folder = stack.enter_context(self.home.holding(said["run"], said["deadline"]))
                kept = home_.load(folder, half.record_shapes)
            verdict = (said["verdict"]["round"], said["verdict"]["stands"]) if said["verdict"] else None
            synced = half.algorithm.client.synced
            record = kept.start(said["round"], verdict, synced) if kept else half.new_record(sent)
            order = Order(said, experiment, half, sent, folder, record, begun)
            if said["evaluate"]:
                global_ = wire.tree(message, "global", half.shapes.global_, SERVER)
                order = order._replace(scores=self._scores(global_, order))
            yield order


app = ClientApp()


@contextmanager
def _withheld(reason: str) -> Iterator[None]:
    """What goes wrong with a client's own files is told in its own log; the server learns no more than the reason."""
    try:
        yield
    except NoSamples as problem:
        _say(str(problem))
        raise SettingError("it has no data") from None
    except SettingError as problem:
        _say(str(problem))
        raise SettingError(f"{reason}: its own log says more") from None


def _say(text: str) -> None:
    print(f"pfedbred: {text}", flush=True)


def _answer(message: Message, context: Context, respond: Callable[[Participant, RecordDict], RecordDict]) -> Message:
    """The reply; what the client cannot do is said in one line."""
    name = None
    try:
        participant = Participant(context)
        name = participant.node.name
        reply = respond(participant, message.content)
    except SettingError as problem:
        _say(str(problem))
        reply = wire.content({"problem": str(problem), "name": name})
    except Exception:  # its text could hold anything that was in the data
        traceback.print_exc()
        reply = wire.content({"problem": "it failed: its own log says more", "name": name})
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
