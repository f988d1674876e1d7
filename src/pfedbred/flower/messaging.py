"""Requests to clients, and their replies until a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode

from pfedbred.errors import SettingError, printable
from pfedbred.flower import wire

_UNREACHABLE = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""Flower's own replies on behalf of a client that is gone."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 1.0  # seconds between looks for replies


def log(text: str) -> None:
    """Prints a line in the server's log."""
    print(f"pfedbred: {text}", flush=True)


class Grid(Protocol):
    """The part of Flower's Grid used here."""

    def get_node_ids(self) -> Iterable[int]:
        """The connected nodes."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends messages and returns their ids."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that have arrived."""


class NodeRequest(NamedTuple):
    """A message to a node: its type, as the ClientApp registers it, and its content."""

    kind: str
    content: RecordDict


class Reply(NamedTuple):
    """A node's reply: its content, or what went wrong there."""

    content: RecordDict | None
    problem: str = ""


def exchange(grid: Grid, requests: Mapping[int, NodeRequest], *, group: str, deadline: float) -> dict[int, Reply]:
    """Sends each node its request and collects replies for ``deadline`` seconds. A late node has no entry."""
    if not requests:
        return {}
    end = time.monotonic() + deadline
    messages = [
        Message(request.content, node, request.kind, ttl=deadline, group_id=group) for node, request in requests.items()
    ]
    sent = {id_: node for id_, node in zip(grid.push_messages(messages), requests, strict=False) if id_}
    replies: dict[int, Reply] = {}
    pause = _SHORTEST_PAUSE
    while sent and time.monotonic() < end:
        for message in grid.pull_messages(list(sent)):
            node = sent.pop(message.metadata.reply_to_message_id, None)
            if node is None or (message.has_error() and message.error.code in _UNREACHABLE):
                continue
            if message.has_error():
                replies[node] = Reply(None, printable(" ".join(str(message.error.reason).split()), 500))
            else:
                replies[node] = Reply(message.content)
        if sent:
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
            pause = min(1.1 * pause, _LONGEST_PAUSE)
    return replies


def read_facts(reply: Reply, shape: Any, sender: str) -> Any:
    """The facts in a reply; raises SettingError if it reports a problem or has another shape."""
    if reply.content is None:
        raise SettingError(reply.problem)
    problem = wire.facts(reply.content, {}, sender).get("problem")
    if problem is not None:
        raise SettingError(str(problem))
    return wire.facts(reply.content, shape, sender)


def facts_in(reply: Reply) -> Mapping[str, Any]:
    """The facts in a reply; none if it cannot be read."""
    try:
        return wire.facts(reply.content, {}, "the client") if reply.content else {}
    except SettingError:
        return {}


def has_trained(reply: Reply) -> bool:
    """Whether the client has trained, even if its upload was rejected."""
    return bool(reply.content) and "problem" not in facts_in(reply)


def sender_name(reply: Reply) -> str | None:
    """The name that a client gives in a reply, if it gives one."""
    name = facts_in(reply).get("name")
    return printable(name, 100) if name and isinstance(name, str) else None
