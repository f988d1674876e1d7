"""A federation in one process: Flower's messages and apps, without its network.

``Loopback`` hands each message to the ClientApp at once, as a SuperNode would, and keeps what crosses the wire.
"""

import copy
import itertools

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from pfedbred.flower import client
from pfedbred.flower.config import understood
from pfedbred.flower.server import Coordinator

EVERYTHING = {"participation": "all", "batch-size": 4, "rounds": 3, "min-clients": 1, "deadline": 0.5}


class Loopback:
    """A Grid. ``tamper(node, message, reply)`` gives what arrives in place of a reply; None if nothing does."""

    def __init__(self, nodes, tamper=lambda node, message, reply: reply):
        self.nodes, self.tamper = dict(nodes), tamper  # numbers and node configs
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
        if node not in self.nodes:
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
