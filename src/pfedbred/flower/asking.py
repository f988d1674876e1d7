"""Messages to clients, and waiting for their answers until a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from flwr.app import Message, RecordDict

from pfedbred.errors import printable

_OFTEN, _SELDOM = 0.2, 1.0  # seconds between looks for answers, at first and later


class Grid(Protocol):
    """What is used of Flower's Grid."""

    def get_node_ids(self) -> Iterable[int]:
        """Who is connected."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends messages; gives the number of each."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers that have come."""


class Question(NamedTuple):
    """What a node is asked: a kind of message, as the ClientApp knows it, and its content."""

    kind: str
    content: RecordDict


class Answer(NamedTuple):
    """What came back from a node: a message, or what went wrong there."""

    content: RecordDict | None
    problem: str = ""


def ask(grid: Grid, questions: Mapping[int, Question], *, group: str, deadline: float) -> dict[int, Answer]:
    """Asks each node its question, and waits for the answers for ``deadline`` seconds. Who is late has none."""
    end = time.monotonic() + deadline
    messages = [
        Message(question.content, node, question.kind, ttl=deadline, group_id=group)
        for node, question in questions.items()
    ]
    sent = {number: node for number, node in zip(grid.push_messages(messages), questions, strict=False) if number}
    answers: dict[int, Answer] = {}
    pause = _OFTEN
    while sent and time.monotonic() < end:
        for reply in grid.pull_messages(list(sent)):
            node = sent.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error():
                answers[node] = Answer(None, printable(" ".join(str(reply.error.reason).split()), 500))
            else:
                answers[node] = Answer(reply.content)
        if sent:
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
            pause = min(1.1 * pause, _SELDOM)
    return answers
