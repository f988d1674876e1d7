"""The ServerApp: the server half of any algorithm, where the averages are made.

A round is the simulation's: the same clients are chosen, the same uploads are left out, the same weights and the same
server half make the next state. What is different is that a client may be late, or gone, or send nonsense.

A message costs a client a new process, so a round is one exchange: where the model of the last round is to be
evaluated, clients do it before they train, with the message that they train on.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pfedbred.engine import screening
from pfedbred.engine.round import enough
from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.keeping import begun, one_line, opened, refuse_changes
from pfedbred.experiment.loop import Point, Run
from pfedbred.flower import server_state as progress_
from pfedbred.flower import wire
from pfedbred.flower.messaging import Answer, Question, ask, facts_of, has_trained, name_of, say
from pfedbred.flower.roster import INTRODUCTION, Description, Roster
from pfedbred.flower.run_config import Options, understood
from pfedbred.flower.scoring import scores_of
from pfedbred.flower.server_half import Halves
from pfedbred.flower.server_state import Progress
from pfedbred.io.shapes import NUMBER, Maybe
from pfedbred.report import curves
from pfedbred.report.terminal import show_outcome, tell_of_sick_clients, warn_of_divergence, watching
from pfedbred.runs import checkpoints, records, saved_models
from pfedbred.runs.metrics_file import Metrics
from pfedbred.types import Tree

_PATIENCE = 60.0  # seconds: the server before this one may not have noticed yet that it is to end
_ANSWERED = {"seconds": NUMBER}
_TRAINED = {**_ANSWERED, "moved": Maybe(NUMBER), "size": Maybe(NUMBER)}


class Coordinator:
    """Runs an experiment over a grid, into a run folder."""

    def __init__(self, grid: Any, options: Options, fields: Mapping[str, Any]) -> None:
        self._grid, self._options, self._fields = grid, options, dict(fields)
        self._folder, self._roster = options.out, Roster(options.clients, say)

    def run(self) -> dict[str, Any]:
        """From the start, or from the last round that was saved, to the end. Returns the summary."""
        folder = self._folder
        if isinstance(self._fields["settings"].get("sigma"), str):
            raise SettingError("sigma by a file is not for a federation: its clients do not have that file")
        if not begun(records.find_folder(folder)) and not records.is_free(folder):
            raise SettingError(f"{folder} is not empty, and holds no run: choose another folder for out")
        with opened(folder, resume=True, patience=_PATIENCE), one_line(folder):
            if (folder / "summary.json").exists():
                raise SettingError(f"{folder} holds a finished run: choose another folder for out")
            found = progress_.latest(folder, say)
            if found:
                self._refuse_changes(found)
                self._roster.restore(found.facts["roster"])
            self._gather()
            self._roster.close()
            data = self._roster.description()
            experiment = Experiment(**{"dataset": data.name, **self._fields}).resolved(data)  # type: ignore[arg-type]
            self._halves = Halves(experiment, data)
            self._progress = self._begun() if found is None else self._resumed(found)
            self._metrics = Metrics(folder, keep=found.facts["metrics"] if found else 0)
            try:
                diverged = self._rounds()
                self._metrics.settle()
            finally:
                self._metrics.close()
            return self._finish(diverged)

    def _begun(self) -> Progress:
        experiment = records.plain(self._halves.experiment)
        records.write_config(self._folder, experiment, "run")
        progress = Progress(secrets.token_hex(8), 0, jax.device_get(self._halves.init()))
        progress.save(self._folder, experiment, self._given(), self._roster.facts(), 0)
        return progress

    def _given(self) -> dict[str, Any]:
        """What the run config says of the clients, which cannot be changed later."""
        options = self._options
        return {"clients": options.clients, "classes": options.classes, "labels": options.labels}

    def _refuse_changes(self, found: checkpoints.Checkpoint) -> None:
        now = self._given()
        changed = [f"{name} {found.facts['given'].get(name)!r}, now {now[name]!r}" for name in now]
        changed = [text for name, text in zip(now, changed, strict=True) if found.facts["given"].get(name) != now[name]]
        if changed:
            raise SettingError(f"{self._folder} was begun with other settings: {'; '.join(changed)}")

    def _resumed(self, found: checkpoints.Checkpoint) -> Progress:
        refuse_changes(self._folder, records.plain(self._halves.experiment), found.facts["experiment"])
        say(f"going on after round {found.round} of {self._halves.experiment.rounds}")
        checkpoints.forget_after(self._folder, found.round)
        return progress_.restored(self._folder, found, jax.eval_shape(self._halves.init))

    def _rounds(self) -> int | None:
        """All rounds that are left; returns the one at which the run was seen to have diverged, if it was."""
        experiment, progress = self._halves.experiment, self._progress
        self._begun_at = time.monotonic() - progress.seconds
        with watching([experiment]) as (self._watch,):
            while progress.round < experiment.rounds:
                started = time.monotonic()
                if not self._one_round():
                    return progress.round
                progress.round_seconds.append(time.monotonic() - started)
                progress.seconds = time.monotonic() - self._begun_at
                metrics = self._metrics.settle()
                progress.save(self._folder, records.plain(experiment), self._given(), self._roster.facts(), metrics)
            while self._due():  # until somebody has answered
                self._gather()
                if not self._note(self._ask({}, progress.state)):
                    return progress.round
            return None

    # Who is there -----------------------------------------------------------------------------------------------

    def _present(self) -> list[int]:
        return self._roster.present(list(self._grid.get_node_ids()))

    def _gather(self) -> list[int]:
        """Meets whoever is new, and waits until enough clients are there; says so while it does. Who is there."""
        told: float | None = None
        while True:
            connected = list(self._grid.get_node_ids())
            self._meet(self._roster.unknown(connected))
            present, least = self._roster.present(connected), self._options.min_clients
            if len(present) >= least:
                return present
            if told is None or time.monotonic() - told > 30:
                told = time.monotonic()
                missing = self._roster.missing(connected)
                names = f"; {', '.join(missing[:5])} {'is' if len(missing) == 1 else 'are'} missing" if missing else ""
                say(f"waiting for clients: {len(present)} of at least {least} are here{names}")
            time.sleep(1)

    def _meet(self, nodes: Sequence[int]) -> None:
        if not nodes:
            return
        content = wire.content({"classes": self._options.classes, "labels": self._options.labels})
        questions = dict.fromkeys(nodes, Question("query.meet", content))
        deadline = min(self._options.deadline, 60.0)
        answers = ask(self._grid, questions, group="meet", deadline=deadline)
        said = {}
        for node in nodes:
            if node not in answers:
                self._roster.leave_alone(node, f"it does not answer within {deadline:g} s")
                continue
            try:
                said[node] = facts_of(answers[node], INTRODUCTION, f"node {node}")
            except SettingError as problem:
                self._roster.leave_alone(node, str(problem), name_of(answers[node]))
        self._roster.welcome(said)

    def _chosen(self) -> tuple[list[int], list[int]]:
        """Who is there, and whose uploads the next round averages; waits until one of those is there."""
        told = False
        while True:
            present = self._gather()
            chosen = self._halves.choose(self._progress.round, present, self._roster.sizes("train"))
            if chosen:
                return present, chosen
            if not told:
                say("waiting for one of the clients that select names")
            told = True
            time.sleep(1)

    # One round --------------------------------------------------------------------------------------------------

    def _one_round(self) -> bool:
        """Does the next round; returns False if the run is seen to have diverged before that."""
        halves, progress = self._halves, self._progress
        present, chosen = self._chosen()
        number, sizes = progress.round + 1, self._roster.sizes("train")
        trains = present if halves.experiment.participation == "all" else chosen
        state, answered, waited = progress.state, set(chosen), 0.0
        if halves.asks_before:
            replies = self._ask(dict.fromkeys(chosen, "query.prepare"), state)
            if not self._note(replies):
                return False
            answers, _, waited = self._uploads(replies, halves.shapes.upload[0], _ANSWERED, chosen)
            answered = set(answers)
            state = jax.device_get(halves.learn_before(state, answers, chosen, sizes))
        replies = self._ask(dict.fromkeys(trains, "train"), state, chosen)
        if not self._note(replies):
            return False
        asked = {i: replies[i] for i in trains if i in replies}
        uploads, said, seconds = self._uploads(asked, halves.shapes.upload[1], _TRAINED, chosen)
        sound = self._sound(state, uploads, said) & (answered | (set(trains) - set(chosen)))
        taken = {i: uploads[i] for i in chosen if i in uploads and i in sound}
        learns = bool(enough(jnp.asarray([i in taken for i in chosen])))
        if learns:
            progress.state = jax.device_get(halves.learn(state, taken, chosen, sizes))
        else:
            say(f"round {number} is skipped: {len(taken)} of {len(chosen)} uploads can be used")
        for i, answer in asked.items():
            if i not in sound:
                progress.left_out[self._roster.name(i)] += 1
            if has_trained(answer):  # else it still is where it was, and what was said of that holds
                stands = i in taken and learns if halves.algorithm.client.synced else i in sound
                progress.verdicts[i] = (number, stands)
        progress.skipped += not learns
        if learns:
            progress.in_row = 0
        elif asked:  # nobody's answer is nobody's fault
            progress.in_row += 1
        progress.client_seconds.append(seconds + waited)
        progress.round = number
        return True

    def _due(self) -> bool:
        """Whether the last round is to be evaluated, and has not been."""
        experiment, progress = self._halves.experiment, self._progress
        scored = progress.points[-1].round if progress.points else 0
        last = progress.round == experiment.rounds
        return progress.round > scored and (last or progress.round % experiment.eval_every == 0)

    def _ask(self, kinds: Mapping[int, str], state: Tree, wanted: Sequence[int] = ()) -> dict[int, Answer]:
        """The answers to these kinds of messages, by client; the others evaluate, if that is due."""
        halves, progress, roster = self._halves, self._progress, self._roster
        due, deadline = self._due(), self._options.deadline
        plain = records.plain(halves.experiment)
        extra = {"global": wire.packed(jax.device_get(halves.model(progress.state)))} if due else {}
        questions = {}
        for i in self._present() if due else kinds:
            verdict = progress.verdicts.get(i)
            order = {
                "run": progress.run,
                "round": progress.round + 1,
                "number": i,
                "verdict": {"round": verdict[0], "stands": verdict[1]} if verdict else None,
                "experiment": {name: plain[name] for name in wire.EXPERIMENT},
                "deadline": deadline,
                "classes": halves.data.classes,
                "labels": halves.data.labels,
                "upload": i in wanted,
                "evaluate": due,
            }
            content = wire.content(order, message=halves.message(state, i), **extra)
            questions[roster.nodes[i]] = Question(kinds.get(i, "evaluate"), content)
        numbers = {node: i for i, node in roster.nodes.items()}
        answers = ask(self._grid, questions, group=str(progress.round + 1), deadline=deadline)
        late = [roster.name(numbers[node]) for node in questions if node not in answers]
        if late:
            say(f"round {progress.round + 1}: no answer within {deadline:g} s from {', '.join(late)}")
        return {numbers[node]: answer for node, answer in answers.items()}

    def _uploads(
        self, replies: Mapping[int, Answer], like: Tree, shape: Any, wanted: Sequence[int]
    ) -> tuple[dict[int, Tree], dict[int, Any], float]:
        """The uploads that can be read, what all said with them, and the longest time that a client worked."""
        uploads, said, slowest = {}, {}, 0.0
        for i, answer in replies.items():
            name = self._roster.name(i)
            try:
                facts = facts_of(answer, shape, name)
                if min(facts[each] or 0.0 for each in shape) < 0:
                    raise SettingError(f"what {name} sent has a length or a time below zero")
                slowest = max(slowest, min(facts["seconds"], self._options.deadline))
                if i in wanted:
                    assert answer.content is not None
                    uploads[i] = wire.tree(answer.content, "upload", like, name, finite=True)
                said[i] = facts
            except SettingError as problem:
                say(f"round {self._progress.round + 1}: {name} is left out: {problem}")
        return uploads, said, slowest

    def _sound(self, state: Tree, uploads: Mapping[int, Tree], said: Mapping[int, Any]) -> set[int]:
        """Who is not sick. Of an upload the server takes the measure itself; the others are believed."""
        vitals: dict[int, list[float]] = {}
        for i, facts in said.items():
            vitals[i] = [np.nan if facts[name] is None else facts[name] for name in ("moved", "size")]
            if i in uploads and facts["moved"] is not None:  # else its state is not finite, which only it can know
                vitals[i] = [float(each) for each in self._halves.vitals(state, i, uploads[i])]
        if not vitals:
            return set()
        moved, size = (jnp.asarray(each, jnp.float32) for each in zip(*vitals.values(), strict=True))
        sound = np.asarray(screening.sound(screening.Vitals(moved, size)))
        for i in [i for i, fine in zip(vitals, sound, strict=True) if not fine]:
            name = self._roster.name(i)
            say(f"round {self._progress.round + 1}: {name} is left out: its update is not finite or far too long")
        return {i for i, fine in zip(vitals, sound, strict=True) if fine}

    # Evaluation -------------------------------------------------------------------------------------------------

    def _note(self, replies: Mapping[int, Answer]) -> bool:
        """Notes the scores in the answers, if they were asked for; returns False if the run has diverged."""
        if not self._due():
            return True
        progress, scores = self._progress, scores_of(replies, self._roster, self._progress.round)
        if scores is None:
            say(f"round {progress.round}: nobody has scored it")
            return True
        earlier = screening.total([point.health for point in progress.points], 1)
        seconds, now = time.monotonic() - self._begun_at, progress.health()
        point = Point(progress.round, seconds, scores, now.since(earlier))
        progress.points.append(point)
        self._metrics.write(point)
        self._watch(point)
        return not np.all(screening.astray(scores, now.in_row, self._halves.experiment.rounds))

    # The end ----------------------------------------------------------------------------------------------------

    def _finish(self, diverged: int | None) -> dict[str, Any]:
        halves, progress, folder = self._halves, self._progress, self._folder
        progress.seconds = time.monotonic() - self._begun_at
        done = Run(
            halves.experiment,
            progress.points,
            0.0,
            progress.round_seconds,
            progress.seconds,
            _Deployed(self._roster.description(), progress.health()),  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            round=progress.round,
            diverged=diverged,
        )
        global_ = jax.device_get(halves.model(progress.state))
        saved_models.keep_one(
            folder / saved_models.GLOBAL_FILE, global_, halves.experiment, halves.data, progress.round
        )
        curves.draw_run(done, folder / "curves.png")
        summary = {**records.summary(done), "federation": self._facts()}
        records.write_json(folder / "summary.json", summary)
        show_outcome([summary])
        tell_of_sick_clients([summary])
        warn_of_divergence([done])
        beyond = summary["federation"]["seconds_beyond_clients"]
        print(f"a round takes {beyond:.1f} s beyond the slowest client's own work\nrun:     {folder}", flush=True)
        return summary

    def _facts(self) -> dict[str, Any]:
        """What only a real federation has."""
        progress, roster = self._progress, self._roster
        pairs = zip(progress.round_seconds, progress.client_seconds, strict=False)
        beyond = [whole - own for whole, own in pairs]
        return {
            "run": progress.run,
            "clients": [roster.name(number) for number in sorted(roster.members)],
            "client_seconds": round(float(np.median(progress.client_seconds)), 3),
            "seconds_beyond_clients": round(float(np.median(beyond)), 3),
        }


class _Deployed:
    """What a Run asks of its simulation, of a federation that is elsewhere."""

    def __init__(self, federation: Description, state: screening.Health) -> None:
        self.federation, self._health = federation, state

    def health(self, states: Any) -> screening.Health:
        """Who was left out, and how many rounds were skipped."""
        return self._health


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs what the run config says."""
    logging.getLogger("flwr").addFilter(_in_one_line)
    Coordinator(grid, *understood(context.run_config)).run()


def _in_one_line(record: logging.LogRecord) -> bool:
    """Flower shows a traceback of what ends a run. A mistake in the run config needs none."""
    mistake = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(mistake, SettingError):
        record.msg, record.args, record.exc_info = f"pfedbred: {mistake}", (), None
    return True
