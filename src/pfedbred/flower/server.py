"""The ServerApp: the server half of any algorithm, where the averages are made.

A round is the simulation's: the same clients are chosen, the same uploads are left out, the same weights and the same
server half make the next state. What is different is that a client may be late, or gone, or send nonsense.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from pfedbred import aggregation, algorithms, checkpoints, exports, models, records, tensors
from pfedbred import settings as settings_
from pfedbred.algorithm import Exchange, Task, exchange
from pfedbred.console import show_outcome, tell_of_sick_clients, warn_of_divergence, watching
from pfedbred.data.batches import Batch
from pfedbred.engine import Plan, health, selection
from pfedbred.engine.evaluation import Counts, Evaluation, Tally, summarise
from pfedbred.engine.round import enough
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment import Experiment
from pfedbred.flower import wire
from pfedbred.flower.asking import Answer, ask
from pfedbred.flower.roster import INTRODUCTION, MEMBER, SCHEMA, Description, Roster
from pfedbred.keeping import one_line, opened, refuse_changes
from pfedbred.keys import init_key, select_key
from pfedbred.metrics import Metrics, read_points, size_of
from pfedbred.reading import COUNT, NUMBER, Maybe, expect
from pfedbred.report import curves
from pfedbred.running import Point, Run
from pfedbred.types import Tree

_OF_EXPERIMENT = (
    "algorithm",
    "model",
    "rounds",
    "seed",
    "participation",
    "aggregated",
    "select",
    "weights",
    "aggregate",
    "outliers",
    "batch-size",
    "eval-every",
)
_ANSWERED = {"seconds": NUMBER}
_TRAINED = {**_ANSWERED, "moved": Maybe(NUMBER), "size": Maybe(NUMBER)}
_TALLY = {"correct": COUNT, "loss": Maybe(NUMBER)}
_COUNTED = {**dict.fromkeys(Counts._fields, _TALLY), "train": COUNT, "test": COUNT}
_FACTS = {
    "run": str,
    "experiment": dict,
    "roster": {"clients": COUNT, "members": dict, "schema": SCHEMA},
    "metrics": COUNT,
    "seconds": NUMBER,
    "round_seconds": [NUMBER],
    "client_seconds": [NUMBER],
    "left_out": dict,
    "skipped": COUNT,
    "in_row": COUNT,
    "verdicts": dict,
}


@dataclass(frozen=True)
class Options:
    """What the run config says, beside the experiment.

    Attributes:
      out: the run folder, on the server's machine.
      clients: how many there will be; None for those that are there at the start.
      min_clients: how many must be there for a round to begin.
      deadline: seconds that clients have for an answer.
      classes: number of labels; 0 for what the clients say.
      labels: their names, if clients are to number them alike.
    """

    out: Path
    clients: int | None
    min_clients: int
    deadline: float
    classes: int
    labels: list[str] | None


def understood(config: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """The run config: options of the server, and fields of the experiment. 0 and "" stand for what is not given."""
    own = ("out", "clients", "min-clients", "deadline", "classes", "labels", "settings")
    for name in config:
        if name not in (*own, *_OF_EXPERIMENT):
            raise SettingError(f"the run config has an unknown key {name!r}{nearest(name, (*own, *_OF_EXPERIMENT))}")
    given = {name: value for name, value in config.items() if value not in ("", 0) or name == "seed"}

    def number(name: str, hint: Any, default: Any) -> Any:
        return settings_.check(name, given[name], hint) if name in given else default

    if not isinstance(given.get("out"), str):
        raise SettingError("the run config needs out=..., the folder for the run on the server's machine")
    clients = number("clients", settings_.Count, None)
    labels = str(given["labels"]).split(",") if "labels" in given else None
    options = Options(
        Path(given["out"]).expanduser(),
        clients,
        number("min-clients", settings_.Count, clients or 2),
        number("deadline", settings_.Positive, 600.0),
        number("classes", settings_.Count, len(labels) if labels else 0),
        labels,
    )
    if clients is not None and options.min_clients > clients:
        raise SettingError(f"min-clients must be at most clients, {clients}, not {options.min_clients}")
    fields = {name.replace("-", "_"): given[name] for name in _OF_EXPERIMENT if name in given}
    fields["settings"] = dict(map(settings_.assignment, str(given.get("settings", "")).split()))
    return options, fields


@dataclass
class Progress:
    """All that has to be known to go on with a run after its last whole round.

    Attributes:
      run: its number, which it has for ever.
      round: how many are done.
      state: of the algorithm's server.
      points: its evaluations.
      seconds: that it has taken.
      round_seconds: of each round, clients and all.
      client_seconds: of each round, what the slowest client took for its own work.
      left_out: clients by name, and in how many rounds they were left out.
      skipped: rounds without enough sound clients.
      in_row: how many of those are the last ones.
      verdicts: by client's number, the last round it was asked to train in, and whether its work stands.
    """

    run: str
    round: int
    state: Tree
    points: list[Point]
    seconds: float = 0.0
    round_seconds: list[float] = field(default_factory=list)
    client_seconds: list[float] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    in_row: int = 0
    verdicts: dict[int, tuple[int, bool]] = field(default_factory=dict)

    def health(self) -> health.Health:
        """As the simulation tells it."""
        return health.Health([dict(self.left_out)], [self.skipped], [self.in_row])


class Halves:
    """The server half of an algorithm, compiled; and the shapes of all that is exchanged."""

    def __init__(self, experiment: Experiment, data: Description) -> None:
        self.experiment, self.data = experiment, data
        self.task = Task(models.get(experiment.model, data.shape, data.classes, data.words))
        self.algorithm = algorithms.make(experiment.algorithm, self.task, experiment.settings)
        rule = aggregation.Rule(experiment.aggregate, experiment.outliers)
        rule.suits(self.algorithm.server.averages, experiment.algorithm)
        self.plan = Plan(
            selection.uniform(1), experiment.participation, experiment.weights, experiment.batch_size, rule=rule
        )
        kind = jnp.int32 if data.words else jnp.float32
        sample = Batch(jnp.zeros((1, *data.shape), kind), jnp.zeros(1, jnp.int32))
        self.shapes: Exchange = exchange(self.algorithm, self.task, sample)
        server = self.algorithm.server
        self.alike = server.welcome is None  # everyone is sent the same
        self.send, self.model = jax.jit(server.send), jax.jit(server.model)
        self._aggregate = jax.jit(server.aggregate)
        self._prepare = jax.jit(server.prepare) if server.prepare else None
        self._gathered = jax.jit(self.plan.gathered)
        self._examine = jax.jit(
            lambda message, upload: health.examine(self.algorithm.client.unmoved(message), upload, ())
        )

    def init(self) -> Tree:
        """The server's state before the first round."""
        key = init_key(jax.random.key(np.uint32(self.experiment.seed)))
        return jax.jit(self.algorithm.server.init, static_argnums=1)(key, self.data.clients)

    @property
    def asks_before(self) -> bool:
        """Whether there is an exchange before training."""
        return bool(self.algorithm.client.prepare and self.algorithm.server.prepare)

    def choose(self, round_: int, present: Sequence[int], sizes: np.ndarray) -> list[int]:
        """Whose uploads a round averages: those that the simulation would choose, among those who are there."""
        experiment = self.experiment
        fixed = experiment.fixed_clients()
        if fixed is not None:
            return [number for number in fixed if number in present]
        assert experiment.aggregated is not None
        select = selection.get(str(experiment.select), min(experiment.aggregated, len(present)))
        key = select_key(jax.random.key(np.uint32(experiment.seed)), round_)
        return [present[int(place)] for place in select(key, jnp.asarray(sizes[list(present)]))]

    def vitals(self, message: Tree, upload: Tree) -> health.Vitals:
        """How a client is, by what it was sent and what it has sent."""
        return self._examine(message, upload)

    def learn(self, state: Tree, uploads: Mapping[int, Tree], chosen: Sequence[int], sizes: np.ndarray) -> Tree:
        """The server's next state."""
        return self._aggregate(state, self._taken_in(uploads, self.shapes.upload[1], chosen, sizes))

    def learn_before(self, state: Tree, answers: Mapping[int, Tree], chosen: Sequence[int], sizes: np.ndarray) -> Tree:
        """The server's state after the exchange before training."""
        assert self._prepare is not None
        return self._prepare(state, self._taken_in(answers, self.shapes.upload[0], chosen, sizes))

    def _taken_in(self, uploads: Mapping[int, Tree], like: Tree, chosen: Sequence[int], sizes: np.ndarray) -> Any:
        """The uploads of the chosen, one after another; zeros where there is none."""
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(uploads.get(i, nothing) for i in chosen))
        numbers = np.asarray(chosen, np.int32)
        taken = np.asarray([i in uploads for i in chosen])
        return self._gathered(stacked, numbers, sizes[numbers], taken)


class Coordinator:
    """Runs an experiment over a grid, into a run folder."""

    def __init__(self, grid: Any, options: Options, fields: Mapping[str, Any]) -> None:
        self._grid, self._options, self._fields = grid, options, dict(fields)
        self._roster = Roster(options.clients, self._say)
        self._folder = options.out
        self._metrics: Metrics | None = None

    def _say(self, text: str) -> None:
        print(f"pfedbred: {text}", flush=True)

    # The whole run ----------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """From the start, or from the last round that was saved, to the end. Returns the summary."""
        with opened(self._folder, resume=True), one_line(self._folder):
            if (self._folder / "summary.json").exists():
                raise SettingError(f"{self._folder} holds a finished run: choose another folder for out")
            found = checkpoints.latest(self._folder, self._say, self._fits)
            if found:
                self._roster.restore(found.facts["roster"])
            self._gather()
            self._roster.close()
            halves = self._halves()
            progress, size = self._begin(halves) if found is None else self._resumed(halves, found)
            self._metrics = Metrics(self._folder, keep=size)
            try:
                return self._rounds(halves, progress)
            finally:
                self._metrics.close()

    def _fits(self, found: checkpoints.Checkpoint) -> None:
        expect(found.facts, _FACTS, found.path)
        expect(list(found.facts["roster"]["members"].values()), [MEMBER], found.path)
        if found.facts["metrics"] > size_of(self._folder):
            raise tensors.Damaged(f"metrics.jsonl is shorter than when {found.path} was written")

    def _halves(self) -> Halves:
        data = self._roster.description()
        experiment = Experiment(**{"dataset": data.name, **self._fields}).resolved(data)  # type: ignore[arg-type]
        return Halves(experiment, data)

    def _begin(self, halves: Halves) -> tuple[Progress, int]:
        records.write_config(self._folder, records.plain(halves.experiment), "run")
        progress = Progress(secrets.token_hex(8), 0, jax.device_get(halves.init()), [])
        self._save(halves, progress, 0)
        return progress, 0

    def _resumed(self, halves: Halves, found: checkpoints.Checkpoint) -> tuple[Progress, int]:
        facts = found.facts
        refuse_changes(self._folder, records.plain(halves.experiment), facts["experiment"])
        state = tensors.refill(jax.eval_shape(halves.init), found.arrays, str(found.path))
        self._say(f"going on after round {found.round} of {halves.experiment.rounds}")
        checkpoints.forget_after(self._folder, found.round)
        progress = Progress(
            facts["run"],
            found.round,
            jax.tree.map(np.array, state),
            read_points(self._folder, facts["metrics"]),
            facts["seconds"],
            facts["round_seconds"],
            facts["client_seconds"],
            Counter(facts["left_out"]),
            facts["skipped"],
            facts["in_row"],
            {int(number): (said[0], said[1]) for number, said in facts["verdicts"].items()},
        )
        return progress, facts["metrics"]

    def _rounds(self, halves: Halves, progress: Progress) -> dict[str, Any]:
        experiment = halves.experiment
        begun = time.monotonic() - progress.seconds
        diverged: int | None = None
        earlier = health.total([point.health for point in progress.points], 1)
        with watching([experiment]) as (watch,):
            while progress.round < experiment.rounds and diverged is None:
                started = time.monotonic()
                self._gather()
                self._one_round(halves, progress)
                progress.round_seconds.append(time.monotonic() - started)
                if progress.round == experiment.rounds or progress.round % experiment.eval_every == 0:
                    scores, now = self._evaluate(halves, progress), progress.health()
                    progress.points.append(Point(progress.round, time.monotonic() - begun, scores, now.since(earlier)))
                    earlier = now
                    assert self._metrics is not None
                    self._metrics.write(progress.points[-1])
                    watch(progress.points[-1])
                    if np.all(health.astray(scores, now.in_row, experiment.rounds)):
                        diverged = progress.round
                progress.seconds = time.monotonic() - begun
                assert self._metrics is not None
                self._save(halves, progress, self._metrics.settle())
        return self._finish(halves, progress, diverged)

    def _save(self, halves: Halves, progress: Progress, metrics: int) -> None:
        facts = {
            "run": progress.run,
            "experiment": records.plain(halves.experiment),
            "roster": self._roster.facts(),
            "metrics": metrics,
            "seconds": progress.seconds,
            "round_seconds": progress.round_seconds,
            "client_seconds": progress.client_seconds,
            "left_out": dict(progress.left_out),
            "skipped": progress.skipped,
            "in_row": progress.in_row,
            "verdicts": {str(number): list(said) for number, said in progress.verdicts.items()},
        }
        arrays = {name: np.asarray(leaf) for name, leaf in tensors.named(progress.state).items()}
        checkpoints.write(self._folder, progress.round, facts, arrays)

    def _finish(self, halves: Halves, progress: Progress, diverged: int | None) -> dict[str, Any]:
        done = Run(
            halves.experiment,
            progress.points,
            0.0,
            progress.round_seconds,
            progress.seconds,
            _Deployed(halves.data, progress.health()),  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            round=progress.round,
            diverged=diverged,
        )
        global_ = jax.device_get(halves.model(progress.state))
        exports.keep_one(self._folder / "global.safetensors", global_, halves.experiment, halves.data, progress.round)
        curves.draw_run(done, self._folder / "curves.png")
        summary = {**records.summary(done), "federation": self._told(progress)}
        records.write_json(self._folder / "summary.json", summary)
        show_outcome([summary])
        tell_of_sick_clients([summary])
        warn_of_divergence([done])
        beyond = summary["federation"]["seconds_beyond_clients"]
        print(f"a round takes {beyond:.1f} s beyond the slowest client's own work\nrun:     {self._folder}", flush=True)
        return summary

    def _told(self, progress: Progress) -> dict[str, Any]:
        """What only a real federation has."""
        beyond = [whole - own for whole, own in zip(progress.round_seconds, progress.client_seconds, strict=True)]
        return {
            "run": progress.run,
            "clients": [self._roster.name(number) for number in sorted(self._roster.members)],
            "seconds_beyond_clients": round(float(np.median(beyond)), 3),
        }

    # Who is there -----------------------------------------------------------------------------------------------

    def _connected(self) -> list[int]:
        return list(self._grid.get_node_ids())

    def _gather(self) -> None:
        """Meets whoever is new, and waits until enough clients are there; says so while it does."""
        told = 0.0
        while True:
            connected = self._connected()
            self._meet(self._roster.unknown(connected))
            present = self._roster.present(connected)
            if len(present) >= self._options.min_clients:
                return
            if time.monotonic() - told > 30 or not told:
                told = time.monotonic()
                self._say(f"waiting for clients: {len(present)} of at least {self._options.min_clients} are here")
            time.sleep(1)

    def _meet(self, nodes: Sequence[int]) -> None:
        if not nodes:
            return
        content = wire.content({"classes": self._options.classes, "labels": self._options.labels})
        deadline = min(self._options.deadline, 120.0)
        answers = ask(self._grid, "query.meet", dict.fromkeys(nodes, content), group="meet", deadline=deadline)
        said = {}
        for node, answer in answers.items():
            try:
                said[node] = self._facts(answer, INTRODUCTION, f"node {node}")
            except SettingError as problem:
                self._roster.turn_away(node, str(problem))
        self._roster.welcome(said)

    def _facts(self, answer: Answer, shape: Any, sender: str) -> Any:
        """What an answer says; raises SettingError if it is no answer."""
        if answer.content is None:
            raise SettingError(answer.problem)
        problem = wire.facts(answer.content, {}, sender).get("problem")
        if problem is not None:
            raise SettingError(str(problem))
        return wire.facts(answer.content, shape, sender)

    # One round --------------------------------------------------------------------------------------------------

    def _one_round(self, halves: Halves, progress: Progress) -> None:
        number = progress.round + 1
        sizes = self._roster.sizes("train")
        present = self._roster.present(self._connected())
        chosen = halves.choose(progress.round, present, sizes)
        state, answered, waited = progress.state, set(chosen), 0.0
        if halves.asks_before and chosen:
            replies = self._ask("query.prepare", halves, progress, number, chosen, state)
            everyone = dict.fromkeys(chosen, True)
            answers, _, waited = self._uploads(replies, halves.shapes.upload[0], _ANSWERED, number, everyone)
            answered = set(answers)
            state = jax.device_get(halves.learn_before(state, answers, chosen, sizes))
        trains = present if halves.experiment.participation == "all" else chosen
        wanted = {i: i in chosen for i in trains}
        replies = self._ask("train", halves, progress, number, trains, state, wanted)
        uploads, said, seconds = self._uploads(replies, halves.shapes.upload[1], _TRAINED, number, wanted)
        sound = self._sound(halves, state, uploads, said, number) & (answered | (set(trains) - set(chosen)))
        taken = {i: uploads[i] for i in chosen if i in uploads and i in sound}
        learns = bool(chosen) and bool(enough(np.asarray([i in taken for i in chosen])))
        if learns:
            progress.state = jax.device_get(halves.learn(state, taken, chosen, sizes))
        else:
            self._say(f"round {number} is skipped: {len(taken)} of {len(chosen)} uploads can be used")
        synced = halves.algorithm.client.synced
        for i in trains:
            late = i not in replies
            stands = i in taken and learns if synced else late or i in sound
            progress.verdicts[i] = (number, stands)
            if not late and i not in sound:
                progress.left_out[self._roster.name(i)] += 1
        progress.skipped += not learns
        progress.in_row = 0 if learns else progress.in_row + 1
        progress.client_seconds.append(seconds + waited)
        progress.round = number

    def _ask(
        self,
        kind: str,
        halves: Halves,
        progress: Progress,
        round_: int,
        clients: Sequence[int],
        state: Tree,
        wanted: Mapping[int, bool] | None = None,
        **trees: Tree,
    ) -> dict[int, Answer]:
        """The answers of these clients, by number."""
        experiment, roster = halves.experiment, self._roster
        plain = records.plain(experiment)
        packed = {name: wire.packed(tree) for name, tree in trees.items()}
        message = partial(self._message, halves, state)
        contents: dict[int, RecordDict] = {}
        for i in clients:
            verdict = progress.verdicts.get(i)
            order = {
                "run": progress.run,
                "round": round_,
                "number": i,
                "verdict": {"round": verdict[0], "stands": verdict[1]} if verdict else None,
                "experiment": {name: plain[name] for name in ("model", "algorithm", "settings", "batch_size", "seed")},
                "classes": halves.data.classes,
                "labels": halves.data.labels,
                "upload": bool(wanted and wanted[i]),
            }
            contents[roster.nodes[i]] = wire.content(order, message=message(i), **packed)
        group, deadline = str(round_), self._options.deadline
        numbers = {node: i for i, node in roster.nodes.items()}
        answers = ask(self._grid, kind, contents, group=group, deadline=deadline)
        late = [roster.name(i) for i in clients if roster.nodes[i] not in answers]
        if late:
            self._say(f"round {round_}: no answer within {deadline:g} s from {', '.join(late)}")
        return {numbers[node]: answer for node, answer in answers.items()}

    def _message(self, halves: Halves, state: Tree, client: int) -> Any:
        """What the algorithm's server sends, packed; once for all if everyone is sent the same."""
        if not halves.alike:
            return wire.packed(jax.device_get(halves.send(state, np.int32(client))))
        if self._packed is None or self._packed[0] is not state:
            self._packed = (state, wire.packed(jax.device_get(halves.send(state, np.int32(client)))))
        return self._packed[1]

    _packed: tuple[Tree, Any] | None = None

    def _uploads(
        self, replies: Mapping[int, Answer], like: Tree, shape: Any, round_: int, wanted: Mapping[int, bool]
    ) -> tuple[dict[int, Tree], dict[int, Any], float]:
        """The uploads that can be read, what all said with them, and the longest time that a client worked."""
        uploads, said, slowest = {}, {}, 0.0
        for i, answer in replies.items():
            name = self._roster.name(i)
            try:
                facts = self._facts(answer, shape, name)
                slowest = max(slowest, facts["seconds"])
                if wanted[i]:
                    assert answer.content is not None
                    uploads[i] = wire.tree(answer.content, "upload", like, name, finite=True)
                said[i] = facts
            except SettingError as problem:
                self._say(f"round {round_}: refused: {problem}")
        return uploads, said, slowest

    def _sound(
        self, halves: Halves, state: Tree, uploads: Mapping[int, Tree], said: Mapping[int, Any], round_: int
    ) -> set[int]:
        """Who is not sick. Of an upload the server takes the measure itself; the others are believed."""
        vitals: dict[int, tuple[float, float]] = {}
        for i, facts in said.items():
            own = [np.nan if facts[name] is None else facts[name] for name in ("moved", "size")]
            if i in uploads and np.isfinite(own[0]):  # else its state is not finite, which only the client can know
                message = jax.device_get(halves.send(state, np.int32(i)))
                own = [float(each) for each in halves.vitals(message, uploads[i])]
            vitals[i] = (own[0], own[1])
        if not vitals:
            return set()
        moved, size = (jnp.asarray(each, jnp.float32) for each in zip(*vitals.values(), strict=True))
        verdict = np.asarray(health.sound(health.Vitals(moved, size)))
        for i, fine in zip(vitals, verdict, strict=True):
            if not fine:
                self._say(
                    f"round {round_}: {self._roster.name(i)} is left out: its update is not finite or far too long"
                )
        return {i for i, fine in zip(vitals, verdict, strict=True) if fine}

    # Evaluation -------------------------------------------------------------------------------------------------

    def _evaluate(self, halves: Halves, progress: Progress) -> Evaluation:
        """G and P, as the clients count them; one that does not answer counts as one without samples."""
        clients = self._roster.present(self._connected())
        global_ = jax.device_get(halves.model(progress.state))
        replies = self._ask(
            "evaluate", halves, progress, progress.round, clients, progress.state, **{"global": global_}
        )
        count = halves.data.clients
        sizes = {part: np.zeros(count, np.int64) for part in ("train", "test")}
        tallies = {name: Tally(np.zeros((1, count)), np.zeros((1, count))) for name in Counts._fields}
        for i, answer in replies.items():
            try:
                facts = self._facts(answer, _COUNTED, self._roster.name(i))
                self._believable(facts, i)
            except SettingError as problem:
                self._say(f"round {progress.round}: no scores: {problem}")
                continue
            for part, size in sizes.items():
                size[i] = facts[part]
            for name, tally in tallies.items():
                tally.correct[0, i] = facts[name]["correct"]
                tally.loss[0, i] = np.nan if facts[name]["loss"] is None else facts[name]["loss"]
        return summarise(Counts(**tallies), sizes)

    def _believable(self, facts: Mapping[str, Any], client: int) -> None:
        for name in Counts._fields:
            part = name.rsplit("_", 1)[1]
            if facts[name]["correct"] > facts[part]:
                raise SettingError(f"{self._roster.name(client)} says that more were right than there are samples")


class _Deployed:
    """What a Run asks of its simulation, of a federation that is elsewhere."""

    def __init__(self, federation: Description, state: health.Health) -> None:
        self.federation, self._health = federation, state

    def health(self, states: Any) -> health.Health:
        """Who was left out, and how many rounds were skipped."""
        return self._health


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs what the run config says."""
    try:
        Coordinator(grid, *understood(context.run_config)).run()
    except SettingError as mistake:
        print(f"pfedbred: {mistake}", flush=True)
        raise
