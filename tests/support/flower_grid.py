"""A federation in one process: Flower's messages and apps, without its network.

``Loopback`` hands each message to the ClientApp at once, as a SuperNode would, and keeps what crosses the wire.
"""

import contextlib
import copy
import itertools
import json
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import pfedbred
from pfedbred.algorithms.base import Task
from pfedbred.algorithms.exchange import exchange
from pfedbred.data.minibatches import Batch
from pfedbred.engine.round import new_record
from pfedbred.flower import client, client_home, wire
from pfedbred.flower.run_config import parse
from pfedbred.flower.server import Coordinator
from pfedbred.io import tensors
from pfedbred.report import curves
from pfedbred.runs import trained_model
from pfedbred.runs.prediction import personal_models

SMALL = {"participation": "all", "batch-size": 4, "rounds": 3, "min-clients": 1, "deadline": 0.5}
ALL = {"clients": 3, "aggregated": 3}
FACTS = {
    "protocol": wire.PROTOCOL,
    "dataset": "d",
    "shape": [2],
    "classes": 2,
    "train": 3,
    "test": 1,
    "number": None,
    "task": "classification",
    **dict.fromkeys(("labels", "features", "words", "vocabulary", "target")),
}
"""What a client tells of itself, but for its identity and name."""


class Killed(BaseException):
    """The server's process is gone."""


class Loopback:
    """A Grid. ``tamper(node, message, reply)`` gives what arrives in place of a reply; None if nothing does.

    ``loses(node, message)`` tells whether a message does not reach its node.
    """

    def __init__(self, nodes, tamper=lambda node, message, reply: reply, loses=lambda node, message: False):
        self.nodes, self.tamper, self.loses = dict(nodes), tamper, loses  # numbers and node configs
        self.wire = []  # (node, message, reply)
        self._numbers, self._waiting = itertools.count(), {}
        # What Flower's processes are told when they start.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 0

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number = f"message-{next(self._numbers)}"
            assert number != "message-200", "the server asks again and again"
            message.metadata.__dict__["_message_id"] = number
            numbers.append(number)
            self._waiting[number] = message
        return numbers

    def pull_messages(self, message_ids):
        replies = [self._reply(self._waiting.pop(number)) for number in message_ids if number in self._waiting]
        return [reply for reply in replies if reply is not None]

    def _reply(self, message):
        node = message.metadata.dst_node_id
        if node not in self.nodes or self.loses(node, message):
            return None
        reply = client.app(copy.deepcopy(message), self._context(node))
        self.wire.append((node, message, reply))
        return self.tamper(node, message, copy.deepcopy(reply))

    def _context(self, node):
        return Context(run_id=1, node_id=node, node_config=self.nodes[node], state=RecordDict(), run_config={})


def nodes_of(path, count, homes):
    """The node configs of the clients of a prepared federation."""
    return {
        100 + i: {"dataset": str(path), "partition-id": i, "name": f"clinic-{i}", "home": str(homes / f"home-{i}")}
        for i in range(count)
    }


def coordinator(grid, out, **config):
    config = {name.replace("_", "-"): value for name, value in config.items()}
    return Coordinator(grid, *parse({**SMALL, "out": str(out), **config}))


def run(grid, out, draw=False, **config):
    """Runs the ServerApp's own loop, without the picture, which takes a third of a second; returns the summary."""
    with contextlib.nullcontext() if draw else mock.patch.object(curves, "draw_run"):
        return coordinator(grid, out, **config).run()


def simulate(federation, algorithm, rounds=3, **options):
    options = {"participation": "all", "batch_size": 4, "aggregated": 2, **options}
    return pfedbred.run(federation=federation, algorithm=algorithm, rounds=rounds, **options)


def exchanged(federation, algorithm):
    """Shapes and types of all that the algorithm sends and keeps."""
    task = Task(pfedbred.models.get("mclr", federation.shape, federation.classes))
    sample = Batch(jnp.asarray(federation.train.x[:1]), jnp.asarray(federation.train.y[:1]))
    return exchange(pfedbred.make(algorithm, task), task, sample)


# What arrives -------------------------------------------------------------------------------------------------------


def facts_in(reply):
    return json.loads(reply.content.config_records["facts"]["json"])


def with_facts(reply, **changed):
    """The reply with other facts."""
    reply.content.config_records["facts"]["json"] = json.dumps({**facts_in(reply), **changed})
    return reply


def with_tally(reply, name, value):
    """The reply with another statistic, such as ``global_test.accuracy.total``; one without any as it is."""
    if "tallies" in reply.content:
        record = reply.content["tallies"]
        record[name] = Array(np.asarray(value, record[name].numpy().dtype))
    return reply


def spoil_upload(change, node=101, round_=None):
    """A tamper function: ``change`` is applied to the first array of a client's uploads."""

    def tamper(where, message, reply):
        if where == node and round_ in (None, message.metadata.group_id) and "upload" in reply.content:
            record = reply.content["upload"]
            name = next(iter(record))
            record[name] = Array(change(record[name].numpy()))
        return reply

    return tamper


def to_nan(array):
    return np.full_like(array, np.nan)


# What is left -------------------------------------------------------------------------------------------------------


def lines(out):
    """metrics.jsonl but for the time."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in found]


def personal(homes, i):
    """P as client i keeps it."""
    return trained_model.load_model(personal_models(homes / f"home-{i}")[0])


def kept(homes, i, federation, algorithm):
    """What client i keeps of its only run."""
    (path,) = (homes / f"home-{i}").glob("*/record.safetensors")
    return client_home.load(path.parent, jax.eval_shape(new_record, exchanged(federation, algorithm).state))


def assert_close(one, other, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def assert_same_models(homes, out, simulated, clients=3):
    """G on the server and every P at home are the simulation's."""
    assert_close(trained_model.load_model(out / "global.safetensors").params, simulated.global_model())
    for i in range(clients):
        assert_close(personal(homes, i).params, simulated.personal_model(i))


def assert_same_run(one, other):
    """Two folders with ``run`` and the homes hold the same lines, G and P to the last bit."""
    assert lines(one / "run") == lines(other / "run")
    files = [each.relative_to(one) for each in (one / "run/global.safetensors",)]
    models = [(trained_model.load_model(one / each), trained_model.load_model(other / each)) for each in files]
    models += [(personal(one, i), personal(other, i)) for i in range(3)]
    for a, b in models:
        first, second = tensors.named(a.params), tensors.named(b.params)
        assert first.keys() == second.keys()
        for name, array in first.items():
            np.testing.assert_array_equal(np.asarray(array), np.asarray(second[name]))
