"""The ClientApp: the client half of any algorithm, where the data is.

A SuperNode starts a new process for every message, so nothing is kept in memory: the client's state is in its home
(:mod:`pfedbred.flower.client_home`) and compiled programs are cached on its disk. It trains with the functions that a
simulation runs, and replies with the upload that the algorithm defines and with statistics, nothing else.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from pfedbred.data.federation import Federation
from pfedbred.data.sources.hub import cache_folder
from pfedbred.engine import keep_programs
from pfedbred.engine.round import ClientRecord
from pfedbred.engine.scores import Tallies
from pfedbred.errors import NoSamples, SettingError
from pfedbred.experiment import sigma
from pfedbred.experiment.configuration import Experiment, field_names
from pfedbred.flower import client_data, tallies, wire
from pfedbred.flower import client_home as home_
from pfedbred.flower.client_half import ClientHalf
from pfedbred.flower.introductions import too_few
from pfedbred.io.shapes import COUNT, FRACTION, NUMBER, Maybe, expect
from pfedbred.io.strict import finite_or_none
from pfedbred.runs.prediction import PERSONAL
from pfedbred.runs.saved_models import write_model
from pfedbred.tasks import Target
from pfedbred.types import Tree

SERVER = "the server"


_built: dict[str, ClientHalf] = {}  # a process that handles several messages compiles once


def client_half(
    node: client_data.Node, experiment: Experiment, data: Federation, number: int, target: Target | None
) -> ClientHalf:
    """The client half of an experiment on a client's data; built once per process."""
    facts = [client_data.digest(node.options), experiment.plain(), data.classes, data.labels, number, target]
    key = json.dumps(facts)
    if key not in _built:
        _built[key] = ClientHalf(experiment, data, number, target)
    return _built[key]


class Order(NamedTuple):
    """A parsed request.

    Attributes:
      said: the request's facts.
      experiment: the experiment to run.
      half: the algorithm's client half, compiled for this client.
      message: the message from the algorithm's server half.
      folder: where the client keeps this run.
      record: the client's record at the start of the round.
      started: when the request arrived, by ``time.perf_counter``.
      tallies: the statistics of its models, if an evaluation was requested.
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
        """A reply with these facts and trees, and those of every reply."""
        if self.tallies is not None:
            trees[tallies.NAME] = self.tallies
        return wire.content({"seconds": time.perf_counter() - self.started, **(facts or {})}, **trees)


class Participant:
    """A client that handles requests."""

    def __init__(self, context: Context) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several clients may share a GPU
        keep_programs(cache_folder() / "compiled")
        self.node = client_data.node(context.node_config, context.node_id)
        with _details_withheld("its folder cannot be used"):
            self.home = home_.Home(self.node.home)

    def meet(self, message: RecordDict) -> RecordDict:
        """Introduces itself: a name, and the shapes and sizes of its data, without any sample."""
        said = wire.facts(message, {"classes": COUNT, "labels": Maybe([str])}, SERVER)
        fraction = said.get("validation")  # missing from earlier servers, like min_samples below
        expect(fraction, Maybe(FRACTION), SERVER, "'validation'")
        data, place = self._data(said["classes"], said["labels"], said.get("task"), fraction)
        data = client_data.with_validation(data, self.node, fraction, place or 0)
        few = too_few(len(data.train.y), said.get("min_samples", 1))  # missing from earlier servers
        if few:
            raise SettingError(few)
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
                **{part: len(split.y) for part, split in data.parts.items()},
                "task": data.task,
                "target": data.target and data.target._asdict(),
            }
        )

    def prepare(self, message: RecordDict) -> RecordDict:
        """Uploads what the algorithm asks for before training."""
        with self._understood(message) as order:
            upload = order.half.prepare(order.message, order.record, order.said["round"] - 1)
        return order.reply(upload=upload)

    def train(self, message: RecordDict) -> RecordDict:
        """Trains for a round, saves its state, and uploads what the algorithm defines if the server asks for it."""
        with self._understood(message) as order:
            trained, after = order.half.train(order.message, order.record, order.said["round"] - 1)
            kept = home_.HomeState(order.said["round"], order.record, after)
            with _details_withheld("it cannot save its state", unable=True):
                home_.save(order.folder, kept)
        facts = {
            "update_norm": finite_or_none(float(trained.norms.update)),
            "reference_norm": finite_or_none(float(trained.norms.reference)),
            "info": {name: finite_or_none(float(value)) for name, value in trained.info.items()},
        }
        return order.reply(facts, upload=trained.upload) if order.said["upload"] else order.reply(facts)

    def evaluate(self, message: RecordDict) -> RecordDict:
        """Evaluates both models, and nothing else."""
        with self._understood(message) as order:
            return order.reply()

    def keep(self, message: RecordDict) -> RecordDict:
        """Keeps the latest personal model if its round was chosen."""
        said = wire.facts(message, {"run": str, "chosen": COUNT, "deadline": NUMBER}, SERVER)
        with (
            _details_withheld("it cannot save its model", unable=True),
            self.home.holding(said["run"], said["deadline"]) as folder,
        ):
            home_.keep_chosen(folder, said["chosen"])
        return wire.content({})

    def _tallies(self, global_: Tree, order: Order) -> Tallies:
        """Evaluates G and P, and writes P where ``pfedbred predict`` finds it.

        With validation samples, P waits beside the best one so far until the server has compared them.
        """
        half, said, names = order.half, order.said, [PERSONAL]
        validated, done = bool(order.experiment.validation), said["round"] - 1
        personal = half.model(order.message, order.record, done)
        whose = {"client": said["number"], "name": self.node.name, "chosen": validated}
        with _details_withheld("it cannot save its model", unable=True):
            if validated:
                home_.keep_chosen(order.folder, said["chosen"])
                names = [home_.LATEST] if (order.folder / PERSONAL).exists() else [home_.LATEST, PERSONAL]
            options = order.experiment.plain(by_name=True)
            for name in names:
                write_model(order.folder / name, personal, options, half.data, done, half.task, **whose)
        return half.tally(global_, personal)

    def _data(
        self, classes: int, labels: list[str] | None, task: str | None, validation: float | None
    ) -> tuple[Federation, int | None]:
        with _details_withheld("its data cannot be used"):
            data, place = client_data.load(self.node, self.home.folder, task, validation)
            if data.text and data.text.vectors is not None:
                raise SettingError(
                    "word vectors from a file cannot be used on a federation, because the server has no copy: "
                    "learn them, as in sent140(learned)"
                )
            return client_data.relabelled(data, classes or data.classes, labels), place

    @contextmanager
    def _understood(self, message: RecordDict) -> Iterator[Order]:
        """The parsed request, with the models evaluated if requested. The home is locked within the block."""
        started = time.perf_counter()
        said = wire.facts(message, wire.ORDER, SERVER)
        options = {name: said["experiment"][name] for name in field_names(sent=True)}
        wire.refuse_objects(options)
        if sigma.is_path(options["settings"].get("sigma")):
            raise SettingError("sigma cannot be a file on a federation: a server may not name files of its clients")
        data, _ = self._data(said["classes"], said["labels"], options["task"], options["validation"])
        data = client_data.with_validation(data, self.node, options["validation"], said["number"])
        experiment = Experiment(dataset=data, **options).for_data(data)
        target = None if said["target"] is None else Target(**said["target"])
        half = client_half(self.node, experiment, data, said["number"], target)
        received_message = wire.tree(message, "message", half.shapes.message, SERVER)
        with ExitStack() as stack:
            with _details_withheld("its folder cannot be used", unable=True):
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


class _Withheld(SettingError):
    """A problem with the client's files, for its own log; ``told`` is what the server learns of it."""

    def __init__(self, problem: SettingError, told: Mapping[str, Any]) -> None:
        super().__init__(str(problem))
        self.told = told


@contextmanager
def _details_withheld(reason: str, **facts: bool) -> Iterator[None]:
    """Of problems with the client's files, the server learns only the reason and these facts."""
    try:
        yield
    except SettingError as problem:
        told = "it has no data" if isinstance(problem, NoSamples) else f"{reason}: see its own log"
        raise _Withheld(problem, {"problem": told, **facts}) from None


def _log(text: str) -> None:
    print(f"pfedbred: {text}", flush=True)


def _reply(respond: Callable[[Participant, RecordDict], RecordDict], message: Message, context: Context) -> Message:
    """The reply; problems are reported in one line."""
    name = None
    try:
        participant = Participant(context)
        name = participant.node.name
        reply = respond(participant, message.content)
    except SettingError as problem:
        _log(str(problem))
        told = problem.told if isinstance(problem, _Withheld) else {"problem": str(problem)}
        reply = wire.content({**told, "name": name})
    except Exception:  # its text may contain data
        traceback.print_exc()
        reply = wire.content({"problem": "it failed: see its own log", "name": name})
    return Message(reply, reply_to=message)


app = ClientApp()
app.query("meet")(partial(_reply, Participant.meet))
app.query("keep")(partial(_reply, Participant.keep))
app.query("prepare")(partial(_reply, Participant.prepare))
app.train()(partial(_reply, Participant.train))
app.evaluate()(partial(_reply, Participant.evaluate))
