"""The deployed backend: clients are processes on other machines.

A round is that of a simulation: the same clients are selected, the same updates are rejected, and the same weights and
server half give the next state. The difference is that clients may be late, disconnected, or send invalid uploads.

A request costs a client a new process, so a round is one exchange: if the previous round's model is to be evaluated,
clients do so before they train, with the message they train on.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.data.federation import Part
from pfedbred.engine import screening
from pfedbred.engine.backend import Pending, Saved, check_seed
from pfedbred.engine.plan import weight_cap
from pfedbred.engine.responses import Responses
from pfedbred.engine.round import Servers, enough
from pfedbred.engine.scores import Evaluation
from pfedbred.errors import SettingError, printable
from pfedbred.flower import server_state, wire
from pfedbred.flower.gathering import Gathering
from pfedbred.flower.introductions import NodeFacts
from pfedbred.flower.messaging import NodeRequest, Reply, facts_in, has_trained, log, read_facts
from pfedbred.flower.roster import Description
from pfedbred.flower.run_config import ServerOptions
from pfedbred.flower.server_half import Comparison, ServerHalf
from pfedbred.flower.server_state import DeployedState
from pfedbred.flower.tallies import evaluation_of
from pfedbred.io.shapes import NUMBER, Each, Maybe
from pfedbred.types import Tree, tree_bytes

_PREPARED = {"seconds": NUMBER}
_TRAINED = {**_PREPARED, "update_norm": Maybe(NUMBER), "reference_norm": Maybe(NUMBER), "info": Each(Maybe(NUMBER))}
_TOO_LONG = "it is far longer than the others'"


class DeployedBackend:
    """Runs an experiment of one seed over Flower."""

    def __init__(self, half: ServerHalf, gathering: Gathering, options: ServerOptions) -> None:
        self._half, self._gathering, self._options = half, gathering, options
        self._roster, self._order = gathering.roster, half.experiment.plain(by_name=True)
        self.algorithm, self.task, self.plan = half.algorithm, half.task, half.plan
        self.compile_seconds = 0.0
        self._pending: Pending | None = None
        self._evaluated: Tree = None  # G in the last evaluation
        self._told: int | None = None  # the chosen round, as clients know it
        self._bounded: set[int] = set()

    samples = None
    store = "clients"
    evaluated = None
    checkpoint_always = True

    @property
    def federation(self) -> Description:
        """What is known about the data; more clients may join."""
        return self._roster.description()

    def trace(self, seeds: int) -> None:
        """The server half was traced when it was built; clients trace the rest."""
        if seeds != 1:
            raise SettingError(f"a federation runs one seed at a time, not {seeds}")

    def compile(self, state: DeployedState, models: bool) -> None:
        """Nothing to do: the server half compiles as uploads arrive, and clients compile the rest."""

    def state_bytes(self) -> int:
        """Memory of the server's state."""
        return tree_bytes(jax.eval_shape(self._half.init))

    def init(self, seeds: Sequence[int]) -> DeployedState:
        """The state before the first round, with a new id for the run."""
        self.trace(len(seeds))
        server = jax.device_get(self._half.init())
        return DeployedState(secrets.token_hex(8), 0, server, responses=self._half.no_responses(server))

    def advance(self, state: DeployedState, rounds: int) -> DeployedState:
        """The state ``rounds`` rounds later; fills in a pending evaluation."""
        for _ in range(rounds):
            self._round(state)
        return state

    def start_evaluation(self, state: DeployedState) -> Pending:
        """Requests an evaluation, which comes with the next round's exchange."""
        self._pending = Pending()
        return self._pending

    def evaluate(self, state: DeployedState) -> Evaluation:
        """Evaluates G and P now, in a separate exchange, repeated until a client has evaluated them."""
        while True:
            self._gathering.wait()
            self._pending = pending = Pending()
            self._exchange({}, state, state.server)
            if pending.result is not None:
                return pending.result
            time.sleep(1)

    def rejections(self, state: DeployedState) -> screening.Rejections:
        """The clients whose updates were rejected so far, and how many rounds were skipped."""
        return state.rejections()

    def diagnostics(self, state: DeployedState) -> dict[str, np.ndarray]:
        """The last round's diagnostics."""
        return {name: np.asarray([value]) for name, value in state.info.items()}

    def described(self, state: DeployedState) -> dict[str, np.ndarray]:
        """Nothing: clients keep their state to themselves."""
        return {}

    def servers(self, state: DeployedState) -> Servers:
        """The server's side of the state."""
        server = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], state.server)
        return Servers(self._half.key[None], server, {})

    def participated(self, state: DeployedState) -> None:
        """None: all clients are evaluated."""
        return

    def save(self, state: DeployedState) -> Saved:
        """The state for a checkpoint, with the federation's clients."""
        return state.save(self._options.given(), self._roster.facts())

    def load(self, saved: Saved, seeds: int) -> DeployedState:
        """The state from a checkpoint."""
        self.trace(seeds)
        shapes = jax.eval_shape(self._half.init)
        return server_state.load(saved, shapes, self._half.no_responses)

    def global_model(self, state: DeployedState, seed: int = 0) -> Tree:
        """G."""
        check_seed(1, seed)
        return self._half.model(state.server)

    def personal_model(self, state: DeployedState, client: int, seed: int = 0) -> Tree:
        """Personal models stay with their clients."""
        raise SettingError(f"the personal model of {self._roster.name(client)} is on that client's machine")

    def models(self, state: DeployedState) -> None:
        """Personal models stay with their clients."""
        return

    def evaluated_models(self, state: DeployedState) -> tuple[Tree, None]:
        """G alone: a round of training may have passed since clients evaluated it."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], self._evaluated), None

    def outputs(self, part: Part, global_: Tree, personal: Tree) -> NoReturn:
        """Outputs stay with the clients, as their samples do."""
        raise SettingError("predictions stay with the clients of a real federation and are not available on the server")

    def scores(self, global_: Tree, personal: Tree) -> NoReturn:
        """Clients evaluate their models themselves."""
        raise SettingError("the samples stay with the clients of a real federation: models cannot be evaluated here")

    def announce(self, state: DeployedState, round_: int, last: bool = False) -> None:
        """Tells clients which round's personal model to keep: with their next request, or now if there is none."""
        state.chosen = round_
        if last and self._told != round_:
            facts = {"run": state.run, "chosen": round_, "deadline": self._options.deadline}
            keep = NodeRequest("query.keep", wire.content(facts))
            replies = self._gathering.exchange(dict.fromkeys(self._gathering.present(), keep), state.round)
            for i, reply in replies.items():
                if problem := facts_in(reply).get("problem"):
                    log(f"{self._roster.name(i)} did not keep its model of round {round_}: {printable(str(problem))}")
            self._told = round_

    def model_bytes(self) -> int:
        """Bytes of G's params."""
        return tree_bytes(self._half.shapes.global_)

    # One round --------------------------------------------------------------------------------------------------

    def _round(self, state: DeployedState) -> None:
        half, number = self._half, state.round + 1
        present, chosen = self._select(state.round)
        sizes = self._roster.sizes("train")
        trains = present if half.experiment.participation == "all" else chosen
        server, answered, waited = state.server, set(chosen), 0.0
        if half.prepares:
            replies = self._exchange(dict.fromkeys(chosen, "query.prepare"), state, server)
            replies = {i: replies[i] for i in chosen if i in replies}
            uploads, _, waited = self._read(replies, half.shapes.upload[0], _PREPARED, chosen, number)
            answered = set(uploads)
            server = half.aggregate(server, uploads, chosen, sizes, state.round, stage=1)
        replies = self._exchange(dict.fromkeys(trains, "train"), state, server, chosen)
        replies = {i: replies[i] for i in trains if i in replies}
        uploads, said, seconds = self._read(replies, half.shapes.upload[1], _TRAINED, chosen, number)
        compared = [i for i in chosen if i in answered]
        valid, comparison = self._screen(server, uploads, said, compared, number, state.responses)
        valid &= answered | (set(trains) - set(chosen))
        counted = {i: uploads[i] for i in chosen if i in uploads and i in valid}
        learns = bool(enough(jnp.asarray([i in counted for i in chosen])))
        if learns:
            self._log_bounded(number, list(counted), sizes)
            state.server = half.aggregate(server, counted, chosen, sizes, state.round, stage=0)
        else:
            log(f"round {number} is skipped: {len(counted)} of {len(chosen)} uploads are valid")
        if comparison is not None:
            state.responses = comparison.responses
        for i, reply in replies.items():
            if i not in valid:
                state.rejected[self._roster.name(i)] += 1
            if has_trained(reply):  # else it is still in the previous round, whose verdict holds
                stands = i in counted and learns if half.algorithm.client.synced else i in valid
                state.verdicts[i] = (number, stands)
        state.skipped += not learns
        if learns:
            state.skipped_in_row = 0
        elif replies:  # a round without any reply is the network's fault, not divergence
            state.skipped_in_row += 1
        state.info = _average([said[i]["info"] for i in sorted(valid)], half.diagnostics)
        state.client_seconds.append(seconds + waited)
        state.round = number

    def _select(self, round_: int) -> tuple[list[int], list[int]]:
        """The clients that are present, and the selected ones; waits until a selected one is present."""
        told = False
        while True:
            present = self._gathering.wait()
            chosen = self._half.select(round_, present, self._roster.sizes("train"))
            if chosen:
                return present, chosen
            if not told:
                log("waiting for a client listed in select")
            told = True
            time.sleep(1)

    def _exchange(
        self, kinds: Mapping[int, str], state: DeployedState, server: Tree, uploading: Sequence[int] = ()
    ) -> dict[int, Reply]:
        """Replies to requests of these kinds, by client. If an evaluation is pending, all clients evaluate first.

        ``server`` is the state that messages are made from, which within a round may be ahead of ``state``.
        """
        half, due = self._half, self._pending is not None
        model = jax.device_get(half.model(state.server)) if due else None
        extra = {"global": wire.packed(model)} if due else {}
        requests = {}
        for i in self._gathering.present() if due else kinds:
            verdict = state.verdicts.get(i)
            order = {
                "run": state.run,
                "round": state.round + 1,
                "number": i,
                "verdict": {"round": verdict[0], "stands": verdict[1]} if verdict else None,
                "experiment": {name: self._order[name] for name in wire.EXPERIMENT},
                "deadline": self._options.deadline,
                "classes": half.data.classes,
                "labels": half.data.labels,
                "target": half.task.target and half.task.target._asdict(),
                "upload": i in uploading,
                "evaluate": due,
                "chosen": state.chosen,
            }
            content = wire.content(order, message=half.message(server, i), **extra)
            requests[i] = NodeRequest(kinds.get(i, "evaluate"), content)
        replies = self._gathering.exchange(requests, state.round + 1)
        if self._pending is not None:
            result = evaluation_of(replies, self._roster, half.tallies, half.metrics, state.round)
            if result is None:
                log(f"round {state.round}: no client has evaluated it")
            else:
                self._evaluated, self._told = model, state.chosen
            self._pending.result, self._pending = result, None  # a later round has a different model
        return replies

    def _read(
        self, replies: Mapping[int, Reply], like: Tree, shape: Mapping[str, Any], uploading: Sequence[int], number: int
    ) -> tuple[dict[int, Tree], dict[int, NodeFacts], float]:
        """The readable uploads, the facts with them, and how long the slowest client worked."""
        uploads, said, slowest = {}, {}, 0.0
        for i, reply in replies.items():
            name = self._roster.name(i)
            try:
                facts = read_facts(reply, shape, name)
                if any((facts.get(each) or 0.0) < 0 for each in ("seconds", "update_norm", "reference_norm")):
                    raise SettingError("it reports a norm or a time below zero")
                if i in uploading:
                    assert reply.content is not None
                    uploads[i] = wire.tree(reply.content, "upload", like, name, finite=True)
                slowest = max(slowest, min(facts["seconds"], self._options.deadline))
                said[i] = facts
            except SettingError as problem:
                log(f"round {number}: the update of {name} is rejected: {problem}")
        return uploads, said, slowest

    def _screen(
        self,
        server: Tree,
        uploads: wire.Trees,
        said: Mapping[int, NodeFacts],
        chosen: Sequence[int],
        number: int,
        responses: Responses | None,
    ) -> tuple[set[int], Comparison | None]:
        """The clients whose update is valid. The server measures uploads itself; for clients without one it trusts
        their norms.
        """
        norms: dict[int, screening.Norms] = {}
        for i, facts in said.items():
            norms[i] = screening.Norms(*_floats((facts["update_norm"], facts["reference_norm"])))
            if i in uploads and facts["update_norm"] is not None:  # else its state, which only it sees, is not finite
                norms[i] = self._half.norms(server, i, uploads[i])
        if not norms:
            return set(), None
        update, reference = (jnp.asarray(each, jnp.float32) for each in zip(*norms.values(), strict=True))
        found = screening.valid(screening.Norms(update, reference), self._half.algorithm.server.averages)
        valid = dict(zip(norms, np.asarray(found).tolist(), strict=True))
        for i, length in zip(norms, update.tolist(), strict=True):
            if not valid[i]:
                self._log_rejected(number, i, _TOO_LONG if math.isfinite(length) else "it is not finite")
        sent = {i: (uploads[i], norms[i][0], valid[i]) for i in chosen if i in uploads and i in norms}
        comparison = self._half.compare(server, sent, chosen, responses)
        in_line = comparison.in_line if comparison else {}
        for i, why in comparison.why.items() if comparison else ():
            self._log_rejected(number, i, why)
        return {i for i, counts in (valid | in_line).items() if counts}, comparison

    def _log_bounded(self, number: int, clients: Sequence[int], sizes: np.ndarray) -> None:
        """Logs, once each, the clients whose weight is capped below the samples they claim."""
        limit = float(weight_cap(sizes[sizes > 0]).samples(len(clients)))
        for i in clients if self._half.plan.weights == "data" else ():
            if sizes[i] > limit and i not in self._bounded:
                self._bounded.add(i)
                name, samples = self._roster.name(i), f"{sizes[i]:,} samples"
                log(f"round {number}: {name} claims {samples}; its weight in the average is that of {limit:,.0f}")

    def _log_rejected(self, number: int, client: int, why: str) -> None:
        log(f"round {number}: the update of {self._roster.name(client)} is rejected: {why}")


def _average(infos: Sequence[Mapping[str, float | None]], names: Sequence[str]) -> dict[str, float]:
    """The mean of each diagnostic over the clients; NaN if a client reports none, or there are no clients."""
    if not infos:
        return dict.fromkeys(names, np.nan)
    return {name: float(np.mean(_floats(each.get(name) for each in infos))) for name in names}


def _floats(values: Iterable[float | None]) -> np.ndarray:
    """Numbers from JSON, with NaN for null."""
    return np.asarray(list(values), float)
