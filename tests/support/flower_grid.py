"""A federation in one process: Flower's messages and apps, without its network.

``Loopback`` hands each message to the ClientApp at once, as a SuperNode would, and keeps what crosses the wire.
"""

import copy
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import pfedbred
from pfedbred.algorithms.base import Task, exchange
from pfedbred.data.minibatches import Batch
from pfedbred.engine.round import new_record
from pfedbred.flower import client, client_home
from pfedbred.flower.run_config import understood
from pfedbred.flower.server import Coordinator
from pfedbred.runs import saved_models
from pfedbred.runs.prediction import personal_models

EVERYTHING = {"participation": "all", "batch-size": 4, "rounds": 3, "min-clients": 1, "deadline": 0.5}


class Loopback:
    """A Grid. ``tamper(node, message, reply)`` gives what arrives in place of a reply; None if nothing does.

    ``loses(node, message)`` says whether a message does not reach its node.
    """

    def __init__(self, nodes, tamper=lambda node, message, reply: reply, loses=lambda node, message: False):
        self.nodes, self.tamper, self.loses = dict(nodes), tamper, loses  # numbers and node configs
        self.wire = []  # (node, message, reply)
        self._numbers, self._waiting = itertools.count(), {}
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = (
            1,
            1,
            0,
        )  # what Flower's processes are told when they begin

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = number
            numbers.append(number)
            self._waiting[number] = message
        return numbers

    def pull_messages(self, message_ids):
        replies = [self._answer(self._waiting.pop(number)) for number in message_ids if number in self._waiting]
        return [reply for reply in replies if reply is not None]

    def _answer(self, message):
        node = message.metadata.dst_node_id
        if node not in self.nodes or self.loses(node, message):
            return None
        reply = client.app(copy.deepcopy(message), self._context(node))
        self.wire.append((node, message, reply))
        return self.tamper(node, message, copy.deepcopy(reply))

    def _context(self, node):
        return Context(run_id=1, node_id=node, node_config=self.nodes[node], state=RecordDict(), run_config={})


def nodes_of(path, count, homes):
    """Of the clients of a prepared federation."""
    return {
        100 + i: {"dataset": str(path), "partition-id": i, "name": f"clinic-{i}", "home": str(homes / f"home-{i}")}
        for i in range(count)
    }


def run(grid, out, **config):
    """Runs the ServerApp's own loop; returns the summary."""
    config = {name.replace("_", "-"): value for name, value in config.items()}
    return Coordinator(grid, *understood({**EVERYTHING, "out": str(out), **config})).run()


def simulate(federation, algorithm, rounds=3, **options):
    options = {"participation": "all", "batch_size": 4, "aggregated": 2, **options}
    return pfedbred.run(federation=federation, algorithm=algorithm, rounds=rounds, **options)


def exchanged(federation, algorithm):
    """Shapes and types of all that the algorithm sends and keeps."""
    task = Task(pfedbred.models.get("mclr", federation.shape, federation.classes))
    sample = Batch(jnp.asarray(federation.train.x[:1]), jnp.asarray(federation.train.y[:1]))
    return exchange(pfedbred.make(algorithm, task), task, sample)


def personal(homes, i):
    """P as client i keeps it."""
    return saved_models.load_model(personal_models(homes / f"home-{i}")[0])


def kept(homes, i, federation, algorithm):
    """What client i keeps of its only run."""
    (path,) = (homes / f"home-{i}").glob("*/record.safetensors")
    return client_home.load(path.parent, jax.eval_shape(new_record, exchanged(federation, algorithm).state))


def assert_close(one, other, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def assert_same_models(homes, out, simulated, clients=3):
    """G on the server and every P at home are the simulation's."""
    assert_close(saved_models.load_model(out / "global.safetensors").weights, simulated.global_model())
    for i in range(clients):
        assert_close(personal(homes, i).weights, simulated.personal_model(i))
